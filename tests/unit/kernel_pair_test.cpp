// Pairs of kernel sockets: names, data both ways, half-close, reset; with the right to craft them and
// without.
#include "libsd/control/kernel_sockets/kernel_pair.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/tcp.h>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace sd;

namespace {

SlotAddress address(unsigned family, const char *text, uint16_t port) {
    SlotAddress a{};
    a.family = static_cast<uint16_t>(family);
    a.port = port;
    in_addr v4{};
    if (inet_pton(AF_INET, text, &v4) == 1)
        set_v4(a.ip, v4.s_addr);
    else
        REQUIRE(inet_pton(AF_INET6, text, a.ip) == 1);
    return a;
}

std::string name_of(int fd, decltype(getsockname) *ask) {
    sockaddr_storage s{};
    socklen_t n = sizeof s;
    REQUIRE(ask(fd, reinterpret_cast<sockaddr *>(&s), &n) == 0);
    char text[INET6_ADDRSTRLEN];
    const bool v4 = s.ss_family == AF_INET;
    inet_ntop(s.ss_family,
              v4 ? static_cast<void *>(&reinterpret_cast<sockaddr_in &>(s).sin_addr)
                 : &reinterpret_cast<sockaddr_in6 &>(s).sin6_addr,
              text, sizeof text);
    return std::string(text) + " " + std::to_string(ntohs(reinterpret_cast<sockaddr_in &>(s).sin_port));
}

size_t open_numbers() {
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        ++n;
    closedir(d);
    return n;
}

std::string read_all(int fd) {
    std::string all;
    char chunk[65536];
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) > 0;)
        all.append(chunk, static_cast<size_t>(n));
    return all;
}

