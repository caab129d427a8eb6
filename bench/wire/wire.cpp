// What two hosts without an RDMA device can do: round trips and streams over a cable between two network
// namespaces, by kernel TCP, MSG_ZEROCOPY, io_uring, and frames of AF_XDP. docs/without-rdma.md tells why.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/wire/cable.hpp"
#include "bench/wire/ends.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <vector>

using namespace sd::bench;

namespace {

struct Shared {
    std::atomic<bool> ready{false};
    std::atomic<bool> end{false};
    std::atomic<double> processor{0}; // the server's, seconds
    std::atomic<double> bytes{0};
};

double processor_time() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval &t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void serve(const Options &options, Shared &shared) {
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const bool trips = options.text("what") == "trip";
    shared.ready = options.text("via") != "frames";
    const auto end = make_end(options.text("via"), true, options.text("object"));
    shared.ready = true;
    std::vector<char> buffer(trips ? size : std::size_t{256} << 10U);
    const double before = processor_time();
    double bytes = 0;
    while (!shared.end && end->receive(buffer.data(), trips ? size : buffer.size())) {
        bytes += static_cast<double>(buffer.size());
        if (trips) {
            end->send(buffer.data(), size);
        }
    }
    shared.processor = processor_time() - before;
    shared.bytes = bytes;
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "round trips and streams between two network namespaces",
                          {{"via", "tcp", kWays},
                           {"what", "trip", "trip or stream"},
                           {"size", "64", "bytes of a message"},
                           {"seconds", "1", "time measured"},
                           {"object", "wire.bpf.o", "for frames: the program that hands them over"},
                           {"cpu", "0,1", "processors of server and client"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const double seconds = options.number("seconds");
    auto *shared = shared_value<Shared>();
    const pid_t server = lay_cable(options.cpu(0), [&] { serve(options, *shared); });
    pin_to_cpu(options.cpu(1));
    while (!shared->ready) {
        usleep(1000);
    }
    usleep(50'000); // the server is in its accept()
    const auto end = make_end(options.text("via"), false, options.text("object"));

    Report report("wire");
    report.add("via", options.text("via"));
    report.add("what", options.text("what"));
    report.add("size", static_cast<long>(size));
    if (options.text("what") == "trip") {
        std::vector<char> buffer(size);
        Histogram latency;
        const auto trip = [&] {
            end->send(buffer.data(), size);
            if (!end->receive(buffer.data(), size)) {
                errno = 0;
                die("the server went away");
            }
        };
        repeat_for(0.2, trip);
        latency_over(
            seconds, latency, [] { return false; }, trip);
        shared->end = true;
        trip(); // the server is waiting for it
        report.add_latency(latency);
    } else {
        std::vector<std::vector<char>> buffers(kBuffers, std::vector<char>(size, 'x'));
        std::size_t next = 0;
        const double before = processor_time();
        const std::uint64_t start = now_ns();
        repeat_for(seconds, [&] { end->send(buffers[next++ % kBuffers].data(), size); });
        end->finish();
        const double elapsed = static_cast<double>(now_ns() - start) / 1e9;
        const double used = processor_time() - before;
        const double sent = static_cast<double>(next) * static_cast<double>(size);
        report.add("GB/s", sent / elapsed / 1e9);
        report.add("sender s/GB", used / (sent / 1e9));
        report.add("copied after all", static_cast<double>(end->copied()) / static_cast<double>(next));
        join_child(server);
        report.add("receiver s/GB", shared->processor / (sent / 1e9));
        report.print();
        return 0;
    }
    join_child(server);
    report.print();
    return 0;
}
