// Clients of different users: what one has is not handed to another, root neither. As root, since it takes
// several users.
#include "monitor/kernel/domain.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/bridges.hpp"
#include "tests/unit/stranger.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sched.h>
#include <sys/stat.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

TEST_CASE("a connection that another user passes is claimed by nobody else, root neither") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    for (const uid_t user : {kOne, uid_t{0}}) {
        const OnItsWay way;
        const Stranger sender(pair.monitor, user, {[&](TestProcess &p) {
                                  return way.pass(p, pair.listener, wire::BridgeStart::unclaimed);
                              }});
        REQUIRE(sender.does(0) == 0);
        const Stranger other(pair.monitor, kOther, {[&](TestProcess &p) {
                                 return p.channel.ask(Op::claim, "", 0, {way.passed.get()}).header.status;
                             }});
        CHECK(other.does(0) == -EPERM);
    }
    const OnItsWay way;
    const Stranger sender(pair.monitor, kOne, {[&](TestProcess &p) {
                              return way.pass(p, pair.listener, wire::BridgeStart::unclaimed);
                          }});
    REQUIRE(sender.does(0) == 0);
    const Answer a = pair.client.channel.ask(Op::claim, "", 0, {way.passed.get()});
    CHECK(a.header.status == -EPERM);
    CHECK(a.fds.empty());
}

TEST_CASE("a connection that is passed is claimed by another process of the same user") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const OnItsWay way;
    const Stranger sender(pair.monitor, kOne, {[&](TestProcess &p) {
                              return way.pass(p, pair.listener, wire::BridgeStart::unclaimed);
                          }});
    const Stranger receiver(pair.monitor, kOne, {[&](TestProcess &p) {
                                return p.channel.ask(Op::claim, "", 0, {way.passed.get()}).header.status;
                            }});
    REQUIRE(sender.does(0) == 0);
    CHECK(receiver.does(0) == 0);
}

TEST_CASE("a parcel holds its connection, though another's end took that away after the sender had said so") {
    Pair pair;
    OnItsWay first;
    const OnItsWay second;
    auto &held = pair.client.segment.view.proc(kParcelProc).held[0];
    held = 1u << 5;
    REQUIRE(first.pass(pair.client, pair.listener, wire::BridgeStart::unclaimed) == 0);
    first.passed.reset();
    REQUIRE(eventually([&] { return held == 0; }));
    REQUIRE(second.pass(pair.client, pair.listener, wire::BridgeStart::unclaimed) == 0);
    CHECK(held == 1u << 5);
}

#ifdef SD_BRIDGE_IS_BUILT
TEST_CASE("who passes a connection to another user and keeps it has the same kernel socket then") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const OnItsWay way;
    const Stranger receiver(pair.monitor, kOne, {[&](TestProcess &p) {
                                return p.channel.ask(Op::claim, "", 0, {way.passed.get()}).header.status;
                            }});
    REQUIRE(way.pass(pair.client, pair.listener, wire::BridgeStart::unclaimed) == 0);
    Ofd &ofd = pair.client.segment.view.ofd(5);
    bool moves = true;
    SECTION("it keeps it") { ofd.tx_block = kTxShut; }
    SECTION("it has let go of it") {
        pair.client.segment.view.proc(0).held[0] = 0;
        moves = false;
    }
    REQUIRE(receiver.does(0) == -EPERM);
    CHECK(((ofd.tx_block.load() & kTxMoved) != 0) == moves);
    const Answer a = pair.client.channel.ask(Op::moved, wire::Moved{0, 5, ofd.generation, 0});
    REQUIRE(a.fds.size() == (moves ? 1 : 0));
    if (moves) {
        CHECK(monitor::file_id(a.fds[0].get()) == monitor::file_id(way.passed.get()));
        CHECK(send(a.fds[0].get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == -1); // it had been shut
    }
}

TEST_CASE("a connection that moves while it is on its way is the socket that its holders share") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const OnItsWay way, moved;
    const Stranger receiver(pair.monitor, kOne, {[&](TestProcess &p) {
                                const Answer a = p.channel.ask(Op::claim, "", 0, {way.passed.get()});
                                return a.header.status == -EPERM && a.fds.size() == 1 &&
                                       monitor::file_id(a.fds[0].get()) == monitor::file_id(moved.passed.get());
                            }});
    REQUIRE(way.pass(pair.client, pair.listener, wire::BridgeStart::unclaimed) == 0);
    REQUIRE(moved.pass(pair.client, pair.listener, wire::BridgeStart::for_all) == 0);
    CHECK(receiver.does(0) == 1);
}

