// The directory says what the kernel says: a listener's entry ends with its socket, not with the process that
// registered it. And what proves that somebody may see the directory of a network namespace.
#include "monitor/kernel/listening.hpp"
#include "monitor/records/listener.hpp"
#include "tests/unit/monitor_client.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <memory>
#include <sched.h>

using namespace sd;
using namespace sd::test;

namespace {

constexpr wire::Listen kBacklog{16, 0};

uint32_t announce(TestProcess &process, int socket) {
    const Answer a = process.channel.ask(wire::Op::listen, kBacklog, {socket});
    REQUIRE(a.header.status == 0);
    return a.as<wire::ListenReply>().listener_id;
}

TestLink connect_to(TestProcess &client, uint32_t listener) {
    Answer a = client.channel.ask(wire::Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
    REQUIRE(a.header.status == 0);
    REQUIRE(a.fds.size() == 1);
    return TestLink(std::move(a.fds[0]));
}

bool is_closed(const TestLink &link) {
    return (link.view.header().side[1].flags.load() & kLinkListenerClosed) != 0;
}

int check(TestProcess &client, uint32_t listener) {
    return client.channel.ask(wire::Op::check, wire::ListenerRef{listener, 0}).header.status;
}

sockaddr_in name_of(const char *host, uint16_t port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(port);
    REQUIRE(inet_pton(AF_INET, host, &name.sin_addr) == 1);
    return name;
}

UniqueFd listen_at(const char *host, uint16_t port, bool share = false) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in name = name_of(host, port);
    const int on = 1;
    if (share) {
        REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    }
    REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
    REQUIRE(::listen(fd.get(), 16) == 0);
    return fd;
}

/// How many entries there are for a port.
unsigned entries(const Directory *directory, uint16_t port) {
    unsigned n = 0;
    for (const DirectoryEntry &entry : directory->entry) {
        n += entry.id.load() != 0 && entry.port == port;
    }
    return n;
}

int hello_with(const MonitorProcess &monitor, int proof) {
    const TestSegment segment;
    Channel channel(monitor);
    const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
    return channel.ask(wire::Op::hello, body, {segment.fd.get(), proof}).header.status;
}

} // namespace

TEST_CASE("an entry ends with the kernel's socket, although the channel stays") {
    const MonitorProcess monitor;
    TestProcess server(monitor), client(monitor);
    TestListener socket;
    const uint32_t id = announce(server, socket.fd.get());
    const Directory *directory = client.directory();
    REQUIRE(find_entry(directory, socket.port) != nullptr);
    const TestLink link = connect_to(client, id);
    link.view.slot(5).identity.state.store(static_cast<uint32_t>(SlotState::syn));
    link.view.syn(0).store(6);
    socket.fd.reset();
    REQUIRE(eventually([&] { return find_entry(directory, socket.port) == nullptr; }));
    REQUIRE(eventually([&] { return is_closed(link); }));
    REQUIRE(eventually([&] {
        return link.view.slot(5).identity.state.load() == static_cast<uint32_t>(SlotState::refused);
    }));
    REQUIRE(client.channel.ask(wire::Op::connect, wire::Connect{id, wire::kLoopbackAddresses}).header.status ==
            -ENOENT);
    REQUIRE(server.channel.ask(wire::Op::unlisten, wire::ListenerRef{id, 0}).header.status == -ENOENT);
}

TEST_CASE("somebody else who still has the socket keeps the entry") {
    const MonitorProcess monitor;
    TestProcess server(monitor), client(monitor);
    TestListener socket;
    const uint32_t id = announce(server, socket.fd.get());
    UniqueFd copy(dup(socket.fd.get()));
    socket.fd.reset();
    REQUIRE(check(client, id) == 0);
    REQUIRE(find_entry(client.directory(), socket.port) != nullptr);
    copy.reset();
    REQUIRE(check(client, id) == -ENOENT);
    REQUIRE(find_entry(client.directory(), socket.port) == nullptr);
}

