// A real sd-monitor and clients that speak the protocol by hand.
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

/// A server and a client process record, both played by this process, with one link between them.
struct Pair {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server{monitor}, client{monitor};
    uint32_t listener = 0;
    uint64_t link = 0;

    Pair() {
        const Answer listening = server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
        listener = listening.as<wire::ListenReply>().listener_id;
    }
    UniqueFd connect() {
        Answer a = client.channel.ask(Op::connect, wire::ListenerRef{listener, 0});
        REQUIRE(a.header.status == 0);
        REQUIRE(a.fds.size() == 1);
        link = a.as<wire::ConnectReply>().link_id;
        return std::move(a.fds[0]);
    }
    void server_attach() {
        const Answer a = server.channel.ask(Op::links, wire::Links{listener, 0});
        REQUIRE(a.header.status == 0);
        REQUIRE(a.as<wire::LinksReply>().count == 1);
        REQUIRE(a.as<wire::LinksReply>().link[0].link_id == link);
    }
};

UniqueFd bell() { return UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

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

void kill_child(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

void syn(LinkView view, uint32_t slot) {
    view.slot(slot).identity.state = static_cast<uint32_t>(SlotState::syn);
    view.syn(0) = slot + 1;
}

} // namespace

TEST_CASE("a listener is in the directory while somebody holds it") {
    MonitorProcess monitor;
    TestProcess first(monitor), second(monitor);
    TestListener socket;
    const Directory *directory = second.directory();
    REQUIRE(directory != nullptr);
    REQUIRE(directory->magic == kDirectoryMagic);
    REQUIRE(directory->monitor_pid == static_cast<uint32_t>(monitor.pid));
    REQUIRE(find_entry(directory, socket.port) == nullptr);

    Answer a = first.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    REQUIRE(a.header.status == 0);
    REQUIRE(a.fds.size() == 1);
    const uint32_t id = a.as<wire::ListenReply>().listener_id;
    const DirectoryEntry *entry = find_entry(directory, socket.port);
    REQUIRE(entry != nullptr);
    REQUIRE(entry->id == id);
    REQUIRE(entry->family == AF_INET);
    REQUIRE(entry->backlog == 16);
    REQUIRE(memcmp(entry->ip, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16) == 0);
    Mapping map(a.fds[0].get(), sizeof(ListenerSegment));
    auto *segment = reinterpret_cast<ListenerSegment *>(map.base());
    REQUIRE(segment->magic == kListenerMagic);
    REQUIRE(segment->listener_id == id);

    // The same socket from another process is the same listener.
    const Answer again = second.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    REQUIRE(again.as<wire::ListenReply>().listener_id == id);

    REQUIRE(first.channel.ask(Op::unlisten, wire::ListenerRef{id, 0}).header.status == 0);
    REQUIRE(first.channel.ask(Op::unlisten, wire::ListenerRef{id, 0}).header.status == -ENOENT);
    REQUIRE(find_entry(directory, socket.port) != nullptr);
    REQUIRE(segment->closed == 0);
    second.channel.close();
    REQUIRE(eventually([&] { return find_entry(directory, socket.port) == nullptr; }));
    // The monitor says so right after it has taken the entry out of the directory.
    REQUIRE(eventually([&] { return segment->closed == 1; }));
}

TEST_CASE("the directory cannot be written by clients") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    REQUIRE(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, process.directory_fd.get(), 0) == MAP_FAILED);
    REQUIRE(write(process.directory_fd.get(), "x", 1) == -1);
    REQUIRE(ftruncate(process.directory_fd.get(), 0) == -1);
}

TEST_CASE("the monitor does not keep a port") {
    Pair pair;
    sockaddr_in name{};
    socklen_t length = sizeof name;
    getsockname(pair.socket.fd.get(), reinterpret_cast<sockaddr *>(&name), &length);
    pair.socket.fd.reset();
    UniqueFd next(socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(bind(next.get(), reinterpret_cast<sockaddr *>(&name), sizeof name) == 0);
    REQUIRE(listen(next.get(), 1) == 0);
}

TEST_CASE("only listening TCP sockets of the caller's kind are taken") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    const auto listen_with = [&](int fd) {
        return process.channel.ask(Op::listen, wire::Listen{16, 0}, {fd});
    };
    UniqueFd idle(socket(AF_INET, SOCK_STREAM, 0)), udp(socket(AF_INET, SOCK_DGRAM, 0)),
        file(open("/dev/null", O_RDONLY));
    REQUIRE(listen_with(idle.get()).header.status == -EINVAL);
    REQUIRE(listen_with(udp.get()).header.status == -EINVAL);
    REQUIRE(listen_with(file.get()).header.status == -ENOTSOCK);
    TestListener marked;
    const int mark = 7;
    if (setsockopt(marked.fd.get(), SOL_SOCKET, SO_MARK, &mark, sizeof mark) == 0) {
        const Answer a = listen_with(marked.fd.get());
        REQUIRE(a.header.status == -EOPNOTSUPP);
        REQUIRE(a.header.cause == static_cast<uint16_t>(Cause::option));
    }
    TestListener good;
    REQUIRE(listen_with(good.fd.get()).header.status == 0);
}

