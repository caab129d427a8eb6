// Many connections served by one epoll loop: every active connection has one request under way all the time.
#include "bench/common/idle_pair.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

using namespace sd::bench;

namespace {

constexpr int kBatch = 256;

// False when the connection has ended.
bool bounce(int fd, std::vector<char> &buffer) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    if (got == 0) {
        return false;
    }
    const ssize_t put = write(fd, buffer.data(), static_cast<std::size_t>(got));
    if (put != got && errno != EPIPE && errno != ECONNRESET) {
        die("write");
    }
    return put == got;
}

void serve(int listener, std::size_t size) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    set_nonblocking(listener);
    watch(epoll, listener);
    std::vector<char> buffer(size);
    epoll_event events[kBatch];
    for (;;) {
        const int count = epoll_wait(epoll, events, kBatch, -1);
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            if (fd == listener) {
                for (int next; (next = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                    watch(epoll, next);
                }
            } else if (!bounce(fd, buffer)) {
                close(fd);
            }
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(
        argc, argv, "requests over many connections of one epoll loop at each end",
        {{"connections", "1000", "connections open"},
         {"pairs", "1", "pairs of processes they are spread over; all but one pair only hold theirs open"},
         {"active", "0", "how many of them have traffic; 0: all"},
         {"size", "64", "bytes of a request and of its answer"},
         {"seconds", "1", "time measured"},
         {"warmup", "0.2", "seconds before that"},
         kWindowsOption,
         kTurnsOption,
         {"cpu", "0,1", "processors of server and client"}});
    Windows windows(options);
    raise_fd_limit();
    std::signal(SIGPIPE, SIG_IGN);
    const long pairs = options.integer("pairs");
    const long connections = options.integer("connections") / pairs;
    // Each has carried one message and is silent from then on.
    std::vector<std::unique_ptr<IdlePair>> silent;
    for (long i = 1; i < pairs; ++i) {
        silent.push_back(std::make_unique<IdlePair>(connections, options.cpu(0), options.cpu(1)));
        silent.back()->open();
    }
    const long active = options.integer("active") > 0 ? options.integer("active") : connections;
    const auto size = static_cast<std::size_t>(options.integer("size"));
    std::uint16_t port = 0;
    const int listener = listen_tcp("0.0.0.0", port);
    const pid_t server = start_child(options.cpu(0), [&] { serve(listener, size); });
    close(listener);
    pin_to_cpu(options.cpu(1));

    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    std::vector<char> buffer(size, 'x');
    std::vector<int> fds;
    const std::uint64_t opening = now_ns();
    for (long i = 0; i < connections; ++i) {
        // 20,000 ports of each address, then the next one.
        const int fd = connect_tcp("127.0.0." + std::to_string(1 + i / 20000), port);
        set_nonblocking(fd);
        watch(epoll, fd);
        fds.push_back(fd);
    }
    const double opened = static_cast<double>(now_ns() - opening) / 1e9;
    // Every connection is used once; the idle ones are then spread evenly among the active ones.
    std::uint64_t answers = 0;
    epoll_event events[kBatch];
    const auto collect = [&](bool again) {
        const int count = epoll_wait(epoll, events, kBatch, 1000);
        if (count == 0) {
            errno = 0;
            die("no answer for a second");
        }
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            const ssize_t got = read(fd, buffer.data(), size);
            if (got != static_cast<ssize_t>(size)) {
                die("read");
            }
            ++answers;
            if (again && write(fd, buffer.data(), size) != static_cast<ssize_t>(size)) {
                die("write");
            }
        }
    };
    for (long from = 0; from < connections; from += 1000) {
        const long to = from + 1000 < connections ? from + 1000 : connections;
        for (long i = from; i < to; ++i) {
            if (write(fds[static_cast<std::size_t>(i)], buffer.data(), size) < 0) {
                die("write");
            }
        }
        answers = 0;
        while (answers < static_cast<std::uint64_t>(to - from)) {
            collect(false);
        }
    }
    for (long i = 0; i < active; ++i) {
        if (write(fds[static_cast<std::size_t>(i * (connections / active))], buffer.data(), size) < 0) {
            die("write");
        }
    }
    const auto run_for = [&](double seconds) {
        return rate_over(seconds, [&] {
            answers = 0;
            collect(true);
            return answers;
        });
    };
    windows.run(run_for, [&](double seconds) { return 1e9 / run_for(seconds); });
    end_child(server);

    Report report("manyconn");
    report.add("connections", connections * pairs);
    report.add("active", active);
    report.add("open_s", opened);
    report.add("requests_per_s", 1e9 / windows.median());
    report.add("ns_per_request", windows.median());
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
