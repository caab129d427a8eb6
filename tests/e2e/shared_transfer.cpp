// Seeded bytes both ways over connections whose ends several processes have, which take turns to send and to
// receive, while others come and go.
//
//   shared_transfer CONNECTIONS SEED    prints "there SERVER CLIENT" (pids), goes on until its standard input
//                                       ends, then prints "well BYTES" and ends with 0 if all was right
//
// Server and client are families of their own. Each end is used by its process, in a thread for each
// connection, by a child, and, of the server, by a process that was passed it (SCM_RIGHTS). A lock in shared
// memory says who sends or receives next, and from which byte on. Bystanders are children that peek, poll,
// send nothing and fork; they are killed at random, wherever they are.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <random>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr unsigned kMost = 64;

/// One direction: who has the lock works on it.
struct Direction {
    pthread_mutex_t sending, receiving;
    std::atomic<uint64_t> sent, received;
    std::atomic<bool> has_ended, is_read;
};
struct Shared {
    std::atomic<uint32_t> port;
    std::atomic<bool> stop;
    std::atomic<unsigned> bystanders;
    Direction direction[kMost][2]; ///< 0: from the client
};

uint8_t byte_at(uint64_t seed, uint64_t offset) {
    uint64_t x = (seed + offset / 8) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return static_cast<uint8_t>(x >> (offset % 8 * 8));
}

[[noreturn]] void fail(const char *what, unsigned connection, uint64_t at) {
    fprintf(stderr, "%s, connection %u, at %lu: %s\n", what, connection, static_cast<unsigned long>(at),
            strerror(errno));
    kill(0, SIGTERM); // the whole group, which is of its own
    _exit(1);
}

void make_lock(pthread_mutex_t &lock) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&lock, &how);
}

class End {
  public:
    End(Shared &shared, unsigned connection, unsigned side, int fd, uint64_t seed)
        : shared_(shared), connection_(connection), side_(side), fd_(fd), seed_(seed + connection * 1000u),
          random_(seed + connection * 7 + static_cast<unsigned>(getpid()) * 31u),
          out_(shared.direction[connection][side]), in_(shared.direction[connection][1 - side]) {}

