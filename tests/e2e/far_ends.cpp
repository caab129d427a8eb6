// Seeded bytes over connections between two processes, whose ends say what became of them.
//
//   far_ends listen IP PORT COUNT KILOBYTES SEED [SHORT]    accepts so many connections, one after the other
//   far_ends connect IP PORT COUNT KILOBYTES SEED [SHORT]   makes them
//   far_ends relay IP PORT TO_IP TO_PORT COUNT      accepts each, connects on, and copies both directions
//
// On each connection both ends first talk in turns, then send so many kilobytes to each other at once. What
// arrives is compared byte by byte, and names must stay what they were. SHORT connections come before these,
// of one byte each way; the others follow after a while. Prints "ready" once it listens, and
// "good" at the end, with which it ends with 0.
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr int kPatienceMs = 60000;
constexpr unsigned kTurns = 30;

[[noreturn]] void fail(const char *what, uint64_t at = 0) {
    fprintf(stderr, "far_ends: %s at %lu: %s\n", what, static_cast<unsigned long>(at), strerror(errno));
    _exit(1);
}

struct Place {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    Place() = default;
    Place(const char *ip, const char *port) {
        auto *v4 = reinterpret_cast<sockaddr_in *>(&address);
        auto *v6 = reinterpret_cast<sockaddr_in6 *>(&address);
        const auto number = htons(static_cast<uint16_t>(atoi(port)));
        if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = number;
            length = sizeof *v4;
        } else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = number;
            length = sizeof *v6;
        } else {
            fail("the address");
        }
    }
    sockaddr *get() { return reinterpret_cast<sockaddr *>(&address); }
    std::string bytes() const { return {reinterpret_cast<const char *>(&address), length}; }
};

std::array<std::string, 2> names(int fd) {
    Place own, peer;
    if (getsockname(fd, own.get(), &own.length) != 0 || getpeername(fd, peer.get(), &peer.length) != 0) {
        fail("names");
    }
    return {own.bytes(), peer.bytes()};
}

int listen_at(const char *ip, const char *port) {
    Place at(ip, port);
    const int fd = socket(at.address.ss_family, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, at.get(), at.length) != 0 || listen(fd, 64) != 0) {
        fail("listen");
    }
    puts("ready");
    fflush(stdout);
    return fd;
}

int connect_to(const char *ip, const char *port) {
    Place to(ip, port);
    const int fd = socket(to.address.ss_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, to.get(), to.length) != 0) {
        fail("connect");
    }
    return fd;
}

int accept_from(int listener) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) {
        fail("accept");
    }
    return fd;
}

uint8_t byte_at(uint64_t seed, uint64_t offset) {
    uint64_t x = (seed + offset / 8) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return static_cast<uint8_t>(x >> (offset % 8 * 8));
}

/// One end; what is sent goes by the seed of its side, from the first byte on.
class End {
  public:
    End(int fd, uint64_t seed, bool client)
        : fd_(fd), sends_(seed * 2 + (client ? 1 : 0)), receives_(seed * 2 + (client ? 0 : 1)), random_(seed),
          client_(client), names_(names(fd)) {}

