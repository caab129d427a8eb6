// The limit for bulk data: memcpy by one thread.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <cstring>
#include <vector>

using namespace sd::bench;

int main(int argc, char **argv) {
    const Options options(
        argc, argv, "bandwidth of memcpy by one thread",
        {{"size", "65536", "bytes of a copy"}, {"seconds", "0.5", "time measured"}, {"cpu", "1", "processor"}});
    pin_to_cpu(options.cpu(0));
    const auto size = static_cast<std::size_t>(options.integer("size"));
    std::vector<char> from(size, 'x');
    std::vector<char> to(size, 'y');
    const std::size_t copies = size >= 65536 ? 16 : (1 << 20) / size;
    std::uint64_t bytes = 0;
    const std::uint64_t start = now_ns();
    const auto until = start + static_cast<std::uint64_t>(options.number("seconds") * 1e9);
    std::uint64_t now = start;
    while (now < until) {
        for (std::size_t i = 0; i < copies; ++i) {
            std::memcpy(to.data(), from.data(), size);
            asm volatile("" : : "r"(to.data()) : "memory"); // or the compiler drops the copy
        }
        bytes += copies * size;
        now = now_ns();
    }
    Report report("memcpy");
    report.add("size", static_cast<long>(size));
    report.add("bytes_per_s", static_cast<double>(bytes) / (static_cast<double>(now - start) / 1e9));
    report.print();
    return 0;
}