    /// False: this direction has ended.
    bool send_some() {
        if (out_.has_ended) {
            return false;
        }
        if (pthread_mutex_trylock(&out_.sending) != 0) {
            return true;
        }
        if (shared_.stop && !out_.has_ended) {
            if (shutdown(fd_, SHUT_WR) != 0) {
                fail("shutdown", connection_, out_.sent);
            }
            out_.has_ended = true;
        } else if (!out_.has_ended) {
            std::vector<uint8_t> bytes(1 + random_() % (random_() % 8 == 0 ? 60000 : 900));
            const uint64_t at = out_.sent;
            for (size_t i = 0; i < bytes.size(); ++i) {
                bytes[i] = byte_at(seed_ + side_, at + i);
            }
            const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EINTR) {
                fail("send", connection_, at);
            }
            if (n > 0) {
                out_.sent += static_cast<uint64_t>(n);
                moved_ = true;
            }
        }
        pthread_mutex_unlock(&out_.sending);
        return true;
    }

    /// False: the other end's direction has ended, and all of it was read.
    bool receive_some() {
        if (in_.is_read) {
            return false;
        }
        if (pthread_mutex_trylock(&in_.receiving) != 0) {
            return true;
        }
        if (!in_.is_read) {
            std::vector<uint8_t> bytes(1 + random_() % (random_() % 4 == 0 ? 100000 : 2000));
            const uint64_t at = in_.received;
            const int wait = random_() % 16 == 0 && !shared_.stop ? 0 : MSG_DONTWAIT;
            const ssize_t n = recv(fd_, bytes.data(), bytes.size(), wait);
            if (n < 0 && errno != EAGAIN && errno != EINTR) {
                fail("recv", connection_, at);
            }
            for (ssize_t i = 0; i < n; ++i) {
                if (bytes[static_cast<size_t>(i)] != byte_at(seed_ + 1 - side_, at + static_cast<uint64_t>(i))) {
                    fail("a wrong byte", connection_, at + static_cast<uint64_t>(i));
                }
            }
            if (n == 0) {
                if (at != in_.sent) {
                    fail("an early end", connection_, at);
                }
                in_.is_read = true;
            }
            if (n > 0) {
                in_.received += static_cast<uint64_t>(n);
                moved_ = true;
            }
        }
        pthread_mutex_unlock(&in_.receiving);
        return true;
    }

    void work() {
        for (bool sends = true, receives = true; sends || receives;) {
            moved_ = false;
            sends = sends && send_some();
            receives = receives && receive_some();
            if (!moved_) {
                pollfd p{fd_, static_cast<short>(POLLIN | (random_() % 4 == 0 ? POLLOUT : 0)), 0};
                poll(&p, 1, static_cast<int>(random_() % 5));
            }
        }
    }

    /// Whatever takes a token, and no byte.
    void disturb(std::mt19937_64 &random) const {
        char bytes[64];
        pollfd p{fd_, POLLIN | POLLOUT, 0};
        switch (random() % 4) {
        case 0:
            (void)!recv(fd_, bytes, 1 + random() % sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
            break;
        case 1:
            (void)!send(fd_, bytes, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        case 2:
            poll(&p, 1, static_cast<int>(random() % 3));
            break;
        default:
            p.events = POLLPRI;
            poll(&p, 1, 1);
            break;
        }
    }

  private:
    Shared &shared_;
    unsigned connection_, side_;
    int fd_;
    uint64_t seed_;
    std::mt19937_64 random_;
    Direction &out_, &in_;
    bool moved_ = false;
};

/// For a child, first of all.
void die_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); // it was killed before
    }
}

[[noreturn]] void stand_by(const std::vector<End> &ends, uint64_t seed, pid_t parent) {
    die_with(parent);
    std::mt19937_64 random(seed);
    for (unsigned depth = 0;;) {
        ends[random() % ends.size()].disturb(random);
        if (depth < 2 && random() % 50 == 0) {
            const pid_t self = getpid();
            const uint64_t seed_of_child = random();
            if (const pid_t child = fork(); child == 0) {
                die_with(self);
                random.seed(seed_of_child);
                ++depth;
            } else if (child > 0) {
                usleep(static_cast<useconds_t>(random() % 20000));
                kill(child, SIGKILL);
                waitpid(child, nullptr, 0);
            }
        }
    }
}

void keep_bystanders(Shared &shared, const std::vector<End> &ends, uint64_t seed) {
    std::mt19937_64 random(seed);
    const pid_t self = getpid();
    while (!shared.stop) {
        const pid_t child = fork();
        if (child == 0) {
            stand_by(ends, random(), self);
        }
        usleep(static_cast<useconds_t>(random() % 40000));
        if (child > 0) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
            ++shared.bystanders;
        }
    }
}

/// An end's process: its child works beside it.
[[noreturn]] void use(Shared &shared, std::vector<End> ends, uint64_t seed) {
    const pid_t self = getpid(), child = fork();
    if (child == 0) {
        die_with(self);
    }
    std::vector<std::thread> threads;
    threads.reserve(ends.size() + 1);
    for (const End &each : ends) {
        threads.emplace_back([end = each]() mutable { end.work(); });
    }
    if (child > 0) {
        threads.emplace_back([&] { keep_bystanders(shared, ends, seed); });
    }
    for (std::thread &each : threads) {
        each.join();
    }
    int status = 0;
    if (child == 0) {
        _exit(0);
    }
    waitpid(child, &status, 0);
    _exit(status == 0 ? 0 : 1);
}

void pass(int to, int fd) {
    char byte = 'x';
    iovec part{&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(to, &m, 0) != 1) {
        fail("passing", 0, 0);
    }
}

