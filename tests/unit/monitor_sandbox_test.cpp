// Clients in a sandbox: what they are still answered, and that acceptors take no new connection of theirs.
#include "tests/unit/monitor_pair.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

int status(Channel &channel, Op op, size_t length, const std::vector<int> &fds = {}) {
    const unsigned char body[wire::kMaxBody]{};
    const Answer a = channel.ask(op, body, length, fds);
    REQUIRE_FALSE(a.closed);
    return a.header.status;
}

} // namespace

TEST_CASE("of a client that withdraws, what waits is accepted and nothing that comes later") {
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    const Acceptors acceptors(pair);
    ListenerLink &place = acceptors.of(pair.link);
    CHECK(place.syn_end.load() == 0);
    syn(link.view, 3); // at the head of the queue
    REQUIRE(pair.client.channel.ask(Op::withdraw, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    CHECK(place.syn_end.load() == 2);
    CHECK((link.view.header().side[1].flags.load() & kLinkListenerClosed) != 0);
    link.view.syn(1) = 5;
    REQUIRE(pair.client.channel.ask(Op::withdraw, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    CHECK(place.syn_end.load() == 2);
    // Rubbish in the queue does not keep the link once it has gone.
    place.syn_head = 1;
    link.view.slot(4).identity.state = static_cast<uint32_t>(SlotState::syn);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    CHECK(pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count == 0);
}

TEST_CASE("a server that withdraws gets no further requests over that link, and its next ones none of it") {
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    REQUIRE(pair.server.channel.ask(Op::withdraw, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    CHECK((link.view.header().side[1].flags.load() & kLinkListenerClosed) != 0);
    CHECK(pair.server.channel.ask(Op::withdraw, wire::LinkRef{pair.link, 0, 0}).header.status == -ENOENT);
    // A place that is used again begins anew.
    REQUIRE(pair.client.channel.ask(Op::withdraw, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    REQUIRE(pair.server.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    pair.connect();
    CHECK(Acceptors(pair).of(pair.link).syn_end.load() == 0);
}

TEST_CASE("a client in a sandbox is answered what its connections need, and nothing else") {
    Pair pair;
    const TestLink link(pair.connect());
    Channel &channel = pair.client.channel;
    const UniqueFd waits = bell();
    pair.client_waits(link.view, 3, waits.get());
    REQUIRE(channel.ask(Op::sandbox).header.status == 0);

    CHECK(status(channel, Op::hello, sizeof(wire::Hello),
                 {pair.client.segment.fd.get(), pair.client.socket.get()}) == -EPERM);
    CHECK(status(channel, Op::segment, sizeof(wire::Segment), {pair.client.segment.fd.get()}) == -EPERM);
    CHECK(status(channel, Op::listen, sizeof(wire::Listen), {pair.socket.fd.get()}) == -EPERM);
    CHECK(status(channel, Op::unlisten, sizeof(wire::ListenerRef)) == -EPERM);
    CHECK(status(channel, Op::unlist, sizeof(wire::ListenerRef)) == -EPERM);
    CHECK(status(channel, Op::links, sizeof(wire::Links)) == -EPERM);
    CHECK(channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status ==
          -EPERM);
    CHECK(status(channel, Op::adopt_link, sizeof(wire::Adopt), {link.fd.get()}) == -EPERM);
    CHECK(status(channel, Op::accept_bell, sizeof(wire::ListenerRef), {waits.get()}) == -EPERM);
    CHECK(status(channel, Op::foreign_bell, sizeof(wire::BellRef), {waits.get()}) == -EPERM);
    CHECK(status(channel, Op::pass, sizeof(wire::Pass), {pair.client.socket.get(), pair.client.socket.get()}) ==
          -EPERM);
    CHECK(status(channel, Op::claim, 0, {pair.client.socket.get()}) == -EPERM);
    CHECK(status(channel, Op::claimed, sizeof(wire::ParcelRef)) == -EPERM);
    CHECK(status(channel, Op::check, sizeof(wire::ListenerRef)) == -EPERM);
    CHECK(status(channel, Op::memory, sizeof(wire::Memory)) == -EPERM);
    CHECK(status(channel, Op::log, sizeof(wire::Log)) == -EPERM);
    CHECK(status(channel, Op::status, 0) == -EPERM);
    CHECK(status(channel, Op::ends, 0) == -EPERM);
    CHECK(status(channel, Op::part, sizeof(wire::SegmentRef)) == -EPERM);

    // Its waiters are rung, and it rings others, and lets go.
    const UniqueFd answers = bell();
    CHECK(channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {answers.get()}).header.status == 0);
    CHECK(channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
}

TEST_CASE("children of a client in a sandbox are in it, too") {
    Pair pair;
    REQUIRE(pair.client.channel.ask(Op::sandbox).header.status == 0);
    Answer a = pair.client.channel.ask(Op::fork, wire::Fork{});
    REQUIRE(a.header.status == 0);
    REQUIRE(a.fds.size() == 1);
    Channel child(std::move(a.fds[0]));
    REQUIRE(child.ask(Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0}).header.status == 0);
    CHECK(child.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status == -EPERM);
}

TEST_CASE("a process in a sandbox has nothing of the channel that sdrun left it") {
    const MonitorProcess monitor;
    Channel presence(monitor);
    REQUIRE(presence.ask(Op::presence).header.status == 0);
    TestProcess process(monitor);
    CHECK(presence.ask(Op::status).header.status == 0);
    REQUIRE(process.channel.ask(Op::sandbox).header.status == 0);
    CHECK(presence.ask(Op::status).header.status == -EPERM);
}

TEST_CASE("a child that has installed a filter has nothing of sdrun's channel, known to the monitor or not") {
    const MonitorProcess monitor;
    Channel presence(monitor);
    REQUIRE(presence.ask(Op::presence).header.status == 0);
    const pid_t child = fork();
    if (child == 0) {
        sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        const sock_fprog filter{1, all};
        const bool before = presence.ask(Op::status).header.status == 0;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
            _exit(2);
        }
        _exit(before && presence.ask(Op::status).header.status == -EPERM ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(presence.ask(Op::status).header.status == 0);
}

TEST_CASE("with a filter, a process is not given the eventfd of one without") {
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    const UniqueFd waits = bell();
    const uint32_t id =
        pair.server.channel.ask(Op::bell, wire::Bell{pair.link, 1, 0}, {waits.get()}).as<wire::BellReply>().id;
    const Answer made = pair.client.channel.ask(Op::fork, wire::Fork{});
    REQUIRE(made.fds.size() == 1);
    const pid_t child = fork();
    if (child == 0) {
        Channel channel{UniqueFd(dup(made.fds[0].get()))};
        channel.tell(Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0});
        const wire::BellRef servers{pair.link, 1, id};
        const bool before = channel.ask(Op::peer_bell, servers).fds.size() == 1;
        sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        const sock_fprog filter{1, all};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 ||
            channel.ask(Op::sandbox).header.status != 0) {
            _exit(2);
        }
        const Answer after = channel.ask(Op::peer_bell, servers);
        _exit(before && after.header.status == -EXDEV && after.fds.empty() ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}
