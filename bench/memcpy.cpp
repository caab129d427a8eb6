// The limit for bulk data: memcpy by one thread.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <cstring>
#include <vector>

using namespace sd::bench;

int main(int argc, char **argv) {
    const Options options(argc, argv, "bandwidth of memcpy by one thread",
                          {{"size", "65536", "bytes of a copy"},
                           {"seconds", "0.5", "time measured"},
                           {"warmup", "0", "seconds before that"},
                           kWindowsOption,
                           kTurnsOption,
                           {"cpu", "1", "processor"}});
    Windows windows(options);
    pin_to_cpu(options.cpu(0));
    const auto size = static_cast<std::size_t>(options.integer("size"));
    std::vector<char> from(size, 'x');
    std::vector<char> to(size, 'y');
    const std::size_t copies = size >= 65536 ? 16 : (1 << 20) / size;
    const auto run_for = [&](double seconds) {
        return rate_over(seconds, [&] {
            for (std::size_t i = 0; i < copies; ++i) {
                std::memcpy(to.data(), from.data(), size);
                asm volatile("" : : "r"(to.data()) : "memory"); // or the compiler drops the copy
            }
            return copies * size;
        });
    };
    windows.run(run_for, run_for);
    Report report("memcpy");
    report.add("size", static_cast<long>(size));
    report.add("bytes_per_s", windows.median());
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