TEST_CASE("who has no libsd and gets a connection that has moved is joined with its holders' socket") {
    Pair pair;
    const OnItsWay moved, way;
    REQUIRE(moved.pass(pair.client, pair.listener, wire::BridgeStart::for_all) == 0);
    REQUIRE(way.pass(pair.client, pair.listener, wire::BridgeStart::at_once) == 0);
    const std::string common = "socket:[" + std::to_string(monitor::file_id(moved.passed.get()).ino) + "]";
    std::vector<pid_t> bridges;
    REQUIRE(eventually([&] { return !(bridges = bridges_of(pair.monitor)).empty(); }));
    CHECK(eventually([&] {
        const std::vector<std::string> paths = descriptor_paths(bridges[0]);
        return std::find(paths.begin(), paths.end(), common) != paths.end();
    }));
}
#endif

TEST_CASE("the search for a passed connection ends with that") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    std::vector<UniqueFd> many; // so that it takes more than one piece of the monitor's time
    for (int i = 0; i < 10'000; ++i) {
        many.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    Pair pair;
    const auto searches = [&] {
        const std::vector<std::string> paths = descriptor_paths(pair.monitor.pid);
        return std::find(paths.begin(), paths.end(), "/proc") != paths.end();
    };
    OnItsWay way;
    {
        const Stranger sender(pair.monitor, kOne, {[&](TestProcess &p) {
                                  return way.pass(p, pair.listener, wire::BridgeStart::unclaimed);
                              }});
        REQUIRE(sender.does(0) == 0);
        REQUIRE(eventually(searches));
    }
    way.passed.reset();
    CHECK(eventually([&] { return !searches(); }));
}

TEST_CASE("a process that nobody may look into shares with its own children only") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const OnItsWay way;
    const Stranger sender(
        pair.monitor, kOne,
        {[&](TestProcess &p) { return way.pass(p, pair.listener, wire::BridgeStart::unclaimed); }}, false);
    const Stranger receiver(pair.monitor, kOne, {[&](TestProcess &p) {
                                return p.channel.ask(Op::claim, "", 0, {way.passed.get()}).header.status;
                            }});
    REQUIRE(sender.does(0) == 0);
    CHECK(receiver.does(0) == -EPERM);
}

TEST_CASE("root does not come to share a segment that another user shows it") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    const MonitorProcess monitor;
    const TestSegment segment;
    const Stranger owner(
        monitor, kOne, {[&](TestProcess &p) {
            return p.channel.ask(Op::segment, wire::Segment{0, 0, 0}, {segment.fd.get()}).header.status;
        }});
    REQUIRE(owner.does(0) == 0);
    TestProcess root(monitor);
    const Answer a = root.channel.ask(Op::segment, wire::Segment{wire::kAnyProc, 0, 7}, {segment.fd.get()});
    CHECK(a.header.status == -EPERM);
    Channel again(monitor);
    const Answer hello = again.ask(Op::hello, wire::Hello{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0},
                                   {segment.fd.get(), root.socket.get()});
    CHECK(hello.header.status == -EPERM);
}

TEST_CASE("what a passed connection's segment is called is not the sender's to choose") {
    Pair pair;
    const TestSegment second;
    const OnItsWay way;
    second.view.ofd(5).state = static_cast<uint32_t>(OfdState::open);
    // The receiver calls its own segment by its own id: it would take the sender's for its own.
    const uint64_t name = pair.server.id;
    REQUIRE(pair.client.channel.ask(Op::segment, wire::Segment{0, 0, name}, {second.fd.get()}).header.status == 0);
    CHECK(pair.client.channel.ask(Op::segment, wire::Segment{0, 0, name}, {TestSegment().fd.get()}).header.status ==
          -EEXIST);
    REQUIRE(way.pass(pair.client, pair.listener, wire::BridgeStart::unclaimed, name, second.view) == 0);
    const Answer a = pair.server.channel.ask(Op::claim, "", 0, {way.passed.get()});
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::ClaimReply>().segment != name);
}

TEST_CASE("acceptors of two users are not given the same links") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const UniqueFd memfd = pair.connect();
    pair.server_attach();
    const auto count = [&](TestProcess &p) -> int64_t {
        const Answer a = p.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()});
        if (a.header.status != 0) {
            return a.header.status;
        }
        return p.channel.ask(Op::links, wire::Links{a.as<wire::ListenReply>().listener_id, 0})
            .as<wire::LinksReply>()
            .count;
    };
    const Stranger root(pair.monitor, 0, {count}), worker(pair.monitor, kOne, {count});
    CHECK(root.does(0) == 1);
    CHECK(worker.does(0) == 0);
    // Nobody has the next one yet: it is a worker's, as all that come while root only holds the listener.
    TestProcess late(pair.monitor);
    REQUIRE(late.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status ==
            0);
    const Stranger mate(pair.monitor, kOne, {count});
    CHECK(worker.does(0) == 1);
    CHECK(mate.does(0) == 1);
    CHECK(root.does(0) == 1);
}

