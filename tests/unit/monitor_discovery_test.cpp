// The TCP option by which two ends learn of each other: real BPF programs on a control group of this test's
// own, and real connections between two network namespaces. Takes root, and what the monitor needs for it.
#include "tests/support/skip.hpp"
#include "tests/unit/networks.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <netinet/tcp.h>
#include <sys/wait.h>

using namespace sd::test;
using sd::monitor::AddressMatch;
using sd::monitor::DiscoveryUnavailable;
using sd::monitor::OptionPrograms;

namespace {

std::vector<AddressMatch> everywhere() { return {AddressMatch{}}; }

struct Kernel {
    OwnGroup group;
    std::unique_ptr<OptionPrograms> programs;
    Kernel() {
        try {
            if (group.is_made()) {
                programs = std::make_unique<OptionPrograms>(group.path(), everywhere());
            }
        } catch (const DiscoveryUnavailable &) {
        }
    }
    sd_end end(const UniqueFd &socket) const {
        const auto found = programs->end_of(socket.get());
        REQUIRE(found);
        return *found;
    }
    int state(const UniqueFd &socket) const { return end(socket).state; }
};

/// Whether what follows could be tried at all: the same as what the programs need.
bool may_try() {
    static const bool may = [] {
        const Kernel kernel;
        return kernel.programs != nullptr;
    }();
    return may;
}

#define NEEDS_THE_KERNEL                                                                                     \
    if (geteuid() != 0 || !may_try()) {                                                                      \
        SKIP_TEST("it takes root, CAP_BPF, CAP_NET_ADMIN and a unified hierarchy of control groups");        \
    }

} // namespace

TEST_CASE("both ends of a connection between two network namespaces keep the same words") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a, b;
    a.join("va", "10.7.0.1/24", b, "vb", "10.7.0.2/24");
    a.give("va", "fd07::1/64");
    b.give("vb", "fd07::2/64");
    for (const char *address : {"10.7.0.2", "fd07::2"}) {
        meet(a, Place(address, 1));
        const Joined c(a, b, Place(address, 700));
        const sd_end client = kernel.end(c.client), server = kernel.end(c.server);
        REQUIRE(client.state == SD_PAIRED);
        REQUIRE(server.state == SD_PAIRED);
        REQUIRE(client.role == SD_ROLE_CONNECTED);
        REQUIRE(server.role == SD_ROLE_ACCEPTED);
        REQUIRE(client.nonce != 0);
        REQUIRE(client.nonce == server.nonce);
        REQUIRE(client.answer == server.answer);
        REQUIRE(client.answer != client.nonce);
        REQUIRE(client.own_isn == server.peer_isn);
        REQUIRE(client.peer_isn == server.own_isn);
        char byte = 'x';
        REQUIRE(send(c.client.get(), &byte, 1, 0) == 1);
        REQUIRE(recv(c.server.get(), &byte, 1, 0) == 1);
        // Each connection has words of its own.
        const UniqueFd other = connect_to(a, Place(address, 700));
        REQUIRE(kernel.end(other).nonce != client.nonce);
    }
    REQUIRE(kernel.programs->counts()[SD_SENT] == 4);
}

TEST_CASE("a listener for both families answers both") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a, b;
    a.join("va", "10.7.0.1/24", b, "vb", "10.7.0.2/24");
    meet(a, Place("10.7.0.2", 1));
    const Joined c(a, b, Place("::", 700), Place("10.7.0.2", 700));
    REQUIRE(kernel.state(c.client) == SD_PAIRED);
    REQUIRE(kernel.state(c.server) == SD_PAIRED);
}

TEST_CASE("who has no libsd sends nothing, and is sent nothing that he keeps") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a, b;
    a.join("va", "10.7.0.1/24", b, "vb", "10.7.0.2/24");
    const Place at("10.7.0.2", 700);
    meet(a, Place("10.7.0.2", 1));
    {
        const Joined c(a, b, at, at, Has::nothing, Has::libsd);
        REQUIRE_FALSE(kernel.programs->end_of(c.client.get()));
        REQUIRE_FALSE(kernel.programs->end_of(c.server.get())); // most of what a server accepts costs nothing
        REQUIRE(kernel.programs->counts()[SD_PLAIN] == 1);
        REQUIRE(kernel.programs->counts()[SD_SENT] == 0);
    }
    {
        const Joined c(a, b, at, at, Has::libsd, Has::nothing);
        REQUIRE(kernel.state(c.client) == SD_PLAIN);
        REQUIRE_FALSE(kernel.programs->end_of(c.server.get()));
    }
}

