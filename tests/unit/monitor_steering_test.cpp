// What sdctl path, detach and attach ask of the monitor.
#include "monitor/records/connection_row.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/held_socket.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <thread>

using namespace sd;
using namespace sd::test;
using wire::Op;
using wire::SteerTo;

namespace {

/// A connection that was born in shared memory, with an Ofd at each end.
struct LivePair : Pair {
    static constexpr uint32_t kSlot = 0, kOfd = 1;
    Slot &slot() { return made->view.slot(kSlot); }
    Ofd &client_ofd() { return client.segment.view.ofd(kOfd); }
    Ofd &server_ofd() { return server.segment.view.ofd(kOfd); }
    std::unique_ptr<TestLink> made;

    LivePair() {
        for (TestProcess *each : {&client, &server}) {
            each->segment.view.header().steering = kKnowsSteering;
        }
        made = std::make_unique<TestLink>(connect());
        server_attach();
        const auto name = [](SlotAddress &address, uint16_t port) {
            memset(address.ip, 0, sizeof address.ip);
            address.ip[10] = address.ip[11] = 0xff;
            address.ip[12] = 127;
            address.ip[15] = 1;
            address.port = port;
            address.family = AF_INET;
        };
        name(slot().identity.client, 40123);
        name(slot().identity.server, socket.port);
        slot().identity.state = static_cast<uint32_t>(SlotState::accepted);
        for (TestProcess *each : {&client, &server}) {
            Ofd &ofd = each->segment.view.ofd(kOfd);
            ofd.family = AF_INET;
            ofd.rcvlowat = 1;
            each->segment.open(kOfd, link, kSlot, each == &server ? 1 : 0);
        }
    }
    /// As an administrator. Both processes of the pair are this one.
    Answer steer(SteerTo to, uint32_t pid = static_cast<uint32_t>(getpid())) {
        Channel channel(monitor);
        return channel.ask(Op::steer,
                           wire::Steer{static_cast<uint32_t>(to), pid, static_cast<uint32_t>(link), kSlot});
    }
    /// Both libraries go over in two steps.
    void knows_shared() {
        for (TestProcess *each : {&client, &server}) {
            each->segment.view.header().steering |= kKnowsShared;
        }
    }
    /// The client's end has one more holder, who has not registered.
    void add_holder() {
        client.segment.view.proc(2).pid = static_cast<uint32_t>(getpid());
        client.segment.view.proc(2).state = 1;
        client.segment.open(kOfd, link, kSlot, 0, 2);
    }
    void remove_holder() { client.segment.view.proc(2).held[0] = 0; }
    /// What a library says when it has the socket of this adoption; 0: when it has closed it.
    void let_go(TestProcess &process, uint16_t adoption) {
        REQUIRE(process.channel.ask(Op::let_go, wire::Moved{0, kOfd, 0, adoption}).header.status == 0);
    }
    /// Another monitor, to which both processes come back.
    void restart(bool listens = true) {
        monitor.stop(SIGKILL);
        monitor.start();
        client.hello(monitor);
        server.hello(monitor);
        for (const uint32_t side : {0u, 1u}) {
            const Answer a = (side == 0 ? client : server)
                                 .channel.ask(Op::adopt_link, wire::Adopt{link, side, {}}, {made->fd.get()});
            REQUIRE(a.header.status == 0);
        }
        if (listens) {
            REQUIRE(server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).header.status == 0);
        }
    }
    bool begins(TestProcess &process) {
        return (process.segment.view.ofd(kOfd).tx_block.load() & kTxBegin) != 0;
    }
    /// What a library does with its mark.
    UniqueFd adopt(TestProcess &process) {
        Answer a = process.channel.ask(
            Op::moved, wire::Moved{0, kOfd, 0, adoption_of(process.segment.view.ofd(kOfd).tx_block)});
        if (a.header.status != 0 || a.fds.size() != 1) {
            return {};
        }
        return std::move(a.fds[0]);
    }
};

