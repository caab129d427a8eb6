// Clients of a real sd-monitor that die, fork, execute another program or come back.
#include "tests/unit/monitor_pair.hpp"

using namespace sd;
using namespace sd::test;
using wire::Op;

TEST_CASE("kill -9 of a client shows at the server's end of its connections and rings") {
    Pair pair;
    int result[2];
    REQUIRE(pipe(result) == 0);
    const pid_t child = in_child([&] {
        static TestProcess process(pair.monitor);
        const Answer a =
            process.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
        const uint64_t id = a.as<wire::ConnectReply>().link_id;
        process.segment.open(5, id, 70, 0);
        [[maybe_unused]] ssize_t n = write(result[1], &id, sizeof id);
    });
    uint64_t id;
    REQUIRE(read(result[0], &id, sizeof id) == sizeof id);
    Answer links = pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0});
    REQUIRE(links.as<wire::LinksReply>().count == 1);
    TestLink link(std::move(links.fds.at(0)));
    UniqueFd mine = bell();
    const uint32_t b =
        pair.server.channel.ask(Op::bell, wire::Bell{id, 1, 0}, {mine.get()}).as<wire::BellReply>().id;
    Slot &slot = link.view.slot(70);
    slot.identity.state = static_cast<uint32_t>(SlotState::accepted);
    slot.side[1].control.rx_arm = uint64_t{1} << b;
    link.view.header().side[1].sleep_mask = uint64_t{1} << b;

    kill_child(child);
    REQUIRE(rang(mine.get()));
    REQUIRE(slot.side[0].control.flags == (kFlagDead | kFlagClosed));
    REQUIRE(slot.side[1].control.flags == 0);
    REQUIRE(slot.side[1].control.rx_arm == 0);
    REQUIRE(link.view.ready_word(1, b, 70 / 64) == uint64_t{1} << 70 % 64);
    REQUIRE(link.view.ready_summary(1, b) == uint64_t{1} << 70 / 64);
    REQUIRE(eventually([&] { return link.view.header().side[0].flags == kLinkClientDead; }));

    // The server lets go: nothing is left of the link.
    REQUIRE(pair.server.channel.ask(Op::drop_link, wire::LinkRef{id, 1, 0}).header.status == 0);
    REQUIRE(pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count == 0);
}

TEST_CASE("a client's channel closing counts as its death; its requests stay acceptable") {
    Pair pair;
    UniqueFd memfd = pair.connect();
    TestLink link(std::move(memfd));
    syn(link.view, 3);
    pair.client.segment.open(1, pair.link, 3, 0);
    pair.client.channel.close();
    REQUIRE(eventually([&] { return link.view.header().side[0].flags == kLinkClientDead; }));
    REQUIRE((link.view.slot(3).side[0].control.flags & kFlagDead) != 0);
    REQUIRE(link.view.slot(3).identity.state == static_cast<uint32_t>(SlotState::syn));
    REQUIRE(pair.client.segment.view.ofd(1).state == static_cast<uint32_t>(OfdState::free));
    REQUIRE(pair.client.segment.view.proc(0).held[0] == 0);
    pair.server_attach(); // still there to be fetched
    link.view.slot(3).identity.state = static_cast<uint32_t>(SlotState::accepted);
    REQUIRE(pair.server.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    REQUIRE(pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count == 0);
}

TEST_CASE("a link without pending requests goes with its client") {
    Pair pair;
    pair.connect();
    pair.client.channel.close();
    REQUIRE(eventually([&] {
        return pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count ==
               0;
    }));
}

TEST_CASE("when the last holder of a listener goes, waiting requests are refused") {
    Pair pair;
    TestLink link(pair.connect());
    syn(link.view, 9);
    UniqueFd mine = bell();
    pair.client_waits(link.view, 9, mine.get());
    pair.server.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).identity.state == static_cast<uint32_t>(SlotState::refused));
    REQUIRE(link.view.slot(9).side[1].control.flags == (kFlagReset | kFlagClosed | kFlagDead));
    REQUIRE((link.view.header().side[1].flags & kLinkListenerClosed) != 0);
    REQUIRE(eventually([&] { return (link.view.header().side[1].flags & kLinkServerDead) != 0; }));
    REQUIRE(
        pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status ==
        -ENOENT);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == -ENOENT);
}

