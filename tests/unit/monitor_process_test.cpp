// A real sd-monitor and clients that speak the protocol by hand.
#include "monitor/kernel/process_info.hpp"
#include "monitor/kernel/socket_search.hpp"
#include "tests/unit/monitor_pair.hpp"

using namespace sd;
using namespace sd::test;
using wire::Op;

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
    REQUIRE(listen_with(file.get()).header.status == -EINVAL);
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

TEST_CASE("a doorbell that was muted is rung for no listener, and counts no more") {
    Pair pair;
    UniqueFd muted = bell(), other = bell();
    for (const int fd : {muted.get(), other.get()})
        REQUIRE(pair.server.channel.ask(Op::accept_bell, wire::ListenerRef{pair.listener, 0}, {fd}).header.status ==
                0);
    REQUIRE(pair.client.channel.ask(Op::mute_bell, "", 0, {muted.get()}).header.status == 0); // not its own
    REQUIRE(pair.server.channel.ask(Op::mute_bell, "", 0, {muted.get()}).header.status == 0);
    UniqueFd no_bell(open("/dev/null", O_RDONLY));
    REQUIRE(pair.server.channel.ask(Op::mute_bell, "", 0, {no_bell.get()}).header.status == -EINVAL);
    pair.connect();
    REQUIRE(rang(other.get()));
    uint64_t rings = 0;
    REQUIRE(read(muted.get(), &rings, sizeof rings) < 0);
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

    const Answer none =
        pair.client.channel.ask(Op::connect, wire::Connect{pair.listener + 1000, wire::kLoopbackAddresses});
    REQUIRE(none.header.status == -ENOENT);
    REQUIRE(none.header.cause == static_cast<uint16_t>(Cause::listener_gone));
    // Only the listener's holders get its links.
    REQUIRE(pair.client.channel.ask(Op::links, wire::Links{pair.listener, 0}).header.status == -ENOENT);
}

TEST_CASE("a link that is made while somebody accepts from the kernel says so until he has gone") {
    MonitorProcess monitor;
    TestListener socket;
    auto server = std::make_unique<TestProcess>(monitor);
    TestProcess other(monitor), client(monitor);
    Answer a = server->channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()});
    const auto listener = a.as<wire::ListenReply>().listener_id;
    REQUIRE(other.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).header.status == 0);
    const Mapping map(a.fds.at(0).get(), sizeof(ListenerSegment));
    auto &segment = *reinterpret_cast<ListenerSegment *>(map.base());
    const auto connect = [&] {
        return TestLink(std::move(
            client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).fds.at(0)));
    };
    const TestLink before = connect();
    REQUIRE(before.view.header().side[1].in_kernel == 0);
    segment.in_kernel[3] = wire::folded(server->id);
    const TestLink during = connect();
    REQUIRE(during.view.header().side[1].in_kernel == kInKernelUnnamed);
    server->channel.close();
    REQUIRE(eventually([&] { return segment.in_kernel[3] == 0; }));
    REQUIRE(eventually([&] { return during.view.header().side[1].in_kernel == 0; }));
    REQUIRE(connect().view.header().side[1].in_kernel == 0);
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

TEST_CASE("a client that has ended leaves no slots that look like requests for ever") {
    Pair pair;
    const TestLink link(pair.connect());
    for (unsigned i = 0; i < kLinkSlots; i += 100) {
        link.view.slot(i).side[1].control.flags = kFlagReleased;                  // also in the server's name
        link.view.slot(i).identity.state = static_cast<uint32_t>(SlotState::syn); // and nothing in the queue
    }
    pair.server_attach();
    const auto handed_out = [&] {
        return pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count;
    };
    REQUIRE(handed_out() == 1);
    pair.client.channel.close();
    REQUIRE(eventually([&] { return (link.view.header().side[0].flags & kLinkClientDead) != 0; }));
    REQUIRE(pair.server.channel.ask(Op::drop_link, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    REQUIRE(handed_out() == 0);
}

TEST_CASE("doorbells: given out, fetched by the peer, given back") {
    Pair pair;
    TestLink link(pair.connect());
    pair.server_attach();
    UniqueFd mine = bell();
    const Answer a = pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {mine.get()});
    REQUIRE(a.header.status == 0);
    const auto [id, generation, foreign, pad] = a.as<wire::BellReply>();
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

TEST_CASE("a name with control characters is not printed as they are") {
    char before[16];
    REQUIRE(prctl(PR_GET_NAME, before) == 0);
    REQUIRE(prctl(PR_SET_NAME, "a\n\x1b[2J\x7f\x9b\xc3\xa9 b") == 0);
    const std::string name = sd::monitor::process_comm(getpid());
    REQUIRE(prctl(PR_SET_NAME, before) == 0);
    REQUIRE(name == "a??[2J???? b");
}

TEST_CASE("sockets are looked for in pieces, all together, and found") {
    using monitor::InHands;
    const UniqueFd wanted(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const ino_t inode = monitor::file_id(wanted.get()).ino, second = monitor::file_id(other.get()).ino;
    std::vector<UniqueFd> many;
    for (int i = 0; i < 500; ++i) {
        many.emplace_back(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100));
    }
    monitor::SocketSearch search({{inode, InHands::unknown}, {second, InHands::unknown}, {1, InHands::unknown}});
    CHECK(search.looks_for(second));
    CHECK_FALSE(search.looks_for(2));
    unsigned pieces = 0;
    std::optional<monitor::SocketSearch::Found> found;
    do {
        found = search.go_on(monitor::SocketSearch::Clock::time_point::min());
        ++pieces;
    } while (!found);
    CHECK(pieces > 1);
    CHECK(found->at(inode) == InHands::stranger); // this process has no libsd
    CHECK(found->at(second) == InHands::stranger);
    CHECK(found->at(1) != InHands::stranger);
}

TEST_CASE("a listener has so many doorbells as are rung for each link") {
    Pair pair;
    unsigned taken = 0;
    int status = 0;
    while (status == 0 && taken < 5000) {
        const UniqueFd one = bell();
        status =
            pair.server.channel.ask(Op::accept_bell, wire::ListenerRef{pair.listener, 0}, {one.get()}).header.status;
        taken += status == 0 ? 1 : 0;
    }
    CHECK(status == -EMFILE);
    CHECK(taken == 1024);
    pair.connect();
}
