// Seeded bytes over connections whose two ends are processes of their own. Each pair waits in its own way:
// two threads that block, poll(), or an edge-triggered epoll set.
//
//   path_transfer PAIRS KILOBYTES SEED        both directions at once, each of so many kilobytes
//   path_transfer PAIRS KILOBYTES SEED kill   one direction; the sender is killed at some moment
//   path_transfer PAIRS KILOBYTES SEED busy   besides, what is sent is corked now and then, or urgent (and
//                                             received in line); the client sends less, and ends its
//                                             direction long before; every other pair shares its ends with
//                                             children; and processes are stopped for some milliseconds
//
// Of six pairs the first three have small buffers.
// What was received is compared with what was to be sent, byte by byte; of a killed sender at least what its
// sends had accepted. Prints one line, and ends with 0 if all is right.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

struct Shared {
    std::atomic<uint32_t> port;
    std::atomic<uint64_t> accepted; ///< bytes that the client's sends have taken
    std::atomic<uint64_t> received; ///< by the server
};

uint8_t byte_at(uint64_t seed, uint64_t offset) {
    uint64_t x = (seed + offset / 8) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return static_cast<uint8_t>(x >> (offset % 8 * 8));
}

/// Small buffers: neither end gets far without the other, however the machine shares out its time. A move
/// needs now the one, now the other, so a given number of bytes brings at least so many moves.
void make_tight(int fd) {
    const int bytes = 16384;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0) {
        _exit(2);
    }
}

/// Urgent bytes in line, before any can come: one that is not is dropped when another follows it.
void take_urgent_in_line(int fd) {
    const int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) != 0) {
        _exit(2);
    }
}

[[noreturn]] void fail(const char *what, uint64_t at) {
    fprintf(stderr, "%s at %lu: %s\n", what, static_cast<unsigned long>(at), strerror(errno));
    fflush(stderr);
    _exit(1);
}

/// One end of a connection.
class End {
  public:
    End(int fd, uint64_t sends, uint64_t receives, uint64_t to_send, uint64_t seed, Shared &shared,
        bool client, bool busy)
        : fd_(fd), send_seed_(sends), receive_seed_(receives), to_send_(to_send), random_(seed),
          shared_(shared), client_(client), busy_(busy), shares_(busy && seed / 10 % 2 == 0) {}
    /// From here on nobody shares the connection.
    void leave() {
        if (sharer_ > 0) {
            kill(sharer_, SIGKILL);
            waitpid(sharer_, nullptr, 0);
        }
    }