int take(int from) {
    char byte;
    iovec part{&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    const cmsghdr *c = recvmsg(from, &m, MSG_CMSG_CLOEXEC) == 1 ? CMSG_FIRSTHDR(&m) : nullptr;
    int fd = -1;
    if (c == nullptr) {
        fail("taking", 0, 0);
    }
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/// Was passed the server's ends.
[[noreturn]] void be_helper(Shared &shared, unsigned count, uint64_t seed, int from) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<End> ends;
    for (unsigned i = 0; i < count; ++i) {
        ends.emplace_back(shared, i, 1, take(from), seed);
    }
    std::vector<std::thread> threads;
    threads.reserve(ends.size());
    for (End &each : ends) {
        threads.emplace_back([&each] { each.work(); });
    }
    for (std::thread &each : threads) {
        each.join();
    }
    _exit(0);
}

[[noreturn]] void be_server(Shared &shared, unsigned count, uint64_t seed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        _exit(2);
    }
    const pid_t helper = fork(); // before it has anything of ours: a family of its own
    if (helper == 0) {
        be_helper(shared, count, seed, pair[1]);
    }
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    socklen_t size = sizeof name;
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr *>(&name), &size) != 0) {
        _exit(2);
    }
    shared.port = ntohs(name.sin_port);
    std::vector<End> ends;
    for (unsigned i = 0; i < count; ++i) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            fail("accept", i, 0);
        }
        ends.emplace_back(shared, i, 1, fd, seed);
        pass(pair[0], fd);
    }
    use(shared, std::move(ends), seed + 1);
}

[[noreturn]] void be_client(Shared &shared, unsigned count, uint64_t seed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (shared.port == 0) {
        usleep(1000);
    }
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(static_cast<uint16_t>(shared.port));
    std::vector<End> ends;
    for (unsigned i = 0; i < count; ++i) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) {
            fail("connect", i, 0);
        }
        ends.emplace_back(shared, i, 0, fd, seed);
    }
    use(shared, std::move(ends), seed + 2);
}

} // namespace

int main(int argc, char **argv) {
    const unsigned count = argc == 3 ? std::min(kMost, static_cast<unsigned>(atoi(argv[1]))) : 0;
    if (count == 0) {
        return 2;
    }
    const uint64_t seed = strtoull(argv[2], nullptr, 10);
    setpgid(0, 0);
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 2;
    }
    Shared &shared = *new (memory) Shared{};
    for (auto &each : shared.direction) {
        for (Direction &way : each) {
            make_lock(way.sending);
            make_lock(way.receiving);
        }
    }
    const pid_t server = fork();
    if (server == 0) {
        be_server(shared, count, seed);
    }
    const pid_t client = fork();
    if (client == 0) {
        be_client(shared, count, seed);
    }
    const auto all_began = [&] {
        return std::all_of(shared.direction, shared.direction + count, [](const Direction(&both)[2]) {
            return both[0].received > 0 && both[1].received > 0;
        });
    };
    while (!all_began()) {
        usleep(1000);
    }
    printf("there %d %d\n", server, client);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    shared.stop = true;
    int status[2] = {-1, -1};
    waitpid(server, &status[0], 0);
    waitpid(client, &status[1], 0);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; ++i) {
        for (const Direction &way : shared.direction[i]) {
            if (way.sent != way.received || !way.is_read) {
                fprintf(stderr, "connection %u: %lu sent, %lu received\n", i,
                        static_cast<unsigned long>(way.sent), static_cast<unsigned long>(way.received));
                return 1;
            }
            bytes += way.received;
        }
    }
    if (status[0] != 0 || status[1] != 0) {
        fprintf(stderr, "server %d, client %d\n", status[0], status[1]);
        return 1;
    }
    printf("well %lu, bystanders killed: %u\n", static_cast<unsigned long>(bytes), shared.bystanders.load());
    return 0;
}