TEST_CASE("connect makes a link that the acceptors are told of") {
    Pair pair;
    UniqueFd acceptor = bell();
    REQUIRE(pair.server.channel.ask(Op::accept_bell, wire::ListenerRef{pair.listener, 0}, {acceptor.get()})
                .header.status == 0);
    TestLink link(pair.connect());
    REQUIRE(rang(acceptor.get()));
    const LinkHeader &header = link.view.header();
    REQUIRE(header.magic == kLinkMagic);
    REQUIRE(header.version == kLayoutVersion);
    REQUIRE(header.slots == kLinkSlots);
    REQUIRE(header.link_id == pair.link);
    REQUIRE(header.listener_id == pair.listener);
    REQUIRE(header.port_base >= 1024);
    REQUIRE(header.port_base + kLinkSlots <= 65536);
    REQUIRE(header.holder[0][0].pid == static_cast<uint32_t>(getpid()));
    REQUIRE(fcntl(link.fd.get(), F_GET_SEALS) == (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW));
    pair.server_attach();
    REQUIRE(header.holder[1][0].pid == static_cast<uint32_t>(getpid()));

    const Answer none = pair.client.channel.ask(Op::connect, wire::ListenerRef{pair.listener + 1000, 0});
    REQUIRE(none.header.status == -ENOENT);
    REQUIRE(none.header.cause == static_cast<uint16_t>(Cause::listener_gone));
    // Only the listener's holders get its links.
    REQUIRE(pair.client.channel.ask(Op::links, wire::Links{pair.listener, 0}).header.status == -ENOENT);
}

TEST_CASE("more links than fit into one reply are handed out in several") {
    Pair pair;
    std::set<uint64_t> made, given;
    for (int i = 0; i < 20; ++i) {
        pair.connect();
        made.insert(pair.link);
    }
    wire::Links ask{pair.listener, 0};
    while (ask.from != UINT32_MAX) {
        const Answer a = pair.server.channel.ask(Op::links, ask);
        const auto &reply = a.as<wire::LinksReply>();
        REQUIRE(a.fds.size() == reply.count);
        for (uint32_t i = 0; i < reply.count; ++i) {
            given.insert(reply.link[i].link_id);
        }
        ask.from = reply.next;
    }
    REQUIRE(made == given);
}

TEST_CASE("doorbells: given out, fetched by the peer, given back") {
    Pair pair;
    TestLink link(pair.connect());
    pair.server_attach();
    UniqueFd mine = bell();
    const Answer a = pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {mine.get()});
    REQUIRE(a.header.status == 0);
    const auto [id, generation] = a.as<wire::BellReply>();
    REQUIRE(id >= kFirstDoorbell);
    REQUIRE(id <= kLastDoorbell);
    REQUIRE(link.view.header().bell_generation[0][id] == generation);

    Answer peer = pair.server.channel.ask(Op::peer_bell, wire::BellRef{pair.link, 0, id});
    REQUIRE(peer.header.status == 0);
    const uint64_t one = 1;
    REQUIRE(write(peer.fds.at(0).get(), &one, sizeof one) == sizeof one);
    REQUIRE(rang(mine.get()));
    // Also for another process on the same side, which may share a connection; not for ids nobody has.
    REQUIRE(pair.client.channel.ask(Op::peer_bell, wire::BellRef{pair.link, 0, id}).header.status == 0);
    REQUIRE(pair.server.channel.ask(Op::peer_bell, wire::BellRef{pair.link, 0, id + 1}).header.status == -ENOENT);
    REQUIRE(pair.server.channel.ask(Op::peer_bell, wire::BellRef{pair.link, 0, 4000}).header.status == -ENOENT);
    REQUIRE(pair.server.channel.ask(Op::peer_bell, wire::BellRef{pair.link, 7, id}).header.status == -ENOENT);
    // Only eventfds ring.
    REQUIRE(pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {link.fd.get()}).header.status ==
            -EINVAL);

    std::set<uint32_t> ids{id};
    for (unsigned i = 1; i < kLastDoorbell - kFirstDoorbell + 1; ++i) {
        UniqueFd another = bell();
        const Answer more = pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {another.get()});
        REQUIRE(more.header.status == 0);
        REQUIRE(ids.insert(more.as<wire::BellReply>().id).second);
    }
    UniqueFd surplus = bell();
    REQUIRE(pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {surplus.get()}).header.status ==
            -ENOSPC);
    REQUIRE(pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, id}, {surplus.get()}).header.status ==
            -EBUSY);
    REQUIRE(pair.client.channel.ask(Op::unbell, wire::BellRef{pair.link, 0, id}).header.status == 0);
    const Answer reused = pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {surplus.get()});
    REQUIRE(reused.as<wire::BellReply>().id == id);
    REQUIRE(reused.as<wire::BellReply>().generation == generation + 1);
}