    /// Sends something. False: all is sent, or there is no room.
    bool send_some(int flags) {
        if (sent_ == to_send_) {
            if (!shut_) {
                shut_ = true;
                shutdown(fd_, SHUT_WR);
            }
            return false;
        }
        if (busy_) {
            disturb();
        }
        if (busy_ && random_() % 64 == 0) {
            flags |= MSG_OOB;
        }
        const size_t most = (flags & MSG_OOB)     ? 1
                            : random_() % 64 == 0 ? 200000
                            : random_() % 8 == 0  ? 20000
                                                  : 700;
        const size_t n = std::min<uint64_t>(1 + random_() % most, to_send_ - sent_);
        std::vector<uint8_t> bytes(n);
        for (size_t i = 0; i < n; ++i) {
            bytes[i] = byte_at(send_seed_, sent_ + i);
        }
        iovec parts[2] = {{bytes.data(), n / 3}, {bytes.data() + n / 3, n - n / 3}};
        msghdr m{};
        m.msg_iov = parts;
        m.msg_iovlen = 2;
        const ssize_t r = random_() % 3 == 0 ? sendmsg(fd_, &m, flags | MSG_NOSIGNAL)
                                             : send(fd_, bytes.data(), n, flags | MSG_NOSIGNAL);
        if (r < 0 && (errno == EAGAIN || errno == EINTR)) {
            return errno == EINTR;
        }
        if (r <= 0) {
            fail("send", sent_);
        }
        sent_ += static_cast<uint64_t>(r);
        if (client_) {
            shared_.accepted.store(sent_);
        }
        return true;
    }
    /// Receives something. False: there is nothing, or no more.
    bool receive_some(int flags) {
        // Often all that has been peeked at is taken, so that the other path is next.
        const bool much = peeked_ || random_() % 4 == 0;
        std::vector<uint8_t> bytes(1 + random_() % (much ? 150000 : 3000));
        const bool peek = peeked_ = !peeked_ && random_() % (busy_ ? 6 : 16) == 0;
        ssize_t r = recv(fd_, bytes.data(), bytes.size(), flags | (peek ? MSG_PEEK : 0));
        if (r < 0 && (errno == EAGAIN || errno == EINTR)) {
            return errno == EINTR;
        }
        if (r < 0) {
            fail("recv", received_);
        }
        for (ssize_t i = 0; i < r; ++i) {
            if (bytes[static_cast<size_t>(i)] != byte_at(receive_seed_, received_ + static_cast<uint64_t>(i))) {
                errno = 0;
                fail(peek ? "peeked a wrong byte" : "a wrong byte", received_ + static_cast<uint64_t>(i));
            }
        }
        if (r == 0) {
            ended_ = true;
            return false;
        }
        if (!peek) {
            received_ += static_cast<uint64_t>(r);
            if (!client_) {
                shared_.received.store(received_);
            }
        }
        return true;
    }
    void run(unsigned way) {
        if (way == 0) {
            std::thread sender([this] {
                while (send_some(0)) {
                }
            });
            while (receive_some(0)) {
            }
            sender.join();
            return;
        }
        fcntl(fd_, F_SETFL, O_RDWR | O_NONBLOCK);
        const int set = way == 2 ? epoll_create1(EPOLL_CLOEXEC) : -1;
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        if (way == 2) {
            epoll_ctl(set, EPOLL_CTL_ADD, fd_, &event);
        }
        while (!ended_ || !shut_) {
            if (way == 2) {
                if (epoll_wait(set, &event, 1, 20000) == 0) {
                    errno = ETIMEDOUT;
                    fail("epoll_wait", received_);
                }
            } else {
                pollfd p{fd_, static_cast<short>((ended_ ? 0 : POLLIN) | (shut_ ? 0 : POLLOUT)), 0};
                if (poll(&p, 1, 20000) == 0) {
                    errno = ETIMEDOUT;
                    fail("poll", received_);
                }
            }
            for (bool more = true; more;) {
                more = !ended_ && receive_some(0);
                more = send_some(0) || more;
                if (way == 1) {
                    break;
                }
            }
        }
    }
    uint64_t received() const { return received_; }

  private:
    void disturb() {
        if (random_() % 16 == 0) {
            cork_ = cork_ == 0;
            setsockopt(fd_, IPPROTO_TCP, TCP_CORK, &cork_, sizeof cork_);
        }
        if (shares_ && sharer_ == 0 && sent_ > to_send_ / 3) {
            sharer_ = fork();
            if (sharer_ == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL); // also of an end that fails
            }
            while (sharer_ == 0) {
                pause();
            }
        }
    }

    const int fd_;
    const uint64_t send_seed_, receive_seed_, to_send_;
    std::minstd_rand random_;
    Shared &shared_;
    const bool client_, busy_, shares_;
    int cork_ = 0;
    pid_t sharer_ = 0; ///< a child that has the connection as well, and does nothing
    std::atomic<bool> ended_{false}, shut_{false};
    uint64_t sent_ = 0, received_ = 0;
    bool peeked_ = false;
};

/// How many bytes the client sends.
uint64_t clients_part(uint64_t bytes, bool busy) { return busy ? bytes / 3 : bytes; }

void server(Shared &shared, uint64_t seed, uint64_t bytes, unsigned way, bool tight, bool kills, bool busy) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (tight) {
        make_tight(listener);
    }
    if (busy) {
        take_urgent_in_line(listener);
    }
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    if (bind(listener, reinterpret_cast<sockaddr *>(&name), size) != 0 || listen(listener, 8) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr *>(&name), &size) != 0) {
        fail("listen", 0);
    }
    shared.port.store(ntohs(name.sin_port));
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) {
        fail("accept", 0);
    }
    End end(fd, seed + 1, seed, kills ? 0 : bytes, seed + 7, shared, false, busy);
    if (kills) {
        while (end.receive_some(0)) {
        }
    } else {
        end.run(way);
        if (end.received() != clients_part(bytes, busy)) {
            errno = 0;
            fail("the end came early", end.received());
        }
    }
    end.leave();
    close(fd);
    exit(0);
}

