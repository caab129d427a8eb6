// A server, a client and a link between them for tests of the monitor, and children that are killed.
#pragma once
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>

namespace sd::test {

/// A connection of the kernel to a listener.
struct KernelConnection {
    UniqueFd client{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, server;
    explicit KernelConnection(const TestListener &listener) {
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        name.sin_port = htons(listener.port);
        REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr *>(&name), sizeof name) == 0);
        server = UniqueFd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        REQUIRE(server.get() >= 0);
    }
};

/// A server and a client process record, both played by this process, with one link between them.
struct Pair {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server{monitor}, client{monitor};
    uint32_t listener = 0;
    uint64_t link = 0;

    Pair() { announce(); }
    /// Another monitor, with these arguments.
    void restart_monitor(std::vector<std::string> arguments) {
        monitor.stop(SIGTERM);
        monitor.start(std::move(arguments));
        server.hello(monitor);
        client.hello(monitor);
        announce();
    }
    UniqueFd connect() {
        Answer a = client.channel.ask(wire::Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
        REQUIRE(a.header.status == 0);
        REQUIRE(a.fds.size() == 1);
        link = a.as<wire::ConnectReply>().link_id;
        return std::move(a.fds[0]);
    }
    /// The client sleeps on the slot, with this doorbell.
    void client_waits(LinkView view, uint32_t slot, int doorbell) {
        const uint32_t id =
            client.channel.ask(wire::Op::bell, wire::Bell{link, 0, 0}, {doorbell}).as<wire::BellReply>().id;
        view.slot(slot).side[0].control.rx_arm = uint64_t{1} << id;
        view.header().side[0].sleep_mask = uint64_t{1} << id;
    }
    void server_attach() {
        const Answer a = server.channel.ask(wire::Op::links, wire::Links{listener, 0});
        REQUIRE(a.header.status == 0);
        REQUIRE(a.as<wire::LinksReply>().count == 1);
        REQUIRE(a.as<wire::LinksReply>().link[0].link_id == link);
    }

  private:
    void announce() {
        const Answer listening = server.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
        listener = listening.as<wire::ListenReply>().listener_id;
    }
};

/// The listener's segment, as the server has it.
class Acceptors {
  public:
    explicit Acceptors(Pair &pair) {
        Answer a = pair.server.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()});
        REQUIRE(a.fds.size() == 1);
        pair.listener = a.as<wire::ListenReply>().listener_id; // another one, after a restart of the monitor
        fd_ = std::move(a.fds[0]);
        void *p = mmap(nullptr, sizeof(ListenerSegment), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
        REQUIRE(p != MAP_FAILED);
        segment_ = static_cast<ListenerSegment *>(p);
    }
    ~Acceptors() { munmap(segment_, sizeof(ListenerSegment)); }
    Acceptors(const Acceptors &) = delete;
    Acceptors &operator=(const Acceptors &) = delete;

    ListenerLink &of(uint64_t link) const {
        for (ListenerLink &place : segment_->link) {
            if (place.link_id.load() == link) {
                return place;
            }
        }
        FAIL("the listener has no such link");
        throw;
    }

  private:
    UniqueFd fd_;
    ListenerSegment *segment_ = nullptr;
};

inline UniqueFd bell() { return UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

/// Runs fn in a child, which then waits to be killed.
template <typename Fn> pid_t in_child(Fn fn) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn();
        [[maybe_unused]] ssize_t n = write(ready[1], "x", 1);
        for (;;) {
            pause();
        }
    }
    close(ready[1]);
    char c;
    REQUIRE(read(ready[0], &c, 1) == 1);
    close(ready[0]);
    return pid;
}

inline void kill_child(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

inline void syn(LinkView view, uint32_t slot) {
    view.slot(slot).identity.state = static_cast<uint32_t>(SlotState::syn);
    view.syn(0) = slot + 1;
}

} // namespace sd::test
