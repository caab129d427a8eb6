// One-way stream of messages of one size between two pinned processes, one write and one read call per
// message.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <vector>

using namespace sd::bench;

int main(int argc, char **argv) {
    const Options options(argc, argv, "one-way stream between two processes",
                          {{"via", "tcp", kTransports},
                           {"mode", "blocking", "blocking, spin or epoll"},
                           {"size", "8", "bytes of a message"},
                           {"read", "0", "bytes asked for by each read; 0: a whole message"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           kWindowsOption,
                           kTurnsOption,
                           {"nodelay", "0", "1: set TCP_NODELAY on the sending end"},
                           {"cpu", "0,1", "processors of receiver and sender"}});
    Windows windows(options);
    const Waiting waiting = waiting_from(options.text("mode"));
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const bool nodelay = options.text("via") == "tcp" && options.integer("nodelay") != 0;

    Channel channel(options.text("via"));
    const pid_t sender = start_child(options.cpu(1), [&] {
        const Duplex duplex = channel.client();
        if (nodelay) {
            set_nodelay(duplex.out);
        }
        Mover mover(duplex, waiting);
        const std::vector<char> buffer(size, 'x');
        while (mover.send(buffer.data(), size)) {
        }
    });
    pin_to_cpu(options.cpu(0));
    Mover mover(channel.server(), waiting);
    const auto chunk = options.integer("read") > 0 ? static_cast<std::size_t>(options.integer("read")) : size;
    std::vector<char> buffer(chunk);
    // The clock is looked at every 16 KiB at most, so that small messages do not pay for it.
    const std::size_t calls = chunk >= 16384 ? 1 : 16384 / chunk;
    const auto run_for = [&](double seconds) {
        return rate_over(seconds, [&] {
            for (std::size_t i = 0; i < calls; ++i) {
                if (!mover.receive(buffer.data(), chunk)) {
                    errno = 0;
                    die("the sender went away");
                }
            }
            return calls * chunk;
        });
    };
    windows.run(run_for, run_for);
    mover.close();
    join_child(sender);

    Report report("stream");
    report.add("via", options.text("via"));
    report.add("mode", options.text("mode"));
    report.add("size", static_cast<long>(size));
    report.add("messages_per_s", windows.median() / static_cast<double>(size));
    report.add("bytes_per_s", windows.median());
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
