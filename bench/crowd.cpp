// Many client processes at one server process: each connects, has one message answered, and waits for more.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/procfs.hpp"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <vector>

using namespace sd::bench;

namespace {

struct State {
    std::atomic<long> answered{0}; // clients whose first message was
    std::atomic<long> again{0};    // and whose second was
    std::atomic<bool> go{false};   // the second may be sent
    std::atomic<int> port{0};      // of the server, once it listens
};

void serve(int listener) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    set_nonblocking(listener);
    watch(epoll, listener);
    for (;;) {
        epoll_event events[64];
        const int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            char byte = 0;
            if (fd == listener) {
                for (int next; (next = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
                    watch(epoll, next);
                }
            } else if (read(fd, &byte, 1) != 1) {
                close(fd);
            } else if (write(fd, &byte, 1) != 1) {
                die("write");
            }
        }
    }
}

void exchange(int fd) {
    char byte = 'x';
    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) {
        die("exchange");
    }
}

[[noreturn]] void be_client(State &state, std::uint16_t port) {
    const int fd = connect_tcp("127.0.0.1", port);
    exchange(fd);
    state.answered.fetch_add(1);
    while (!state.go.load()) {
        usleep(200'000);
    }
    exchange(fd);
    state.again.fetch_add(1);
    pause();
    _exit(0);
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "client processes at one server process",
                          {{"clients", "200", "client processes, one connection each"},
                           {"batch", "50", "of them that are started at one time"},
                           {"hold", "0", "seconds that all are kept before they go on, to look at them"},
                           {"monitor", "sd-monitor", "name of the monitor's process"}});
    raise_fd_limit();
    const long clients = options.integer("clients"), batch = options.integer("batch");
    auto &state = *shared_value<State>();
    // Made before there is a socket: the clients have nothing to inherit, and are no family.
    const pid_t nursery = start_child(-1, [&] {
        std::signal(SIGCHLD, SIG_IGN);
        while (state.port.load() == 0) {
            usleep(1000);
        }
        for (long i = 0; i < clients; ++i) {
            while (i - state.answered.load() >= batch) {
                usleep(1000);
            }
            const pid_t child = fork();
            if (child < 0) {
                die("fork");
            }
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                be_client(state, static_cast<std::uint16_t>(state.port.load()));
            }
        }
        pause();
    });
    std::uint16_t port = 0;
    const int listener = listen_tcp("127.0.0.1", port);
    const pid_t server = start_child(-1, [&] { serve(listener); });
    close(listener);

    const std::uint64_t start = now_ns();
    state.port.store(port);
    const auto all = [&](const std::atomic<long> &counter) {
        for (long last = -1, idle = 0; counter.load() < clients; usleep(10'000)) {
            idle = counter.load() == last ? idle + 1 : 0;
            last = counter.load();
            if (idle > 3000) {
                errno = 0;
                std::fprintf(stderr, "%ld of %ld clients were answered\n", last, clients);
                die("no client more for 30 s");
            }
        }
    };
    all(state.answered);
    const double took = static_cast<double>(now_ns() - start) / 1e9;
    const Memory at_server = memory_of(server);
    Memory at_monitor;
    for (const pid_t pid : find_processes(options.text("monitor"))) {
        const Memory one = memory_of(pid);
        at_monitor.private_bytes += one.private_bytes;
        at_monitor.shared_bytes += one.shared_bytes;
    }
    usleep(static_cast<useconds_t>(options.number("hold") * 1e6));
    state.go.store(true);
    all(state.again);
    end_child(nursery);
    end_child(server);

    const auto each = [&](std::uint64_t bytes) {
        return static_cast<double>(bytes) / static_cast<double>(clients);
    };
    Report report("crowd");
    report.add("clients", clients);
    report.add("started_per_s", static_cast<double>(clients) / took);
    report.add("server_bytes_per_client", each(at_server.private_bytes + at_server.shared_bytes));
    report.add("monitor_bytes_per_client", each(at_monitor.private_bytes + at_monitor.shared_bytes));
    report.print();
    return 0;
}
