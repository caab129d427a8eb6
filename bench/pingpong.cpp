// Round trip of one message between two pinned processes: one client, one echo server, one message at a time.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <ctime>
#include <vector>

using namespace sd::bench;

namespace {

void echo(Mover &mover, std::size_t size) {
    std::vector<char> buffer(size);
    while (mover.receive(buffer.data(), size) && mover.send(buffer.data(), size)) {
    }
}

void pause_us(long us) {
    if (us <= 0) {
        return;
    }
    timespec t{us / 1'000'000, us % 1'000'000 * 1000};
    nanosleep(&t, nullptr);
}

void round_trip(Mover &mover, std::vector<char> &buffer) {
    if (!mover.send(buffer.data(), buffer.size()) || !mover.receive(buffer.data(), buffer.size())) {
        errno = 0;
        die("the echo server went away");
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(
        argc, argv, "round trip of one message between two processes",
        {{"via", "tcp", kTransports},
         {"mode", "blocking", "blocking, spin (ask again and again) or epoll"},
         {"size", "8", "bytes of a message"},
         {"seconds", "1", "time measured"},
         {"warmup", "0.2", "seconds before that"},
         kWindowsOption,
         kTurnsOption,
         {"gap-us", "0", "silence before each message, in microseconds"},
         {"pairs", "1", "client and server pairs at work at the same time; the first is measured"},
         {"cpu", "0,1", "processors of server and client"}});
    Windows windows(options);
    const Waiting waiting = waiting_from(options.text("mode"));
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const long gap = options.integer("gap-us");

    std::vector<pid_t> helpers;
    for (long pair = 1; pair < options.integer("pairs"); ++pair) {
        helpers.push_back(start_child(options.cpu(1), [&] {
            Channel channel(options.text("via"));
            const pid_t server = start_child(options.cpu(0), [&] {
                Mover mover(channel.server(), waiting);
                echo(mover, size);
            });
            Mover mover(channel.client(), waiting);
            std::vector<char> buffer(size);
            while (server > 0) { // until ended from outside; the server then dies with its parent
                round_trip(mover, buffer);
            }
        }));
    }

    Channel channel(options.text("via"));
    const pid_t server = start_child(options.cpu(0), [&] {
        Mover mover(channel.server(), waiting);
        echo(mover, size);
    });
    pin_to_cpu(options.cpu(1));
    Mover mover(channel.client(), waiting);
    std::vector<char> buffer(size);
    Histogram latency;
    const auto trip = [&] { round_trip(mover, buffer); };
    const auto pause = [gap] {
        pause_us(gap);
        return gap > 0;
    };
    windows.run([&](double seconds) { repeat_for(seconds, trip); },
                [&](double seconds) { return latency_over(seconds, latency, pause, trip); });
    mover.close();
    join_child(server);
    for (const pid_t helper : helpers) {
        end_child(helper);
    }

    Report report("pingpong");
    report.add("via", options.text("via"));
    report.add("mode", options.text("mode"));
    report.add("size", static_cast<long>(size));
    report.add_latency(latency);
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