void become_one_with_paths(LivePair &pair) {
    for (Ofd *ofd : {&pair.client_ofd(), &pair.server_ofd()}) {
        (ofd->opt.*kPathWanted) = kWantRing;
        ofd->flags_seen = kSeenPath;
        ofd->tx_block = 0;
        ofd->rcvlowat = 1;
    }
    for (SlotSide &side : pair.slot().side) {
        side.credit.path.offer = side.credit.path.taken = 1 << 8 | kPathRing;
    }
}

bool is_called_home(LivePair &pair, unsigned side) {
    return (pair.slot().side[side].control.flags.load() & kFlagHome) != 0;
}

} // namespace

TEST_CASE("a connection with paths is told where to go, and counted once it is there") {
    LivePair pair;
    become_one_with_paths(pair);
    Answer a = pair.steer(SteerTo::kernel);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::SteerReply>().directions == 2);
    CHECK(a.as<wire::SteerReply>().there == 0);
    CHECK(a.as<wire::SteerReply>().never == 0);
    for (Ofd *ofd : {&pair.client_ofd(), &pair.server_ofd()}) {
        CHECK((ofd->opt.*kPathWanted) == kWantKernel);
        CHECK((ofd->tx_block & kTxPath) != 0);
    }
    CHECK(is_called_home(pair, 0));
    CHECK(is_called_home(pair, 1));

    // The client has left the ring, and 100 bytes are unread there.
    auto &words = pair.slot().side[0].credit.path;
    words.from = 100;
    words.offer = 2 << 8 | kPathKernel;
    CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().there == 0);
    pair.slot().side[1].credit.consumed = 100;
    CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().there == 1);

    // It had asked to go to the ring again, and stays in the socket: nobody has to answer that first.
    for (const uint64_t answer : {2 << 8 | kPathKernel, 3 << 8 | kPathAsked}) {
        words.offer = 3 << 8 | kPathKernel;
        words.from = 0;
        pair.slot().side[1].credit.path.taken = answer;
        CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().there == 1);
    }
    words.from = 100;
    words.offer = 2 << 8 | kPathKernel;
    pair.slot().side[1].credit.path.taken = 1 << 8 | kPathRing;

    a = pair.steer(SteerTo::shm);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::SteerReply>().there == 1); // the server has not left
    CHECK((pair.client_ofd().opt.*kPathWanted) == kWantRing);
    CHECK(!is_called_home(pair, 0));
    CHECK(!is_called_home(pair, 1));
}

TEST_CASE("a connection that was born in shared memory gets kernel sockets with its names") {
    LivePair pair;
    const Answer a = pair.steer(SteerTo::kernel);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::SteerReply>().never == 0);
    for (Ofd *ofd : {&pair.client_ofd(), &pair.server_ofd()}) {
        CHECK((ofd->tx_block & (kTxMoved | kTxAdopt | kTxPath)) == (kTxMoved | kTxAdopt | kTxPath));
        CHECK(ofd->rcvlowat == kMovedLowat);
        CHECK(ofd->lowat_kept == 1);
    }
    UniqueFd client = pair.adopt(pair.client), server = pair.adopt(pair.server);
    REQUIRE(client);
    REQUIRE(server);
    char byte = 'x';
    REQUIRE(send(client.get(), &byte, 1, MSG_NOSIGNAL) == 1);
    REQUIRE(recv(server.get(), &byte, 1, 0) == 1);
    if (geteuid() == 0) {
        sockaddr_in name{};
        socklen_t size = sizeof name;
        REQUIRE(getsockname(client.get(), reinterpret_cast<sockaddr *>(&name), &size) == 0);
        CHECK(ntohs(name.sin_port) == 40123);
        REQUIRE(getpeername(client.get(), reinterpret_cast<sockaddr *>(&name), &size) == 0);
        CHECK(ntohs(name.sin_port) == pair.socket.port);
    }
    // The monitor keeps no descriptor of one that was taken: it would hold back a FIN.
    client.reset();
    REQUIRE(pair.client.channel.ask(Op::let_go, wire::Moved{0, LivePair::kOfd, 0, 0}).header.status == 0);
    CHECK(recv(server.get(), &byte, 1, 0) == 0);
    CHECK(!pair.adopt(pair.client));
}