TEST_CASE("a server killed between taking a connection and noting it") {
    Pair pair;
    TestLink link(pair.connect());
    pair.server_attach();
    link.view.slot(9).identity.state = static_cast<uint32_t>(SlotState::accepted);
    link.view.slot(8).identity.state = static_cast<uint32_t>(SlotState::accepted);
    link.view.slot(8).side[1].control.flags = kFlagClosed | kFlagWriteShut | kFlagReleased; // closed in order
    UniqueFd mine = bell();
    pair.client_waits(link.view, 9, mine.get());
    pair.server.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).side[1].control.flags == (kFlagDead | kFlagClosed));
    REQUIRE(link.view.slot(8).side[1].control.flags == (kFlagClosed | kFlagWriteShut | kFlagReleased));
}

TEST_CASE("who sleeps is woken by a death, also when the dead took its arm and did not get to ring") {
    Pair pair;
    TestLink link(pair.connect());
    pair.server_attach();
    pair.server.segment.open(2, pair.link, 9, 1);
    link.view.slot(9).identity.state = static_cast<uint32_t>(SlotState::accepted);
    UniqueFd mine = bell();
    pair.client_waits(link.view, 9, mine.get());
    link.view.slot(9).side[0].control.rx_arm = 0;
    pair.server.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).side[1].control.flags == (kFlagDead | kFlagClosed));
    REQUIRE(link.view.ready_word(0, 1, 0) == uint64_t{1} << 9);
}

TEST_CASE("a forked child shares what its parent registered until both are gone") {
    Pair pair;
    TestLink link(pair.connect());
    pair.server_attach();
    pair.server.segment.open(2, pair.link, 1, 1);
    link.view.slot(1).identity.state = static_cast<uint32_t>(SlotState::accepted);

    wire::Fork body{};
    body.segments = 1;
    body.child_in[0] = {pair.server.id, 1, 0};
    pair.server.segment.view.proc(1).state = 1;
    pair.server.segment.view.proc(1).held[0] = pair.server.segment.view.proc(0).held[0].load();
    Answer forked = pair.server.channel.ask(Op::fork, body);
    REQUIRE(forked.header.status == 0);
    Channel inherited(std::move(forked.fds.at(0)));
    const pid_t child = in_child([&] {
        pair.server.channel.close();
        const Answer a = inherited.ask(Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0});
        if (a.closed || a.header.status != 0) {
            _exit(1);
        }
        static TestSegment own;
        if (inherited.ask(Op::segment, wire::Segment{0, 0, 0}, {own.fd.get()}).header.status != 0) {
            _exit(1);
        }
    });
    inherited.close();

    pair.server.channel.close(); // the parent goes first
    REQUIRE(eventually([&] { return pair.server.segment.view.proc(0).held[0] == 0; }));
    REQUIRE(link.view.slot(1).side[1].control.flags == 0);
    REQUIRE(find_entry(pair.client.directory(), pair.socket.port) != nullptr);
    kill_child(child);
    REQUIRE(eventually([&] { return (link.view.slot(1).side[1].control.flags & kFlagDead) != 0; }));
    REQUIRE(eventually([&] { return find_entry(pair.client.directory(), pair.socket.port) == nullptr; }));
    REQUIRE(pair.server.segment.view.proc(1).held[0] == 0);
}

TEST_CASE("a channel made for a child that never came takes what was reserved for it along") {
    Pair pair;
    TestLink link(pair.connect());
    pair.client.segment.open(2, pair.link, 1, 0);
    wire::Fork body{};
    body.segments = 1;
    body.child_in[0] = {pair.client.id, 1, 0};
    pair.client.segment.view.proc(1).held[0] = 4;
    Answer forked = pair.client.channel.ask(Op::fork, body);
    forked.fds.clear();
    REQUIRE(eventually([&] { return pair.client.segment.view.proc(1).held[0] == 0; }));
    REQUIRE(link.view.slot(1).side[0].control.flags == 0);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 0, 0}).header.status == 0);
}