TEST_CASE("only a TCP socket that is not connected yet can be marked") {
    NEEDS_THE_KERNEL
    const Net a;
    {
        const Kernel kernel;
        const Joined c(a, a, Place("127.0.0.1", 700), Place("127.0.0.1", 700), Has::nothing, Has::nothing);
        REQUIRE(mark(c.client.get()) == EPERM);
        REQUIRE(mark(c.listener.get()) == EPERM);
        const UniqueFd udp(socket(AF_INET, SOCK_DGRAM, 0)), local(socket(AF_UNIX, SOCK_STREAM, 0));
        REQUIRE(mark(udp.get()) == EPERM);
        REQUIRE(mark(local.get()) == EPERM);
        const UniqueFd tcp = make_socket(AF_INET);
        const int on = 1;
        REQUIRE(setsockopt(tcp.get(), SD_MARK_LEVEL, SD_MARK_NAME + 1, &on, sizeof on) == -1);
        REQUIRE(errno == EPERM);
        REQUIRE(setsockopt(tcp.get(), SD_MARK_LEVEL, SD_MARK_NAME, &on, 1) == -1);
        REQUIRE(errno == EPERM);
        REQUIRE(mark(tcp.get()) == 0);
        REQUIRE(kernel.programs->end_of(tcp.get()));
        REQUIRE(mark(tcp.get(), 0) == 0);
        REQUIRE_FALSE(kernel.programs->end_of(tcp.get()));
        // Options of others are as without the program, also those that it is not shown whole.
        const std::vector<char> large(20000);
        errno = 0;
        setsockopt(tcp.get(), IPPROTO_TCP, TCP_CONGESTION, large.data(), 20000);
        REQUIRE(errno != EFAULT);
    }
    // Without the programs the kernel knows no such option.
    REQUIRE(mark(make_socket(AF_INET).get()) == ENOPROTOOPT);
}

TEST_CASE("a listener from before the programs is found once it is marked again, if it was marked once") {
    NEEDS_THE_KERNEL
    const Net a, b;
    a.join("va", "10.7.0.1/24", b, "vb", "10.7.0.2/24");
    const Place at("10.7.0.2", 700), never_at("10.7.0.2", 701);
    Kernel kernel;
    const UniqueFd listener = listen_at(b, at);
    kernel.programs.reset();
    const UniqueFd never = listen_at(b, never_at, Has::nothing);
    kernel.programs = std::make_unique<OptionPrograms>(kernel.group.path(), everywhere());
    meet(a, Place("10.7.0.2", 1));
    const auto both = [&](const UniqueFd &asked, const Place &where) {
        const UniqueFd client = connect_to(a, where), server = accept_at(asked.get());
        return std::pair(kernel.state(client), kernel.programs->end_of(server.get()));
    };
    REQUIRE(both(listener, at).second->state == SD_PAIRED); // its flag has stayed
    REQUIRE(mark(listener.get(), SD_MARK_AGAIN) == 0);
    REQUIRE(mark(listener.get(), SD_MARK_AGAIN) == 0); // by each process that has it
    const auto [client, server] = both(listener, at);
    REQUIRE(client == SD_PAIRED);
    REQUIRE(server->state == SD_PAIRED);
    REQUIRE(server->role == SD_ROLE_ACCEPTED);
    // One that no program has ever seen has not got the kernel's attention.
    REQUIRE(mark(never.get(), SD_MARK_AGAIN) == 0);
    const auto [plain, accepted] = both(never, never_at);
    REQUIRE(plain == SD_PLAIN);
    REQUIRE_FALSE(accepted);
    // Only who listens.
    REQUIRE(mark(make_socket(AF_INET).get(), SD_MARK_AGAIN) == EPERM);
}

TEST_CASE("only networks that are named are asked") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a, b;
    a.join("va", "10.7.0.1/24", b, "vb", "10.7.0.2/24");
    b.give("vb", "10.8.0.2/24");
    a.run("ip route add 10.8.0.0/24 dev va");
    meet(a, Place("10.7.0.2", 1));
    meet(a, Place("10.8.0.2", 1));
    kernel.programs->ask({*AddressMatch::parse("10.8.0.0/16")});
    {
        const Joined c(a, b, Place("0.0.0.0", 700), Place("10.7.0.2", 700));
        REQUIRE(kernel.state(c.client) == SD_FAR);
        REQUIRE_FALSE(kernel.programs->end_of(c.server.get()));
        REQUIRE(kernel.programs->counts()[SD_SENT] == 0);
    }
    const Joined c(a, b, Place("0.0.0.0", 700), Place("10.8.0.2", 700));
    REQUIRE(kernel.state(c.client) == SD_PAIRED);
    kernel.programs->ask({*AddressMatch::parse("fd00::/8")});
    REQUIRE(kernel.state(connect_to(a, Place("10.8.0.2", 700))) == SD_FAR);
}

