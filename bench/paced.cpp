// Requests at a fixed rate: how long each takes, and how much processor time both ends use for it.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <sys/epoll.h>
#include <sys/prctl.h>

#include <csignal>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

using namespace sd::bench;

namespace {

std::uint64_t processor_ns() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

void sleep_until(std::uint64_t ns) {
    const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {
    }
}

// Until the client has gone. More than one connection takes an epoll set, whatever the client does.
void serve(int listener, long connections, bool by_epoll, std::size_t size) {
    std::vector<std::unique_ptr<Mover>> movers;
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (long i = 0; i < connections; ++i) {
        const int fd = accept_tcp(listener);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = static_cast<std::uint64_t>(i);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
            die("epoll_ctl");
        }
        movers.push_back(std::make_unique<Mover>(Duplex{fd, fd}, Waiting::blocking));
    }
    std::vector<char> buffer(size);
    const auto answer = [&](Mover &mover) {
        return mover.receive(buffer.data(), size) && mover.send(buffer.data(), size);
    };
    if (!by_epoll && connections == 1) {
        while (answer(*movers[0])) {
        }
        return;
    }
    epoll_event events[64];
    for (;;) {
        const int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; ++i) {
            if (!answer(*movers[events[i].data.u64])) {
                return;
            }
        }
    }
}

// Work that wants the core all the time.
void compute() {
    for (;;) {
        asm volatile("");
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "requests at a fixed rate: latency and processor time of both ends",
                          {{"rate", "1000", "requests per second, over all connections together"},
                           {"connections", "1", "used in turn"},
                           {"mode", "blocking", "blocking or epoll"},
                           {"size", "64", "bytes of a request and of its answer"},
                           {"busy", "0", "processes on each of the two processors that compute all the time"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.3", "seconds before that"},
                           {"cpu", "0,1", "processors of server and client"}});
    std::signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1); // else a sleep is up to 50 us longer than asked
    const long rate = options.integer("rate"), connections = options.integer("connections");
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const Waiting waiting = waiting_from(options.text("mode"));
    if (rate <= 0 || connections <= 0) {
        errno = 0;
        die("--rate and --connections must be positive");
    }
    std::vector<pid_t> others;
    for (long i = 0; i < 2 * options.integer("busy"); ++i) {
        others.push_back(start_child(options.cpu(static_cast<std::size_t>(i)), compute));
    }
    std::uint16_t port = 0;
    const int listener = listen_tcp("127.0.0.1", port);
    const pid_t server =
        start_child(options.cpu(0), [&] { serve(listener, connections, waiting == Waiting::epoll, size); });
    clockid_t server_clock{};
    if (clock_getcpuclockid(server, &server_clock) != 0) {
        die("clock_getcpuclockid");
    }
    const auto server_ns = [&] {
        timespec t{};
        if (clock_gettime(server_clock, &t) != 0) {
            die("processor time of the server");
        }
        return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(t.tv_nsec);
    };
    pin_to_cpu(options.cpu(1));
    std::vector<std::unique_ptr<Mover>> movers;
    for (long i = 0; i < connections; ++i) {
        const int fd = connect_tcp("127.0.0.1", port);
        movers.push_back(std::make_unique<Mover>(Duplex{fd, fd}, waiting));
    }

    std::vector<char> buffer(size);
    Histogram latency;
    const std::uint64_t period = 1'000'000'000ULL / static_cast<std::uint64_t>(rate);
    std::uint64_t due = now_ns() + period;
    std::size_t turn = 0;
    // A request that is late because the one before it took long begins at once; the rate is that much lower.
    const auto request = [&](bool counts) {
        if (due > now_ns()) {
            sleep_until(due);
        }
        const std::uint64_t start = ticks();
        Mover &mover = *movers[turn++ % movers.size()];
        if (!mover.send(buffer.data(), size) || !mover.receive(buffer.data(), size)) {
            errno = 0;
            die("the server went away");
        }
        if (counts) {
            latency.add(ticks() - start);
        }
        const std::uint64_t now = now_ns();
        due = due + period > now ? due + period : now;
    };
    repeat_for(options.number("warmup"), [&] { request(false); });
    const std::uint64_t server_start = server_ns();
    const std::uint64_t client_start = processor_ns(), start = now_ns();
    repeat_for(options.number("seconds"), [&] { request(true); });
    const auto took = static_cast<double>(now_ns() - start);
    const auto client = static_cast<double>(processor_ns() - client_start);
    const auto answered = static_cast<double>(server_ns() - server_start);
    for (auto &mover : movers) {
        mover->close();
    }
    join_child(server);
    for (const pid_t other : others) {
        end_child(other);
    }

    const auto requests = static_cast<double>(latency.total());
    Report report("paced");
    report.add("rate", rate);
    report.add("connections", connections);
    report.add("mode", options.text("mode"));
    report.add_latency(latency);
    report.add("requests_per_s", requests / (took / 1e9));
    report.add("cpu_ns_per_request", (client + answered) / requests);
    report.add("server_cpu_percent", answered / took * 100);
    report.add("client_cpu_percent", client / took * 100);
    report.print();
    return 0;
}