    /// In turns; the other end draws the same lengths.
    void talk() {
        for (unsigned turn = 0; turn < kTurns; ++turn) {
            for (const bool mine : {client_, !client_}) {
                const size_t length = 1 + random_() % 3000;
                for (size_t done = 0; done < length;) {
                    const size_t moved = mine ? send_some(length - done, 0) : receive_some(length - done, 0);
                    if (moved == 0) {
                        fail("an early end", received_);
                    }
                    done += moved;
                }
            }
        }
    }
    void stream(uint64_t bytes) {
        const uint64_t until = sent_ + bytes, receive_until = received_ + bytes;
        bool shut = false, ended = false;
        while (!shut || !ended) {
            pollfd p{fd_, static_cast<short>((ended ? 0 : POLLIN) | (shut ? 0 : POLLOUT)), 0};
            if (poll(&p, 1, kPatienceMs) != 1) {
                fail("nothing happens", received_);
            }
            if ((p.revents & POLLOUT) != 0 && !shut) {
                if (sent_ < until) {
                    send_some(std::min<uint64_t>(until - sent_, 1 + random_() % 100000), MSG_DONTWAIT);
                } else {
                    if (names(fd_) != names_) { // later there are none any more
                        errno = 0;
                        fail("other names");
                    }
                    shutdown(fd_, SHUT_WR);
                    shut = true;
                }
            }
            if ((p.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !ended) {
                const uint64_t before = received_;
                const size_t got = receive_some(1 + random_() % 100000, MSG_DONTWAIT);
                ended = got == 0 && received_ == before && !again_;
            }
        }
        if (received_ != receive_until) {
            errno = 0;
            fail("another number of bytes", received_);
        }
        close(fd_);
    }

  private:
    size_t send_some(size_t most, int flags) {
        std::vector<uint8_t> bytes(most);
        for (size_t i = 0; i < most; ++i) {
            bytes[i] = byte_at(sends_, sent_ + i);
        }
        const ssize_t n = send(fd_, bytes.data(), most, flags | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            fail("send", sent_);
        }
        sent_ += n > 0 ? static_cast<uint64_t>(n) : 0;
        return n > 0 ? static_cast<size_t>(n) : 0;
    }
    size_t receive_some(size_t most, int flags) {
        std::vector<uint8_t> bytes(most);
        const ssize_t n = recv(fd_, bytes.data(), most, flags);
        again_ = n < 0 && errno == EAGAIN;
        if (n < 0 && !again_) {
            fail("recv", received_);
        }
        for (ssize_t i = 0; i < n; ++i) {
            if (bytes[static_cast<size_t>(i)] != byte_at(receives_, received_ + static_cast<uint64_t>(i))) {
                errno = 0;
                fail("a wrong byte", received_ + static_cast<uint64_t>(i));
            }
        }
        received_ += n > 0 ? static_cast<uint64_t>(n) : 0;
        return n > 0 ? static_cast<size_t>(n) : 0;
    }

    int fd_;
    uint64_t sends_, receives_;
    std::mt19937_64 random_;
    bool client_, again_ = false;
    std::array<std::string, 2> names_;
    uint64_t sent_ = 0, received_ = 0;
};

/// One direction of a relay.
struct Pipe {
    int from, to;
    std::vector<char> held{};
    bool ended = false, shut = false;
    short wants() const { return ended || held.size() > 300000 ? 0 : POLLIN; }
    void read() {
        char bytes[65536];
        const ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) {
            fail("the relay's recv");
        }
        ended = n == 0;
        held.insert(held.end(), bytes, bytes + std::max<ssize_t>(n, 0));
    }
    void write() {
        const ssize_t n = held.empty() ? 0 : send(to, held.data(), held.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            fail("the relay's send");
        }
        held.erase(held.begin(), held.begin() + std::max<ssize_t>(n, 0));
        if (ended && held.empty() && !shut) {
            shut = true;
            shutdown(to, SHUT_WR);
        }
    }
};

void relay(int one, int two) {
    Pipe there{one, two}, back{two, one};
    while (!there.shut || !back.shut) {
        pollfd p[2] = {{one, static_cast<short>(there.wants() | (back.held.empty() ? 0 : POLLOUT)), 0},
                       {two, static_cast<short>(back.wants() | (there.held.empty() ? 0 : POLLOUT)), 0}};
        if (poll(p, 2, kPatienceMs) < 1) {
            fail("nothing to relay");
        }
        for (Pipe *each : {&there, &back}) {
            if (each->wants() != 0 && (p[each == &there ? 0 : 1].revents & (POLLIN | POLLHUP)) != 0) {
                each->read();
            }
            each->write();
        }
    }
    close(one);
    close(two);
}

/// A connection of one byte each way.
void be_short(int fd, bool client) {
    char byte = 'x';
    const auto send_byte = [&] { return send(fd, &byte, 1, MSG_NOSIGNAL) == 1; };
    const auto receive_byte = [&] { return recv(fd, &byte, 1, 0) == 1; };
    if (!(client ? send_byte() && receive_byte() : receive_byte() && send_byte())) {
        fail("a short connection");
    }
    close(fd);
}

} // namespace

int main(int argc, char **argv) {
    const std::string role = argc == 7 || argc == 8 ? argv[1] : "";
    if (role == "relay") {
        const int listener = listen_at(argv[2], argv[3]);
        for (int i = 0; i < atoi(argv[6]); ++i) {
            const int from = accept_from(listener);
            relay(from, connect_to(argv[4], argv[5]));
        }
    } else if (role == "listen" || role == "connect") {
        const bool client = role == "connect";
        const int listener = client ? -1 : listen_at(argv[2], argv[3]);
        for (int i = 0; argc == 8 && i < atoi(argv[7]); ++i) {
            be_short(client ? connect_to(argv[2], argv[3]) : accept_from(listener), client);
        }
        if (argc == 8) {
            usleep(200000); // longer than a row of short ones is remembered
        }
        for (int i = 0; i < atoi(argv[4]); ++i) {
            const int fd = client ? connect_to(argv[2], argv[3]) : accept_from(listener);
            End end(fd, strtoull(argv[6], nullptr, 10) + static_cast<uint64_t>(i), client);
            end.talk();
            end.stream(strtoull(argv[5], nullptr, 10) * 1024);
        }
    } else {
        fputs("usage: see far_ends.cpp\n", stderr);
        return 2;
    }
    puts("good");
    return 0;
}