TEST_CASE("kill -9 of a client shows at the server's end of its connections and rings") {
    Pair pair;
    int result[2];
    REQUIRE(pipe(result) == 0);
    const pid_t child = in_child([&] {
        static TestProcess process(pair.monitor);
        const Answer a = process.channel.ask(Op::connect, wire::ListenerRef{pair.listener, 0});
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
    const uint32_t b =
        pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {mine.get()}).as<wire::BellReply>().id;
    link.view.slot(9).side[0].control.rx_arm = uint64_t{1} << b;
    link.view.header().side[0].sleep_mask = uint64_t{1} << b;
    pair.server.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).identity.state == static_cast<uint32_t>(SlotState::refused));
    REQUIRE(link.view.slot(9).side[1].control.flags == (kFlagReset | kFlagClosed | kFlagDead));
    REQUIRE((link.view.header().side[1].flags & kLinkListenerClosed) != 0);
    REQUIRE(eventually([&] { return (link.view.header().side[1].flags & kLinkServerDead) != 0; }));
    REQUIRE(pair.client.channel.ask(Op::connect, wire::ListenerRef{pair.listener, 0}).header.status == -ENOENT);
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
    const uint32_t b =
        pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {mine.get()}).as<wire::BellReply>().id;
    link.view.slot(9).side[0].control.rx_arm = uint64_t{1} << b;
    link.view.header().side[0].sleep_mask = uint64_t{1} << b;
    pair.server.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).side[1].control.flags == (kFlagDead | kFlagClosed));
    REQUIRE(link.view.slot(8).side[1].control.flags == (kFlagClosed | kFlagWriteShut | kFlagReleased));
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
        const Answer a = process.channel.ask(Op::connect, wire::ListenerRef{pair.listener, 0});
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
        const Answer made = process.channel.ask(Op::connect, wire::ListenerRef{pair.listener, 0});
        const uint64_t link_id = made.as<wire::ConnectReply>().link_id;
        process.segment.open(3, link_id, 8, 0);
        const auto late = [&](Op op, const auto &body, const std::vector<int> &fds) {
            wire::Packet packet{};
            packet.header.magic = wire::kMagic;
            packet.header.version = wire::kVersion;
            packet.header.op = static_cast<uint16_t>(op);
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

TEST_CASE("a private monitor ends after its last client") {
    MonitorProcess monitor({"--private"});
    {
        Channel presence(monitor);
        REQUIRE(presence.ask(Op::presence).header.status == 0);
    }
    const int status = monitor.wait();
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
    REQUIRE(access(monitor.socket.c_str(), F_OK) != 0);
    REQUIRE(access((monitor.socket + ".lock").c_str(), F_OK) != 0);
}

TEST_CASE("a second monitor at the same socket says what is wrong") {
    MonitorProcess monitor;
    const std::string command = std::string(SD_MONITOR_PROGRAM) + " --socket " + monitor.socket + " 2>&1";
    FILE *second = popen(command.c_str(), "r");
    char text[512] = "";
    REQUIRE(fgets(text, sizeof text, second) != nullptr);
    REQUIRE(WEXITSTATUS(pclose(second)) == 1);
    REQUIRE_THAT(text, Catch::Contains("already running") && Catch::Contains(monitor.socket));
    REQUIRE(Channel(monitor).ask(Op::presence).header.status == 0);
}

TEST_CASE("an orderly end is announced, a dead monitor's socket is replaced") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    const Directory *directory = process.directory();
    REQUIRE(directory->monitor_gone == 0);
    monitor.stop(SIGTERM);
    REQUIRE(directory->monitor_gone == 1);
    REQUIRE(access(monitor.socket.c_str(), F_OK) != 0);
    monitor.start();
    monitor.stop(SIGKILL);
    REQUIRE(access(monitor.socket.c_str(), F_OK) == 0);
    monitor.start();
    REQUIRE(Channel(monitor).ask(Op::presence).header.status == 0);
}