TEST_CASE("a socket whose lock its holder keeps does not stop the monitor, and nobody begins on it") {
    LivePair pair;
    pair.knows_shared();
    REQUIRE(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
    const uint16_t adoption = adoption_of(pair.client_ofd().tx_block);
    const UniqueFd client = pair.adopt(pair.client), server = pair.adopt(pair.server);
    REQUIRE(client);
    REQUIRE(server);
    pair.let_go(pair.client, adoption);
    const UniqueFd &kept = GENERATE(true, false) ? client : server;
    {
        const HeldSocket held(kept.get());
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        const timeval patience{20, 0};
        setsockopt(pair.server.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        pair.let_go(pair.server, adoption);
        CHECK(!pair.begins(pair.client));
        CHECK(!pair.begins(pair.server));
        CHECK((pair.client_ofd().tx_block & kTxAdopt) == 0);
    }
    // For some time nothing is asked about sockets of that user.
    CHECK(eventually([&] {
        pair.steer(SteerTo::kernel);
        return pair.begins(pair.client) && pair.begins(pair.server);
    }));
    linger how{};
    socklen_t length = sizeof how;
    for (const UniqueFd *each : {&client, &server}) {
        REQUIRE(getsockopt(each->get(), SOL_SOCKET, SO_LINGER, &how, &length) == 0);
        CHECK(how.l_onoff == 0);
    }
}

TEST_CASE("nobody begins before all who hold either end have the socket") {
    LivePair pair;
    pair.knows_shared();
    pair.add_holder();
    REQUIRE(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
    const uint16_t adoption = adoption_of(pair.client_ofd().tx_block);
    REQUIRE(adoption != 0);
    REQUIRE(adoption_of(pair.server_ofd().tx_block) == adoption);
    const UniqueFd client = pair.adopt(pair.client), server = pair.adopt(pair.server);
    REQUIRE(client);
    REQUIRE(server);
    pair.let_go(pair.client, adoption);
    CHECK(!pair.begins(pair.client));
    pair.let_go(pair.server, adoption);
    CHECK(!pair.begins(pair.client));
    CHECK(!pair.begins(pair.server));
    SECTION("the last one has closed it") {
        pair.remove_holder();
        pair.let_go(pair.client, adoption);
        CHECK(pair.begins(pair.client));
        CHECK(pair.begins(pair.server));
        CHECK(!pair.adopt(pair.client)); // no descriptor is kept
        CHECK(!pair.adopt(pair.server));
    }
    SECTION("a holder has taken the marks away") {
        pair.client_ofd().tx_block = 0;
        pair.remove_holder();
        pair.let_go(pair.server, adoption);
        CHECK(pair.client_ofd().tx_block == 0);
        CHECK(pair.server_ofd().tx_block == 0);
        CHECK(pair.server_ofd().rcvlowat == 1);
    }
}

TEST_CASE("a request that comes while the ends begin finds neither of them lost") {
    LivePair pair;
    pair.knows_shared();
    become_one_with_paths(pair);
    constexpr uint32_t kMarks = kTxMoved | kTxAdopt | kTxBegin;
    std::atomic<bool> is_over{false};
    std::atomic<uint32_t> wanted{0}, begun{0};
    std::thread holders([&] { // one begins after the other, as libsd does, at any moment of a request
        while (!is_over) {
            const uint32_t round = wanted;
            if (round == begun) {
                std::this_thread::yield();
                continue;
            }
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round % 150);
            while (std::chrono::steady_clock::now() < until) {
            }
            for (Ofd *ofd : {&pair.client_ofd(), &pair.server_ofd()}) {
                ofd->flags_seen = kSeenPath;
                ofd->tx_block = 0;
            }
            begun = round;
        }
    });
    Channel channel(pair.monitor);
    const wire::Steer what{static_cast<uint32_t>(SteerTo::kernel), static_cast<uint32_t>(getpid()),
                           static_cast<uint32_t>(pair.link), LivePair::kSlot};
    unsigned lost = 0, begun_anew = 0;
    for (int i = 0; i < 5000; ++i) {
        if (begun == wanted) {
            // No connection loses its paths: the monitor must not be looking when ours begins anew. Each
            // adoption has a number of its own.
            const uint32_t serial = 77 * (wanted % 800 + 1);
            for (Ofd *ofd : {&pair.client_ofd(), &pair.server_ofd()}) {
                ofd->tx_block = kMarks | serial << kTxSerialShift;
                ofd->flags_seen = 0;
            }
            ++wanted;
        }
        lost += channel.ask(Op::steer, what).as<wire::SteerReply>().never != 0 ? 1 : 0;
        begun_anew += adoption_of(pair.client_ofd().tx_block) % 77 != 0 ? 1 : 0;
    }
    is_over = true;
    holders.join();
    CHECK(lost == 0);
    CHECK(begun_anew == 0);
}

TEST_CASE("an adoption that has ended goes on with the sockets that somebody has") {
    LivePair pair;
    pair.knows_shared();
    pair.add_holder();
    REQUIRE(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
    const uint16_t adoption = adoption_of(pair.client_ofd().tx_block);
    const UniqueFd client = pair.adopt(pair.client);
    REQUIRE(client);
    pair.let_go(pair.client, adoption);
    REQUIRE(pair.steer(SteerTo::shm).header.status == 0);
    CHECK(pair.client_ofd().tx_block == 0);
    CHECK(pair.server_ofd().tx_block == 0);
    SECTION("and begins") {
        CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
        CHECK(adoption_of(pair.client_ofd().tx_block) == adoption);
        const UniqueFd server = pair.adopt(pair.server);
        REQUIRE(server);
        char byte = 'x';
        REQUIRE(send(client.get(), &byte, 1, MSG_NOSIGNAL) == 1);
        REQUIRE(recv(server.get(), &byte, 1, 0) == 1);
        pair.let_go(pair.server, adoption);
        CHECK(!pair.begins(pair.server));
        pair.remove_holder();
        pair.let_go(pair.server, adoption);
        CHECK(pair.begins(pair.client));
        CHECK(pair.begins(pair.server));
    }
    SECTION("and is forgotten with the connection") {
        pair.remove_holder();
        pair.client.segment.view.proc(0).held[0] = 0;
        pair.client_ofd().state = static_cast<uint32_t>(OfdState::free);
        pair.let_go(pair.client, 0);
        char byte;
        // The monitor has not kept the other one, and nobody had begun to use them.
        CHECK((recv(client.get(), &byte, 1, 0) == -1 && errno == ECONNRESET));
    }
}

TEST_CASE("another monitor makes the sockets anew once nobody has those of the one before") {
    if (geteuid() != 0) {
        return; // the names are not promised
    }
    LivePair pair;
    pair.knows_shared();
    REQUIRE(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
    const uint16_t former = adoption_of(pair.client_ofd().tx_block);
    const auto ask = [&](TestProcess &process) {
        const uint16_t adoption = adoption_of(process.segment.view.ofd(LivePair::kOfd).tx_block);
        return process.channel.ask(Op::moved, wire::Moved{0, LivePair::kOfd, 0, adoption}).header.status;
    };
    UniqueFd client, server;
    SECTION("nobody had one") { pair.restart(); }
    SECTION("one end had it: it is reset") {
        client = pair.adopt(pair.client);
        REQUIRE(client);
        pair.restart();
        char byte;
        CHECK((recv(client.get(), &byte, 1, 0) == -1 && errno == ECONNRESET));
    }
    SECTION("both ends have it") {
        client = pair.adopt(pair.client);
        server = pair.adopt(pair.server);
        REQUIRE(client);
        REQUIRE(server);
        pair.let_go(pair.client, former);
        pair.restart();
        REQUIRE(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
        const uint16_t without = adoption_of(pair.client_ofd().tx_block);
        CHECK(without != former);
        CHECK(ask(pair.client) == -EAGAIN); // still has it
        CHECK(adoption_of(pair.client_ofd().tx_block) == without);
        SECTION("whoever asks has let go, and the other end as well") {
            server.reset();
            client.reset();
        }
        SECTION("the names are somebody else's") {}
        CHECK(ask(pair.server) == -EAGAIN);
        CHECK(adoption_of(pair.client_ofd().tx_block) != without);
    }
    CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
    const uint16_t adoption = adoption_of(pair.client_ofd().tx_block);
    CHECK(adoption != former);
    CHECK(adoption_of(pair.server_ofd().tx_block) == adoption);
    UniqueFd now[2] = {pair.adopt(pair.client), pair.adopt(pair.server)};
    REQUIRE(now[0]);
    REQUIRE(now[1]);
    pair.let_go(pair.client, adoption);
    CHECK(!pair.begins(pair.client));
    pair.let_go(pair.server, adoption);
    CHECK(pair.begins(pair.client));
    CHECK(pair.begins(pair.server));
    // What is the connection's ends as ever.
    now[0].reset();
    char byte;
    CHECK(recv(now[1].get(), &byte, 1, 0) == 0);
}

TEST_CASE("a monitor killed between telling the ends to begin is followed by one that tells the other") {
    LivePair pair;
    pair.knows_shared();
    const uint32_t marks = kTxMoved | kTxAdopt | 77u << kTxSerialShift;
    pair.client_ofd().tx_block = marks | kTxBegin;
    pair.server_ofd().tx_block = marks;
    SECTION("who has not begun") {}
    SECTION("who has") {
        pair.client_ofd().tx_block = 0;
        pair.client_ofd().flags_seen = kSeenPath;
    }
    pair.restart();
    REQUIRE(pair.steer(SteerTo::kernel).header.status == 0);
    CHECK(pair.server_ofd().tx_block == (marks | kTxBegin));
}

TEST_CASE("after a restart the names are those of a listener that the server's process has") {
    LivePair pair;
    SECTION("it has one") {
        pair.restart();
        CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 0);
        CHECK((pair.client_ofd().tx_block & kTxAdopt) != 0);
    }
    SECTION("it has another one, or none") {
        pair.restart(false);
        const Answer a = pair.steer(SteerTo::kernel);
        CHECK(static_cast<monitor::Blocker>(a.as<wire::SteerReply>().blocker) == monitor::Blocker::no_names);
        TestListener another;
        REQUIRE(pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {another.fd.get()}).header.status == 0);
        CHECK(pair.steer(SteerTo::kernel).as<wire::SteerReply>().never == 2);
        CHECK(pair.client_ofd().tx_block == 0);
    }
}

TEST_CASE("names that the listener does not have are not made") {
    LivePair pair;
    SECTION("another port") {
        pair.slot().identity.server.port = static_cast<uint16_t>(pair.socket.port + 1);
    }
    SECTION("another address") { pair.slot().identity.server.ip[15] = 2; }
    SECTION("a port that is not everybody's") { pair.slot().identity.client.port = 443; }
    const Answer a = pair.steer(SteerTo::kernel);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::SteerReply>().never == 2);
    CHECK(static_cast<monitor::Blocker>(a.as<wire::SteerReply>().blocker) == monitor::Blocker::no_names);
    CHECK(pair.client_ofd().tx_block == 0);
}

TEST_CASE("what stands in the way of leaving shared memory is said, and nothing is changed") {
    LivePair pair;
    auto expected = monitor::Blocker::none;
    uint32_t never = 2;
    SECTION("an older library") {
        pair.server.segment.view.header().steering = 0;
        expected = monitor::Blocker::older;
    }
    SECTION("a direction has ended: who waits, waits for the other one") {
        pair.slot().side[0].control.flags = kFlagWriteShut;
        expected = monitor::Blocker::ended;
        never = 0;
    }
    SECTION("one end is closed, the other not yet") {
        pair.slot().side[0].control.flags = kFlagClosed;
        pair.client.segment.view.proc(0).held[0] = 0;
        pair.client_ofd().state = static_cast<uint32_t>(OfdState::free);
        expected = monitor::Blocker::ended;
        never = 0;
    }
    SECTION("the other end is nobody's") {
        pair.client.segment.view.proc(0).held[0] = 0;
        pair.client_ofd().state = static_cast<uint32_t>(OfdState::free);
        expected = monitor::Blocker::alone;
        never = 0;
    }
    SECTION("it is bridged") {
        pair.client_ofd().tx_block = kTxMoved;
        expected = monitor::Blocker::passed;
    }
    const uint32_t before = pair.client_ofd().tx_block;
    const Answer a = pair.steer(SteerTo::kernel);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::SteerReply>().never == never);
    CHECK(static_cast<monitor::Blocker>(a.as<wire::SteerReply>().blocker) == expected);
    CHECK(pair.client_ofd().tx_block == before);
    CHECK(pair.server_ofd().tx_block == 0);
}

TEST_CASE("a detached process is told, its listeners are not listed, and no link is made") {
    LivePair pair;
    const Directory *directory = pair.client.directory();
    REQUIRE(find_entry(directory, pair.socket.port) != nullptr);
    REQUIRE(pair.steer(SteerTo::detach).header.status == 0);
    CHECK((pair.client.segment.view.header().steering & kDetached) != 0);
    CHECK(find_entry(directory, pair.socket.port) == nullptr);
    CHECK((pair.made->view.header().side[1].flags & kLinkListenerClosed) != 0);
    const wire::Connect body{pair.listener, wire::kLoopbackAddresses};
    const Answer refused = pair.client.channel.ask(Op::connect, body);
    CHECK(refused.header.status == -EACCES);
    CHECK(static_cast<Cause>(refused.header.cause) == Cause::detached);
    // One that makes its next segment is told there, too, and what it makes listen is not listed.
    TestListener another;
    REQUIRE(pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {another.fd.get()}).header.status == 0);
    CHECK(find_entry(directory, another.port) == nullptr);

    REQUIRE(pair.steer(SteerTo::attach).header.status == 0);
    CHECK((pair.client.segment.view.header().steering & kDetached) == 0);
    CHECK(find_entry(directory, pair.socket.port) != nullptr);
    CHECK(find_entry(directory, another.port) != nullptr);
    CHECK(pair.client.channel.ask(Op::connect, body).header.status == 0);
}