void client(Shared &shared, uint64_t seed, uint64_t bytes, unsigned way, bool tight, bool kills, bool busy) {
    while (shared.port.load() == 0) {
        usleep(1000);
    }
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (tight) {
        make_tight(fd);
    }
    if (busy) {
        take_urgent_in_line(fd);
    }
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(static_cast<uint16_t>(shared.port.load()));
    if (connect(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) {
        fail("connect", 0);
    }
    End end(fd, seed, seed + 1, clients_part(bytes, busy), seed + 13, shared, true, busy);
    if (kills) {
        while (end.send_some(0)) {
        }
        pause();
    }
    end.run(way);
    if (end.received() != bytes) {
        errno = 0;
        fail("the end came early", end.received());
    }
    end.leave();
    close(fd);
    exit(0);
}

template <typename Run> pid_t start(Run run) {
    const pid_t pid = fork();
    if (pid == 0) {
        run();
        _exit(3);
    }
    return pid;
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 4) {
        return 2;
    }
    const auto pairs = static_cast<unsigned>(atoi(argv[1]));
    const uint64_t bytes = strtoull(argv[2], nullptr, 10) * 1024, seed = strtoull(argv[3], nullptr, 10);
    const bool busy = argc > 4 && strcmp(argv[4], "busy") == 0, kills = argc > 4 && !busy;
    auto *shared = static_cast<Shared *>(
        mmap(nullptr, pairs * sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> servers, clients;
    for (unsigned i = 0; i < pairs; ++i) {
        const uint64_t own = seed * 1000 + i * 10;
        const bool tight = i / 3 % 2 == 0;
        servers.push_back(start([&, i] { server(shared[i], own, bytes, i % 3, tight, kills, busy); }));
        clients.push_back(start([&, i] { client(shared[i], own, bytes, i % 3, tight, kills, busy); }));
    }
    bool good = true;
    std::minstd_rand random(static_cast<unsigned>(seed));
    for (unsigned i = 0; kills && i < pairs; ++i) {
        // Some way through; every other one in the second half, so that it has made moves
        const uint64_t until = i % 2 == 0 ? bytes / 2 + random() % (bytes / 2) : random() % bytes;
        while (shared[i].accepted.load() < until && waitpid(servers[i], nullptr, WNOHANG) == 0) {
            usleep(200);
        }
        kill(clients[i], SIGKILL);
    }
    const auto one_runs = [&] {
        siginfo_t info{};
        return std::any_of(servers.begin(), servers.end(), [&](pid_t pid) {
            return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                   info.si_pid == 0;
        });
    };
    while (busy && one_runs()) {
        const auto &half = random() % 2 == 0 ? servers : clients;
        const pid_t pid = half[random() % pairs];
        kill(pid, SIGSTOP);
        usleep(500 + static_cast<useconds_t>(random() % 2500)); // a peer makes few moves alone, however long
        kill(pid, SIGCONT);
        usleep(100);
    }
    uint64_t total = 0;
    for (unsigned i = 0; i < pairs; ++i) {
        int status = 0;
        waitpid(clients[i], &status, 0);
        good = good && (kills || status == 0);
        good = good && waitpid(servers[i], &status, 0) == servers[i] && status == 0;
        total += shared[i].received.load();
        if (kills && shared[i].received.load() < shared[i].accepted.load()) {
            fprintf(stderr, "pair %u: %lu of %lu bytes that were accepted\n", i,
                    static_cast<unsigned long>(shared[i].received.load()),
                    static_cast<unsigned long>(shared[i].accepted.load()));
            good = false;
        }
    }
    printf("%s: %lu bytes received\n", good ? "right" : "WRONG", static_cast<unsigned long>(total));
    return good ? 0 : 1;
}