/// Much more than the buffers hold, both ways at once, then each way ended by itself.
void exercise(const int fd[2]) {
    std::string data(3 << 20, '\0');
    for (size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<char>(i * 2654435761u >> 13);
    const auto send_all = [&data](int to) {
        for (size_t done = 0; done < data.size();) {
            const ssize_t n = send(to, data.data() + done, data.size() - done, MSG_NOSIGNAL);
            if (n <= 0)
                break;
            done += static_cast<size_t>(n);
        }
    };
    std::string got[2];
    std::thread there([&] { send_all(fd[0]), shutdown(fd[0], SHUT_WR); });
    std::thread back([&] { send_all(fd[1]); });
    std::thread reader([&] { got[1] = read_all(fd[1]); });
    got[0].resize(data.size());
    CHECK(recv(fd[0], got[0].data(), data.size(), MSG_WAITALL) == static_cast<ssize_t>(data.size()));
    there.join();
    back.join();
    reader.join();
    CHECK(got[0] == data);
    CHECK(got[1] == data);
    // One way has ended, the other has not.
    CHECK(send(fd[1], "more", 4, 0) == 4);
    char more[8];
    CHECK(recv(fd[0], more, sizeof more, 0) == 4);
    CHECK(shutdown(fd[1], SHUT_WR) == 0);
    CHECK(recv(fd[0], more, sizeof more, 0) == 0);
}

void reset(const int fd[2]) {
    const linger hard{1, 0};
    CHECK(setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
    CHECK(close(fd[1]) == 0);
    char byte;
    CHECK(recv(fd[0], &byte, 1, 0) == -1);
    CHECK(errno == ECONNRESET);
    CHECK(close(fd[0]) == 0);
}

struct Ends {
    unsigned family;
    const char *local, *peer;
};
constexpr Ends kEnds[] = {{AF_INET, "127.0.0.1", "127.0.0.1"},
                          {AF_INET, "127.0.0.1", "127.3.2.1"},
                          {AF_INET6, "::1", "::1"},
                          {AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.1"}};

/// A listener that holds a port, with a connection of its own.
struct Busy {
    explicit Busy(const SlotAddress &a) {
        fd = socket(a.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in6 name{};
        socklen_t n = sizeof name;
        if (a.family == AF_INET) {
            auto &v4 = reinterpret_cast<sockaddr_in &>(name);
            v4.sin_family = AF_INET;
            memcpy(&v4.sin_addr, a.ip + 12, 4);
        } else {
            name.sin6_family = AF_INET6;
            memcpy(&name.sin6_addr, a.ip, 16);
        }
        REQUIRE(bind(fd, reinterpret_cast<sockaddr *>(&name),
                     a.family == AF_INET ? sizeof(sockaddr_in) : sizeof name) == 0);
        REQUIRE(listen(fd, 8) == 0);
        REQUIRE(getsockname(fd, reinterpret_cast<sockaddr *>(&name), &n) == 0);
        port = ntohs(name.sin6_port);
        client = socket(a.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(connect(client, reinterpret_cast<sockaddr *>(&name), n) == 0);
    }
    ~Busy() {
        close(fd);
        close(client);
    }
    int fd, client;
    uint16_t port;
};

void check_pairs(bool exact) {
    for (const Ends &e : kEnds) {
        CAPTURE(e.local, e.peer, exact);
        Busy busy(address(e.family, e.peer, 0));
        const SlotAddress peer = address(e.family, e.peer, busy.port);
        for (const bool as_client : {true, false}) {
            const uint16_t port =
                // Names that have just been used are kept by the kernel for a minute
                as_client ? 43210 : 43211;
            const SlotAddress local = address(e.family, e.local, port);
            const size_t before = open_numbers();
            int fd[2] = {-1, -1};
            REQUIRE(kernel_pair(as_client ? local : peer, as_client ? peer : local, e.family, fd) == 0);
            CHECK(open_numbers() == before + 2);
            CHECK(name_of(fd[0], getsockname) == name_of(fd[1], getpeername));
            CHECK(name_of(fd[1], getsockname) == name_of(fd[0], getpeername));
            const std::string here = std::string(as_client ? e.local : e.peer),
                              there = as_client ? e.peer : e.local;
            CHECK(name_of(fd[0], getsockname).substr(0, here.size() + 1) == here + " ");
            CHECK(name_of(fd[0], getpeername).substr(0, there.size() + 1) == there + " ");
            if (exact) {
                CHECK(name_of(fd[0], getsockname) == here + " " + std::to_string(as_client ? port : busy.port));
                CHECK(name_of(fd[0], getpeername) == there + " " + std::to_string(as_client ? busy.port : port));
            }
            for (int end : {fd[0], fd[1]}) {
                CHECK((fcntl(end, F_GETFD) & FD_CLOEXEC) != 0);
                CHECK((fcntl(end, F_GETFL) & O_NONBLOCK) == 0);
            }
            exercise(fd);
            close(fd[0]);
            close(fd[1]);
            SlotAddress again = local;
            again.port = static_cast<uint16_t>(43220 + as_client);
            REQUIRE(kernel_pair(again, peer, e.family, fd) == 0);
            reset(fd);
            CHECK(open_numbers() == before);
        }
    }
}

enum class End { first, second, first_alone, second_by_reset };

void end_pair(const int fd[2], End how) {
    const linger hard{1, 0};
    switch (how) {
    case End::first:
        close(fd[0]);
        close(fd[1]);
        break;
    case End::second:
        close(fd[1]);
        close(fd[0]);
        break;
    case End::first_alone: // the caller has the other for longer
        close(fd[0]);
        break;
    case End::second_by_reset: // answers the end of the first
        close(fd[0]);
        setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(fd[1]);
        break;
    }
}

/// A pair of the same names again and again: the kernel keeps those of ended connections in various states.
void check_again(uint16_t port) {
    for (const Ends &e : kEnds) {
        Busy busy(address(e.family, e.peer, 0));
        const SlotAddress peer = address(e.family, e.peer, busy.port), local = address(e.family, e.local, port);
        std::vector<int> kept;
        for (unsigned i = 0; i < 24; ++i) {
            const auto how = static_cast<End>(i % 4);
            const bool turned = i / 4 % 2 != 0;
            CAPTURE(e.local, e.peer, i);
            int fd[2];
            REQUIRE(kernel_pair(turned ? peer : local, turned ? local : peer, e.family, fd) == 0);
            char byte = 0;
            CHECK(write(fd[0], "x", 1) == 1);
            CHECK(read(fd[1], &byte, 1) == 1);
            end_pair(fd, how);
            if (how == End::first_alone)
                kept.push_back(fd[1]);
        }
        for (const int fd : kept)
            close(fd);
    }
}

bool may_craft() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    const bool may = setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) == 0;
    close(fd);
    return may;
}

} // namespace

TEST_CASE("with the right to craft connections the names are those asked for") {
    if (!may_craft())
        SKIP_TEST("needs CAP_NET_ADMIN");
    check_pairs(true);
    check_again(43230);
}

TEST_CASE("without it the addresses are") {
    // Taken away from this thread for a while.
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct had[2]{}, now[2]{};
    REQUIRE(syscall(SYS_capget, &header, had) == 0);
    memcpy(now, had, sizeof now);
    now[0].effective &= ~(1u << CAP_NET_ADMIN);
    REQUIRE(syscall(SYS_capset, &header, now) == 0);
    REQUIRE_FALSE(may_craft());
    check_pairs(false);
    check_again(43231);
    REQUIRE(syscall(SYS_capset, &header, had) == 0);
}

TEST_CASE("failures leave nothing behind") {
    const size_t before = open_numbers();
    int fd[2];
    // No address of this host.
    CHECK(kernel_pair(address(AF_INET, "192.0.2.1", 1000), address(AF_INET, "192.0.2.2", 2000), AF_INET, fd) < 0);
    CHECK(open_numbers() == before);
}