TEST_CASE("a process stays detached when the monitor is restarted") {
    LivePair pair;
    REQUIRE(pair.steer(SteerTo::detach).header.status == 0);
    pair.monitor.stop(SIGKILL);
    pair.monitor.start();
    pair.client.hello(pair.monitor);
    const wire::Connect body{pair.listener, wire::kLoopbackAddresses};
    pair.server.hello(pair.monitor);
    const Answer listening = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()});
    REQUIRE(listening.header.status == 0);
    CHECK(find_entry(pair.client.directory(), pair.socket.port) == nullptr);
    CHECK(pair.client.channel.ask(Op::connect, body).header.status < 0);
}

TEST_CASE("whoever is no administrator shows a segment of the process") {
    if (geteuid() != 0) {
        return;
    }
    LivePair pair;
    TestProcess third(pair.monitor);
    const wire::Steer detach{static_cast<uint32_t>(SteerTo::detach), static_cast<uint32_t>(getpid()), 0, 0};
    const auto as_user = [&](auto act) {
        const pid_t pid = fork();
        if (pid == 0) {
            if (setgid(60002) != 0 || setuid(60002) != 0) {
                _exit(99);
            }
            _exit(act());
        }
        int status = 0;
        waitpid(pid, &status, 0);
        return WEXITSTATUS(status);
    };
    // Mode and directory let everybody in: it is the monitor that says no.
    chmod(pair.monitor.directory.c_str(), 0755);
    chmod(pair.monitor.socket.c_str(), 0777);
    CHECK(as_user([&] {
              Channel channel(UniqueFd(monitor::connect_monitor(pair.monitor.socket.c_str())));
              return -channel.ask(Op::steer, detach).header.status;
          }) == EPERM);
    // A segment in the hands of another user is no proof either.
    CHECK(as_user([&] {
              Channel channel(UniqueFd(monitor::connect_monitor(pair.monitor.socket.c_str())));
              return -channel.ask(Op::steer_mine, detach, {pair.client.segment.fd.get()}).header.status;
          }) == ESRCH);
    CHECK((pair.client.segment.view.header().steering & kDetached) == 0);
    // Nor is somebody else's of the same user.
    TestSegment strange;
    Channel channel(pair.monitor);
    CHECK(channel.ask(Op::steer_mine, detach, {strange.fd.get()}).header.status == -ESRCH);
    CHECK(channel.ask(Op::steer_mine, detach, {third.segment.fd.get()}).header.status == 0);
    CHECK((third.segment.view.header().steering & kDetached) != 0);
    CHECK((pair.client.segment.view.header().steering & kDetached) == 0);
}