// Without any waiting: when the second one has its answer, nobody is led to the first.
TEST_CASE("whoever registers a listener takes the place of one that ended") {
    const MonitorProcess monitor;
    TestProcess first(monitor), second(monitor), client(monitor);
    TestListener socket(true);
    const TestLink link = connect_to(client, announce(first, socket.fd.get()));
    const Directory *directory = client.directory();
    const auto check_second = [&](const char *host) {
        const UniqueFd other = listen_at(host, socket.port);
        const uint32_t id = announce(second, other.get());
        REQUIRE(is_closed(link));
        REQUIRE(entries(directory, socket.port) == 1);
        REQUIRE(find_entry(directory, socket.port)->id.load() == id);
    };
    SECTION("at its address") {
        socket.fd.reset();
        check_second("127.0.0.1");
    }
    SECTION("at all addresses") {
        socket.fd.reset();
        check_second("0.0.0.0");
    }
    SECTION("although its socket lives, and listens elsewhere") {
        sockaddr nothing{};
        nothing.sa_family = AF_UNSPEC;
        REQUIRE(connect(socket.fd.get(), &nothing, sizeof nothing) == 0);
        REQUIRE(::listen(socket.fd.get(), 16) == 0);
        check_second("127.0.0.1");
    }
}

TEST_CASE("a socket that listens elsewhere now is another listener") {
    const MonitorProcess monitor;
    TestProcess server(monitor), client(monitor);
    TestListener socket(true);
    const uint32_t id = announce(server, socket.fd.get());
    sockaddr nothing{};
    nothing.sa_family = AF_UNSPEC;
    REQUIRE(connect(socket.fd.get(), &nothing, sizeof nothing) == 0);
    REQUIRE(::listen(socket.fd.get(), 16) == 0);
    REQUIRE(check(client, id) == -ENOENT);
    REQUIRE(announce(server, socket.fd.get()) != id);
    REQUIRE(find_entry(client.directory(), socket.port) == nullptr);
}

TEST_CASE("listeners that share an address, or have different ones, leave each other alone") {
    const MonitorProcess monitor;
    TestProcess server(monitor);
    uint16_t port;
    {
        const TestListener free;
        port = free.port;
    }
    const UniqueFd one = listen_at("127.0.0.1", port, true), two = listen_at("127.0.0.1", port, true),
                   three = listen_at("127.0.0.2", port);
    for (const UniqueFd *fd : {&one, &two, &three}) {
        announce(server, fd->get());
    }
    REQUIRE(entries(server.directory(), port) == 3);
    for (const DirectoryEntry &entry : server.directory()->entry) {
        if (entry.id.load() != 0 && entry.port == port) {
            REQUIRE(entry.owner == geteuid());
            uint64_t cookies[3];
            socklen_t length = sizeof cookies[0];
            getsockopt(one.get(), SOL_SOCKET, SO_COOKIE, &cookies[0], &length);
            getsockopt(two.get(), SOL_SOCKET, SO_COOKIE, &cookies[1], &length);
            getsockopt(three.get(), SOL_SOCKET, SO_COOKIE, &cookies[2], &length);
            REQUIRE((entry.cookie == cookies[0] || entry.cookie == cookies[1] || entry.cookie == cookies[2]));
        }
    }
}

TEST_CASE("only a TCP socket proves a network namespace") {
    const MonitorProcess monitor;
    for (const int family : {AF_INET, AF_INET6}) {
        const UniqueFd tcp(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        REQUIRE(tcp);
        REQUIRE(hello_with(monitor, tcp.get()) == 0);
    }
    const UniqueFd datagram(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
        local(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        packets(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)),
        netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0)), event(eventfd(0, EFD_CLOEXEC));
    for (const UniqueFd *fd : {&datagram, &local, &packets, &netlink, &event}) {
        REQUIRE(*fd);
        REQUIRE(hello_with(monitor, fd->get()) == -EINVAL);
    }
}

// A process in a namespace with nothing in it, which the monitor's socket can be reached from.
TEST_CASE("a channel that the monitor made opens no network namespace") {
    const MonitorProcess monitor;
    TestProcess parent(monitor);
    const wire::Fork none{};
    const Answer made = parent.channel.ask(wire::Op::fork, none);
    REQUIRE(made.header.status == 0);
    REQUIRE(made.fds.size() == 1);
    REQUIRE(hello_with(monitor, made.fds[0].get()) == -EINVAL);

    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    Channel door(monitor), answers{UniqueFd(ends[0])};
    const UniqueFd theirs(ends[1]);
    wire::Header header{};
    header.magic = wire::kMagic;
    header.version = wire::kVersion;
    header.op = static_cast<uint16_t>(wire::Op::enter);
    header.sequence = wire::kNoAnswer;
    header.fds = 1;
    REQUIRE(door.raw(&header, sizeof header, {theirs.get()}));
    const Answer entered = answers.answer();
    REQUIRE(entered.header.status == 0);
    REQUIRE(entered.fds.size() == 1);
    REQUIRE(hello_with(monitor, entered.fds[0].get()) == -EINVAL);
}