TEST_CASE("a listener on which two users wait gets its next clients from the kernel") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const TestLink link(pair.connect());
    const auto waits = [&](TestProcess &p) -> int64_t {
        const Answer a = p.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()});
        const UniqueFd own = bell();
        return a.header.status != 0
                   ? a.header.status
                   : p.channel
                         .ask(Op::accept_bell, wire::ListenerRef{a.as<wire::ListenReply>().listener_id, 0},
                              {own.get()})
                         .header.status;
    };
    const auto connect = [&] {
        TestProcess client(pair.monitor);
        return client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header;
    };
    const Stranger root(pair.monitor, 0, {waits}), mate(pair.monitor, 0, {waits});
    REQUIRE(root.does(0) == 0);
    REQUIRE(mate.does(0) == 0);
    CHECK(connect().status == 0);
    CHECK((link.view.header().side[1].flags & kLinkListenerClosed) == 0);
    const Stranger worker(pair.monitor, kOne, {waits});
    REQUIRE(worker.does(0) == 0);
    CHECK(connect().status == -EACCES);
    CHECK(connect().cause == static_cast<uint16_t>(Cause::crosses));
    CHECK((link.view.header().side[1].flags & kLinkListenerClosed) != 0);
}

TEST_CASE("nobody of another domain brings a link back as its server's") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    const auto bring_back = [&](TestProcess &p) -> int64_t {
        const wire::Adopt as_server{link.view.header().link_id, 1, {}};
        return p.channel.ask(Op::adopt_link, as_server, {link.fd.get()}).header.status;
    };
    const Stranger relative(pair.monitor, 0, {bring_back}), stranger(pair.monitor, kOne, {bring_back});
    CHECK(stranger.does(0) == -EPERM);
    CHECK(relative.does(0) == 0);
}

TEST_CASE("who gives up a link of its listener, which others keep, has its clients make another") {
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    TestProcess other(pair.monitor);
    const Answer a = other.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()});
    REQUIRE(other.channel.ask(Op::links, wire::Links{a.as<wire::ListenReply>().listener_id, 0})
                .as<wire::LinksReply>()
                .count == 1);
    const auto closed = [&] { return (link.view.header().side[1].flags.load() & kLinkListenerClosed) != 0; };
    CHECK_FALSE(closed());
    REQUIRE(other.channel.ask(Op::drop_link, wire::LinkRef{link.view.header().link_id, 1, 0}).header.status == 0);
    CHECK(closed());
}

TEST_CASE("a channel that is somebody else's hands nothing out") {
    Pair pair;
    const TestLink link(pair.connect());
    const pid_t child = fork(); // has its parent's descriptors, as one that libsd did not see
    if (child == 0) {
        const Answer links = pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0});
        const Answer more =
            pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
        // Nor does it become a process that has what its parent has, by its segment or as a child of it.
        const Answer own = pair.client.channel.ask(Op::fork, wire::Fork{});
        const wire::Hello hello{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
        const Answer again =
            pair.server.channel.ask(Op::hello, hello, {pair.server.segment.fd.get(), pair.server.socket.get()});
        const TestSegment another;
        const Answer other =
            pair.server.channel.ask(Op::hello, hello, {another.fd.get(), pair.server.socket.get()});
        _exit(links.header.status == -EPERM && links.fds.empty() && more.header.status == -EPERM &&
                      own.header.status == -EPERM && own.fds.empty() && again.header.status == -EPERM &&
                      other.header.status == -EPERM
                  ? 0
                  : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    pair.server_attach();
}

TEST_CASE("a process that gives up its own segment makes another") {
    Pair pair;
    const wire::SegmentRef own{pair.server.id};
    REQUIRE(pair.server.channel.ask(Op::part, own).header.status == 0);
    CHECK(pair.server.channel.ask(Op::part, own).header.status == -ENOENT);
    const TestSegment next;
    CHECK(pair.server.channel.ask(Op::segment, wire::Segment{0, 0, 0}, {next.fd.get()}).header.status == 0);
    CHECK(pair.server.channel.ask(Op::part, own).header.status == 0);
}

TEST_CASE("a socket that holders are to come for counts for whoever left it, as the parcel did") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const std::string file = pair.monitor.directory + "/monitor.toml";
    std::ofstream(file) << "[limits]\nparcels_per_user = 1\n";
    pair.monitor.stop(SIGTERM);
    pair.monitor.start({"--config", file});
    pair.server.hello(pair.monitor);
    const auto listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                              .as<wire::ListenReply>()
                              .listener_id;
    const OnItsWay way;
    const Stranger sender(pair.monitor, kOne,
                          {[&](TestProcess &p) { return way.pass(p, listener, wire::BridgeStart::for_all); }});
    CHECK(sender.does(0) == -ENOBUFS);
}