TEST_CASE("what is not there cannot be steered") {
    LivePair pair;
    CHECK(pair.steer(SteerTo::detach, 1).header.status == -ESRCH);
    CHECK(pair.steer(static_cast<SteerTo>(4)).header.status == -EINVAL);
    Channel channel(pair.monitor);
    CHECK(channel
              .ask(Op::steer,
                   wire::Steer{static_cast<uint32_t>(SteerTo::kernel), static_cast<uint32_t>(getpid()), 1, 9})
              .header.status == -ENOENT);
}

TEST_CASE("who asks again and again to steer waits for a turn, and may hang up meanwhile") {
    LivePair pair;
    const wire::Steer detach{static_cast<uint32_t>(SteerTo::detach), static_cast<uint32_t>(getpid()), 0, 0};
    const int proof = pair.client.segment.fd.get();
    for (int i = 0; i < 50; ++i) {
        Channel gone(pair.monitor);
        REQUIRE(gone.tell(Op::steer_mine, detach, {proof}));
        REQUIRE(gone.tell(Op::steer_mine, detach, {proof}));
    }
    Channel stays(pair.monitor);
    for (int i = 0; i < 5; ++i) {
        CHECK(stays.ask(Op::steer_mine, detach, {proof}).header.status == 0);
    }
}