// What it inherited its channel with was not its own doing.
TEST_CASE("a child that goes to another network namespace reaches no listener of the former") {
    if (geteuid() != 0) {
        WARN("not root: skipped");
        return;
    }
    const MonitorProcess monitor;
    TestProcess server(monitor), parent(monitor);
    TestListener socket;
    const wire::Connect listener{announce(server, socket.fd.get()), wire::kLoopbackAddresses};
    const wire::Fork none{};
    Answer made = parent.channel.ask(wire::Op::fork, none);
    REQUIRE(made.header.status == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        Channel channel(std::move(made.fds[0]));
        channel.tell(wire::Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0});
        const bool before = channel.ask(wire::Op::connect, listener).header.status == 0;
        if (unshare(CLONE_NEWNET) != 0) {
            _exit(2);
        }
        const int after = channel.ask(wire::Op::connect, listener).header.status;
        _exit(before && after == -EXDEV ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(status == 0);
}

namespace {

/// A socket of a network namespace that nothing else is in.
UniqueFd socket_elsewhere() {
    const UniqueFd here(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    REQUIRE(unshare(CLONE_NEWNET) == 0);
    UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(setns(here.get(), CLONE_NEWNET) == 0);
    return made;
}

void go_to(TestProcess &process, const UniqueFd &proof) {
    const wire::Hello again{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
    const Answer a = process.channel.ask(wire::Op::hello, again, {process.segment.fd.get(), proof.get()});
    REQUIRE(a.header.status == 0);
}

} // namespace

TEST_CASE("a listener stays with a process that has left its namespace, whoever else leaves that") {
    if (geteuid() != 0) {
        WARN("not root: skipped");
        return;
    }
    const MonitorProcess monitor;
    TestProcess witness(monitor);
    TestListener socket;
    {
        TestProcess server(monitor);
        const uint32_t id = announce(server, socket.fd.get());
        go_to(server, socket_elsewhere());
        witness.channel.close(); // nobody is in the namespace any more
        TestProcess(monitor).channel.close();
        REQUIRE(server.channel.ask(wire::Op::links, wire::Links{id, 0}).header.status == 0);
        REQUIRE(server.channel.ask(wire::Op::fork, wire::Fork{}).header.status == 0);
    }
    REQUIRE(announce(*std::make_unique<TestProcess>(monitor), socket.fd.get()) != 0);
}

TEST_CASE("of the namespaces that a process goes through, the monitor keeps one") {
    if (geteuid() != 0) {
        WARN("not root: skipped");
        return;
    }
    const MonitorProcess monitor;
    TestProcess traveller(monitor);
    const auto descriptors = [&] { return descriptor_paths(monitor.pid).size(); };
    const size_t before = descriptors();
    for (int i = 0; i < 20; ++i) {
        go_to(traveller, socket_elsewhere());
    }
    REQUIRE(descriptors() <= before + 5);
}

TEST_CASE("who asks about many listeners of a port has the kernel list them once") {
    const UniqueFd first = listen_at("127.0.0.1", 0, true);
    uint64_t netns = 0, cookie = 0;
    socklen_t length = sizeof netns;
    REQUIRE(getsockopt(first.get(), SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0);
    netns = monitor::netns_cookie(first.get());
    monitor::ListenProof proof;
    Cause cause{};
    REQUIRE(monitor::examine_listener(first.get(), proof, cause) == 0);
    monitor::ListeningSockets sockets;
    const monitor::Listening found = sockets.find(proof.address, cookie, netns);
    REQUIRE(found.known);
    CHECK(found.inode != 0);
    const UniqueFd second = listen_at("127.0.0.1", proof.address.port, true);
    uint64_t later = 0;
    REQUIRE(getsockopt(second.get(), SOL_SOCKET, SO_COOKIE, &later, &length) == 0);
    CHECK(sockets.find(proof.address, later, netns).inode == 0); // it came after the look
    CHECK(sockets.find(proof.address, cookie, netns).inode == found.inode);
    CHECK(monitor::look_up_listening(proof.address, later, netns).inode != 0);
}
