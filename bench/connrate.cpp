// Connections made, accepted and closed per second by one client process and one server process.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <string>

using namespace sd::bench;

namespace {

struct Progress {
    alignas(64) std::atomic<std::uint64_t> accepted{0};
    alignas(64) std::atomic<std::uint16_t> port{0};
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "connect + accept + close per second",
                          {{"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           kWindowsOption,
                           kTurnsOption,
                           {"window", "64", "connections the client may be ahead of the server"},
                           {"addresses", "32", "127.0.0.1 upwards, so that ports in TIME_WAIT do not run out"},
                           {"strangers", "0", "1: the server is another user"},
                           {"cpu", "0,1", "processors of server and client"}});
    Windows windows(options);
    const bool strangers = options.integer("strangers") != 0;
    auto *progress = shared_value<Progress>();
    std::uint16_t port = 0;
    int listener = strangers ? -1 : listen_tcp("0.0.0.0", port);
    const pid_t server = start_child(options.cpu(0), [&] {
        if (strangers) {
            become_other_user();
            listener = listen_tcp("0.0.0.0", port);
            progress->port = port;
        }
        for (;;) {
            close(accept_tcp(listener));
            progress->accepted.store(progress->accepted.load(std::memory_order_relaxed) + 1,
                                     std::memory_order_release);
        }
    });
    if (strangers) {
        while ((port = progress->port) == 0) {
            sched_yield();
        }
    } else {
        close(listener);
    }
    pin_to_cpu(options.cpu(1));

    const auto window = static_cast<std::uint64_t>(options.integer("window"));
    const auto addresses = static_cast<std::uint64_t>(options.integer("addresses"));
    std::uint64_t made = 0;
    const auto run_for = [&](double seconds) {
        const std::uint64_t start = now_ns();
        const auto until = start + static_cast<std::uint64_t>(seconds * 1e9);
        std::uint64_t now = start;
        const std::uint64_t first = made;
        while (now < until) {
            for (int i = 0; i < 16; ++i, ++made) {
                // A full accept queue would drop the SYN and cost a second: stay within the window.
                while (made - progress->accepted.load(std::memory_order_acquire) >= window) {
                    sched_yield();
                }
                close(connect_tcp("127.0.0." + std::to_string(1 + made % addresses), port));
            }
            now = now_ns();
        }
        return static_cast<double>(made - first) / (static_cast<double>(now - start) / 1e9);
    };
    windows.run(run_for, run_for);
    end_child(server);

    Report report("connrate");
    report.add("connections_per_s", windows.median());
    report.add("windows", windows.figures());
    report.add("made", static_cast<long>(made));
    report.print();
    return 0;
}