TEST_CASE("a socket that connects again has another nonce") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a;
    const Place at("127.0.0.1", 700);
    const Joined c(a, a, at);
    const sd_end first = kernel.end(c.client);
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    REQUIRE(connect(c.client.get(), &none, sizeof none) == 0);
    REQUIRE(a.in([&] { return connect(c.client.get(), at.get(), at.length); }) == 0);
    const UniqueFd server = accept_at(c.listener.get());
    const sd_end second = kernel.end(c.client);
    REQUIRE(second.state == SD_PAIRED);
    REQUIRE(second.nonce != first.nonce);
    REQUIRE(kernel.end(server).nonce == second.nonce);
}

TEST_CASE("under SYN cookies, with MPTCP, Fast Open and MD5 there is no option, and a connection") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const Net a;
    const Place at("127.0.0.1", 700);
    SECTION("cookies") {
        a.run("echo 2 > /proc/sys/net/ipv4/tcp_syncookies");
        const Joined c(a, a, at);
        REQUIRE(kernel.state(c.client) == SD_PLAIN);
        REQUIRE_FALSE(kernel.programs->end_of(c.server.get()));
    }
    SECTION("MPTCP") {
        const UniqueFd fd(a.in([] { return socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP); }));
        if (fd) {
            REQUIRE(mark(fd.get()) == EPERM);
        }
    }
    SECTION("MD5") {
        const UniqueFd listener = a.in([&] {
            UniqueFd fd = make_socket(AF_INET);
            REQUIRE(mark(fd.get()) == 0);
            REQUIRE(bind(fd.get(), at.get(), at.length) == 0);
            return fd;
        });
        const UniqueFd client = a.in([&] { return make_socket(AF_INET); });
        REQUIRE(mark(client.get()) == 0);
        struct {
            sockaddr_storage address;
            uint8_t flags, prefix;
            uint16_t length;
            int interface;
            uint8_t key[80];
        } key{};
        key.address.ss_family = AF_INET;
        reinterpret_cast<sockaddr_in *>(&key.address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        key.length = 4;
        memcpy(key.key, "sesa", 4);
        constexpr int kMd5 = 14; // TCP_MD5SIG
        if (setsockopt(client.get(), IPPROTO_TCP, kMd5, &key, sizeof key) == 0) {
            REQUIRE(setsockopt(listener.get(), IPPROTO_TCP, kMd5, &key, sizeof key) == 0);
            REQUIRE(listen(listener.get(), 4) == 0);
            REQUIRE(connect(client.get(), at.get(), at.length) == 0);
            const UniqueFd server = accept_at(listener.get());
            REQUIRE(kernel.state(client) == SD_NO_ROOM);
            REQUIRE_FALSE(kernel.programs->end_of(server.get()));
        }
    }
}

TEST_CASE("what other programs have attached stays in force") {
    NEEDS_THE_KERNEL
    const Kernel kernel;
    const OptionPrograms other(kernel.group.path(), everywhere()); // with a key of its own
    const Net a;
    const Joined c(a, a, Place("127.0.0.1", 700));
    // There is room for one of the two.
    const auto one = kernel.programs->end_of(c.client.get()), two = other.end_of(c.client.get());
    REQUIRE(one);
    REQUIRE(two);
    REQUIRE((one->state == SD_PAIRED) != (two->state == SD_PAIRED));
}

TEST_CASE("without the rights there are no programs, and it is said which is missing") {
    NEEDS_THE_KERNEL
    const OwnGroup group;
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(3);
        }
        try {
            const OptionPrograms programs(group.path(), everywhere());
        } catch (const DiscoveryUnavailable &why) {
            _exit(std::string(why.what()) == "it takes CAP_BPF" ? 0 : 2);
        }
        _exit(1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    REQUIRE_THROWS_AS(OptionPrograms("/sys/no-such-group", everywhere()), DiscoveryUnavailable);
}