TEST_CASE("with a presence, a process may lose its channel and come back, as over exec") {
    Pair pair;
    TestLink link(pair.connect());
    pair.client.segment.open(2, pair.link, 1, 0);
    // This process has another record at the same monitor, so play it all in a child.
    const pid_t child = in_child([&] {
        static Channel presence(pair.monitor);
        const bool ok = presence.ask(Op::presence).header.status == 0;
        static TestProcess process(pair.monitor);
        const Answer a =
            process.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
        process.segment.open(3, a.as<wire::ConnectReply>().link_id, 8, 0);
        process.channel.close();
        usleep(50'000);
        // Nothing was taken from it, and with the same segment all is as it was.
        const bool kept = process.segment.view.ofd(3).state == static_cast<uint32_t>(OfdState::open);
        process.hello(pair.monitor);
        const bool known =
            process.channel.ask(Op::drop_link, wire::LinkRef{a.as<wire::ConnectReply>().link_id, 0, 0}).header.status ==
            0;
        if (!ok || !kept || !known) {
            _exit(1);
        }
        // Another program image: what the former one held is gone.
        TestProcess *fresh = new TestProcess;
        process.channel.close();
        fresh->hello(pair.monitor);
        if (!eventually(
                [&] { return process.segment.view.ofd(3).state == static_cast<uint32_t>(OfdState::free); })) {
            _exit(1);
        }
    });
    kill_child(child);
}

TEST_CASE("a client that did not wait for a late answer lives, and comes back to what it holds") {
    Pair pair;
    // In a child: this process has other records at the same monitor.
    TestListener socket;
    const pid_t child = in_child([&] {
        static TestProcess process(pair.monitor);
        const Answer made =
            process.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
        const uint64_t link_id = made.as<wire::ConnectReply>().link_id;
        process.segment.open(3, link_id, 8, 0);
        const auto late = [&](Op op, const auto &body, const std::vector<int> &fds) {
            wire::Packet packet{};
            packet.header.magic = wire::kMagic;
            packet.header.version = wire::kVersion;
            packet.header.op = static_cast<uint16_t>(op);
            packet.header.sequence = 1;
            packet.header.length = sizeof body;
            packet.header.fds = static_cast<uint32_t>(fds.size());
            memcpy(packet.body, &body, sizeof body);
            kill(pair.monitor.pid, SIGSTOP);
            const bool sent = process.channel.raw(&packet, sizeof packet.header + sizeof body, fds);
            process.channel.close();
            kill(pair.monitor.pid, SIGCONT);
            usleep(50'000);
            // Nothing was taken from it, and with the same segment all is as it was.
            const bool kept = process.segment.view.ofd(3).state == static_cast<uint32_t>(OfdState::open);
            process.hello(pair.monitor);
            return sent && kept;
        };
        bool good = late(Op::links, wire::Links{pair.listener, 0}, {});
        // A child that its parent knows nothing of ends nothing.
        process.segment.view.proc(1).state = 1;
        process.segment.view.proc(1).held[0] = 1u << 3;
        wire::Fork fork{};
        fork.segments = 1;
        fork.child_in[0] = {process.id, 1, 0};
        good = late(Op::fork, fork, {}) && good && process.segment.view.proc(1).held[0] == 1u << 3;
        // A listener that it does not know to be in the directory is not there.
        good = late(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}) && good &&
               find_entry(process.directory(), socket.port) == nullptr;
        // Whom it could not wake is woken.
        const UniqueFd waiter = bell();
        const Answer given = process.channel.ask(Op::bell, wire::Bell{link_id, 0, 0}, {waiter.get()});
        good = late(Op::peer_bell, wire::BellRef{link_id, 0, given.as<wire::BellReply>().id}, {}) &&
               rang(waiter.get()) && good;
        good = process.channel.ask(Op::drop_link, wire::LinkRef{link_id, 0, 0}).header.status == 0 && good;
        if (!good) {
            _exit(1);
        }
    });
    kill_child(child); // had it found a fault, it would have ended before it could say that it was ready
}

TEST_CASE("what a client rang without waiting for an answer is heard, also when it has ended meanwhile") {
    Pair pair;
    const UniqueFd waiter = bell();
    const TestLink made(pair.connect());
    const uint64_t link = pair.link;
    pair.server_attach();
    const uint32_t id =
        pair.server.channel.ask(Op::bell, wire::Bell{link, 1, 0}, {waiter.get()}).as<wire::BellReply>().id;
    Answer childs = pair.client.channel.ask(Op::fork, wire::Fork{});
    REQUIRE(childs.fds.size() == 1);
    const pid_t child = in_child([&] {
        static Channel channel(std::move(childs.fds[0]));
        bool good = channel.ask(Op::child, wire::Child{static_cast<uint32_t>(getpid()), 0}).header.status == 0;
        // No answer stands before that to the next question.
        good = good && channel.tell(Op::ring, wire::BellRef{link, 1, id}) && rang(waiter.get()) &&
               channel.ask(Op::links, wire::Links{pair.listener, 0}).header.op ==
                   static_cast<uint16_t>(Op::links);
        kill(pair.monitor.pid, SIGSTOP);
        for (int i = 0; i < 20; ++i) { // more than the monitor takes from one client at a time
            good = channel.tell(Op::ring, wire::BellRef{link, 1, id + 1}) && good;
        }
        good = channel.tell(Op::ring, wire::BellRef{link, 1, id}) && good;
        if (!good) {
            _exit(1);
        }
    });
    childs.fds.clear();
    kill_child(child);
    kill(pair.monitor.pid, SIGCONT);
    REQUIRE(rang(waiter.get()));
}