TEST_CASE("trust domains are told apart by what the kernel says") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    using monitor::Domain, monitor::read_domain;
    const Domain own = read_domain(getpid());
    REQUIRE(own.known);
    CHECK(own.shares_with(own));
    const auto of_child = [](const std::function<void()> &change) {
        const pid_t child = in_child([&] { change(); });
        const Domain domain = read_domain(child);
        kill_child(child);
        return domain;
    };
    CHECK(own.shares_with(of_child([] {})));
    CHECK_FALSE(own.shares_with(of_child([] { REQUIRE(seteuid(kOne) == 0); })));
    CHECK_FALSE(own.shares_with(of_child([] { REQUIRE(setresgid(gid_t(-1), gid_t(-1), kOne) == 0); })));
    CHECK_FALSE(own.shares_with(of_child([] { REQUIRE(setuid(kOne) == 0); })));
    CHECK_FALSE(own.shares_with(of_child([] { REQUIRE(unshare(CLONE_NEWNS) == 0); })));
    CHECK_FALSE(own.shares_with(Domain{}));
    CHECK_FALSE(Domain{}.shares_with(Domain{}));
    const Domain dropped = of_child([] { REQUIRE(setuid(kOne) == 0); });
    CHECK_FALSE(dropped.open);
    Domain relative = dropped, stranger = dropped;
    CHECK_FALSE(dropped.shares_with(stranger));
    Domain first = dropped;
    first.lineage = relative.lineage = 3;
    CHECK(first.shares_with(relative));
    relative.lineage = 4;
    CHECK_FALSE(first.shares_with(relative));
}

TEST_CASE("the same user in another namespace is not given anybody's eventfd") {
    if (geteuid() != 0) {
        return;
    }
    Pair pair;
    int to_child[2], to_parent[2];
    REQUIRE(pipe(to_child) == 0);
    REQUIRE(pipe(to_parent) == 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNS) != 0) {
            _exit(1);
        }
        TestProcess process(pair.monitor);
        const Answer a =
            process.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
        const uint64_t link = a.as<wire::ConnectReply>().link_id;
        uint32_t id = 0;
        if (write(to_parent[1], &link, sizeof link) != sizeof link ||
            read(to_child[0], &id, sizeof id) != sizeof id) {
            _exit(2);
        }
        const Answer got = process.channel.ask(Op::peer_bell, wire::BellRef{link, 1, id});
        _exit(got.header.status == -EXDEV && got.fds.empty() ? 0 : 3);
    }
    uint64_t link = 0;
    REQUIRE(read(to_parent[0], &link, sizeof link) == sizeof link);
    pair.link = link;
    pair.server_attach();
    UniqueFd mine = bell();
    const Answer given = pair.server.channel.ask(Op::bell, wire::Bell{link, 1, 0}, {mine.get()});
    REQUIRE(given.header.status == 0);
    CHECK(given.as<wire::BellReply>().foreign != 0);
    const uint32_t id = given.as<wire::BellReply>().id;
    REQUIRE(write(to_child[1], &id, sizeof id) == sizeof id);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) {
        close(fd);
    }
}

TEST_CASE("root of another pid namespace is not shown what others have") {
    if (geteuid() != 0) {
        return;
    }
    const MonitorProcess monitor;
    const TestProcess process(monitor);
    const auto shown = [&monitor] {
        const Answer a = Channel(monitor).ask(Op::status);
        std::string text(1 << 20, '\0');
        const ssize_t n = a.fds.size() == 1 ? pread(a.fds[0].get(), text.data(), text.size(), 0) : 0;
        text.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return text;
    };
    const std::string own = "\"pid\":" + std::to_string(getpid());
    CHECK(shown().find(own) != std::string::npos);
    CHECK(shown().find("\"resources\"") != std::string::npos);
    const pid_t outside = fork();
    if (outside == 0) {
        if (unshare(CLONE_NEWPID) != 0) {
            _exit(2);
        }
        const pid_t inside = fork();
        if (inside == 0) {
            const std::string text = shown();
            _exit(!text.empty() && text.find(own) == std::string::npos &&
                          text.find("\"resources\"") == std::string::npos
                      ? 0
                      : 1);
        }
        int status = -1;
        waitpid(inside, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
    }
    int status = -1;
    REQUIRE(waitpid(outside, &status, 0) == outside);
    CHECK(status == 0);
}
