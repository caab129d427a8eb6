// Children that a real sd-monitor was told of before their parent made them (fork_next).
#include "tests/unit/monitor_pair.hpp"

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

constexpr unsigned kOfd = 2, kSlot = 1;

/// A server with an open connection, and the channel of the child it will make next.
struct Parent : Pair {
    TestLink shared{connect()};
    uint64_t child = 0;
    Channel inherited;

    Parent() {
        server_attach();
        server.segment.open(kOfd, link, kSlot, 1);
        shared.view.slot(kSlot).identity.state = static_cast<uint32_t>(SlotState::accepted);
        server.segment.view.proc(1).state = 1;
        wire::ForkNext first{};
        first.next.segments = 1;
        first.next.child_in[0] = {server.id, 1, 0};
        Answer made = server.channel.ask(Op::fork_next, first);
        REQUIRE(made.header.status == 0);
        child = made.as<wire::ForkReply>().client_id;
        inherited = Channel(std::move(made.fds.at(0)));
    }
    void fill_record() {
        server.segment.view.proc(1).held[0] = server.segment.view.proc(0).held[0].load();
        server.segment.view.header().forks.fetch_add(1);
    }
    wire::ForkNext makes_it() const {
        wire::ForkNext message{};
        message.child = child;
        return message;
    }
    bool child_speaks() { return inherited.tell(Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0}); }
    int child_leaves_listener() {
        return inherited.ask(Op::unlisten, wire::ListenerRef{listener, 0}).header.status;
    }
    uint32_t flags() const { return shared.view.slot(kSlot).side[1].control.flags; }
};

} // namespace

TEST_CASE("a child made ahead is heard before its parent's word for it, which came first, and lives when the parent is gone") {
    Parent p;
    p.fill_record();
    kill(p.monitor.pid, SIGSTOP);
    REQUIRE(p.child_speaks());
    REQUIRE(p.server.channel.tell(Op::fork_next, p.makes_it()));
    p.server.channel.close();
    kill(p.monitor.pid, SIGCONT);
    REQUIRE(eventually([&] { return p.server.segment.view.proc(0).held[0] == 0; })); // the parent is buried
    REQUIRE(p.flags() == 0);
    REQUIRE(find_entry(p.client.directory(), p.socket.port) != nullptr);
    REQUIRE(p.child_leaves_listener() == 0);
    REQUIRE(find_entry(p.client.directory(), p.socket.port) == nullptr);
    p.inherited.close();
    REQUIRE(eventually([&] { return (p.flags() & kFlagDead) != 0; }));
}

TEST_CASE("what a parent writes into the record of a child made ahead counts before the monitor hears of it") {
    Parent p;
    p.fill_record();
    // The parent has closed its own; a third process dies that had the connection, too.
    p.server.segment.view.proc(0).held[0] = 0;
    wire::Fork third{};
    third.segments = 1;
    third.child_in[0] = {p.server.id, 2, 0};
    p.server.segment.view.proc(2).held[0] = 1u << kOfd;
    Answer forked = p.server.channel.ask(Op::fork, third);
    REQUIRE(forked.header.status == 0);
    forked.fds.clear();
    REQUIRE(eventually([&] { return p.server.segment.view.proc(2).held[0] == 0; }));
    REQUIRE(p.flags() == 0);
    p.inherited.close();
    REQUIRE(eventually([&] { return (p.flags() & kFlagDead) != 0; }));
}

TEST_CASE("a child made ahead has nothing without its parent's word") {
    Parent p;
    REQUIRE(p.child_speaks());
    REQUIRE(p.child_leaves_listener() == -ENOENT);
    // Too late.
    REQUIRE(p.server.channel.ask(Op::fork_next, p.makes_it()).header.status == 0);
    REQUIRE(p.child_leaves_listener() == -ENOENT);
}

TEST_CASE("nobody makes the child of another process") {
    Parent p;
    REQUIRE(p.client.channel.ask(Op::fork_next, p.makes_it()).header.status == 0);
    REQUIRE(p.child_speaks());
    REQUIRE(p.child_leaves_listener() == -ENOENT);
}

TEST_CASE("a child is made although the one after it is refused") {
    Parent p;
    wire::ForkNext message = p.makes_it();
    message.next.segments = 17;
    REQUIRE(p.server.channel.ask(Op::fork_next, message).header.status == -EINVAL);
    REQUIRE(p.child_speaks());
    REQUIRE(p.child_leaves_listener() == 0);
}

TEST_CASE("a listener's segment says how many hold it") {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess one(monitor), other(monitor);
    Answer first = one.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    const uint32_t id = first.as<wire::ListenReply>().listener_id;
    const Mapping map(first.fds.at(0).get(), sizeof(ListenerSegment));
    auto &segment = *reinterpret_cast<ListenerSegment *>(map.base());
    REQUIRE(segment.holders == 1);
    REQUIRE(one.channel.ask(Op::listen, wire::Listen{32, 0}, {socket.fd.get()}).header.status == 0);
    REQUIRE(segment.holders == 1);
    REQUIRE(other.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).header.status == 0);
    REQUIRE(segment.holders == 2);
    segment.leaving = 1;
    REQUIRE(one.channel.ask(Op::unlisten, wire::ListenerRef{id, 0}).header.status == 0);
    REQUIRE(segment.holders == 1);
    REQUIRE(segment.leaving == 0);
    other.channel.close();
    REQUIRE(eventually([&] { return segment.closed == 1; }));
}