namespace {

/// The rest of the process's tests are in it as well.
bool own_network() {
    static const bool made = [] {
        if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) {
            return false;
        }
        const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        ifreq lo{};
        strcpy(lo.ifr_name, "lo");
        lo.ifr_flags = IFF_UP;
        return ioctl(fd.get(), SIOCSIFFLAGS, &lo) == 0;
    }();
    return made;
}

} // namespace

TEST_CASE("where no connection of this host comes about, nobody waits for the next one") {
    if (!own_network()) {
        SKIP_TEST("needs a network namespace of its own");
    }
    LivePair pair;
    // Somebody has a connection with these names, so sockets with others have to do.
    const UniqueFd user(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(pair.slot().identity.client.port);
    REQUIRE(bind(user.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
    name.sin_port = htons(pair.socket.port);
    REQUIRE(connect(user.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
    const auto blocker = [&] {
        const Answer a = pair.steer(SteerTo::kernel);
        REQUIRE(a.header.status == 0);
        return static_cast<monitor::Blocker>(a.as<wire::SteerReply>().blocker);
    };
    REQUIRE(system("nft 'add table inet p; add chain inet p out { type filter hook output priority 0; };"
                   "add rule inet p out tcp flags & (syn|ack) == syn drop'") == 0);
    const monitor::Blocker waited = blocker();
    REQUIRE(system("nft delete table inet p") == 0);
    CHECK(waited == monitor::Blocker::no_sockets);
    CHECK(blocker() == monitor::Blocker::no_sockets); // it is not tried again at once, and so not waited for
}
