// What ended processes held is closed in pieces: others are answered meanwhile, and who asks for the end of
// it waits.
#include "monitor/records/segment.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>

using namespace sd;
using namespace sd::monitor;
using namespace sd::test;
using wire::Op;

namespace {

constexpr unsigned kMany = kOfds - 1; ///< as many as there can be

struct Family {
    std::unique_ptr<Link> link = Link::create(77, 5, 40000);
    TestSegment memory;
    std::shared_ptr<Segment> segment = Segment::open(UniqueFd(dup(memory.fd.get())));

    bool advance(Segment::Reaping &at, unsigned records) {
        return segment->advance(
            at, [this](uint64_t id, unsigned) { return id == 77 ? link.get() : nullptr; }, records);
    }
    bool is_open(unsigned ofd) { return memory.view.ofd(ofd).state == static_cast<uint32_t>(OfdState::open); }
    unsigned open(unsigned from, unsigned to) {
        unsigned n = 0;
        for (unsigned i = from; i < to; ++i) {
            n += is_open(i) ? 1 : 0;
        }
        return n;
    }
};

/// A client that holds many connections of one link, and is killed.
struct Crowd {
    Pair pair;
    SegmentView view;
    TestSegment *memory = nullptr;
    pid_t pid = -1;

    explicit Crowd(uid_t user = 0) {
        static TestSegment *shared;
        delete shared;
        shared = memory = new TestSegment; // inherited by the child, which says hello with it
        view = memory->view;
        chmod(pair.monitor.directory.c_str(), 0711);
        pid = in_child([&] {
            if (user != 0 && (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)) {
                _exit(1);
            }
            memory->view.proc(0).pid = static_cast<uint32_t>(getpid());
            static UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            static Channel channel(pair.monitor);
            const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
            if (channel.ask(Op::hello, body, {memory->fd.get(), socket.get()}).header.status != 0) {
                _exit(1);
            }
            const Answer a = channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
            for (unsigned i = 1; i <= kMany; ++i) {
                memory->open(i, a.as<wire::ConnectReply>().link_id, i % kLinkSlots, 0);
            }
        });
    }
    ~Crowd() { kill_child(pid); }
    unsigned open() const {
        unsigned n = 0;
        for (unsigned i = 1; i <= kMany; i += 997) {
            n += view.ofd(i).state == static_cast<uint32_t>(OfdState::open) ? 1 : 0;
        }
        return n;
    }
};

} // namespace

TEST_CASE("a piece is a bounded number of records") {
    Family f;
    for (unsigned i = 1; i <= 5000; ++i) {
        f.memory.open(i, 77, i % kLinkSlots, 0);
    }
    Segment::Reaping at = f.segment->reap({nullptr, 0});
    unsigned pieces = 0;
    for (unsigned before = 5000; before != 0; ++pieces) {
        const bool over = f.advance(at, 64);
        const unsigned now = f.open(1, 5001);
        REQUIRE(before - now <= 128);
        REQUIRE((now == 0 || !over));
        before = now;
    }
    REQUIRE(pieces >= 5000 / 128);
}

TEST_CASE("until its turn a dead process counts as a holder") {
    Family f;
    f.segment->members = {{nullptr, 0}, {nullptr, 1}};
    for (unsigned i = 1; i <= 1000; ++i) {
        f.memory.open(i, 77, i, 0, 0);
        f.memory.open(i, 77, i, 0, 1);
    }
    Segment::Reaping first = f.segment->reap({nullptr, 0}), second = f.segment->reap({nullptr, 1});
    REQUIRE_FALSE(f.advance(first, 64));
    while (!f.advance(second, 64)) {
    }
    std::erase(f.segment->members, second.who());
    REQUIRE(f.open(1, 1001) > 800);
    REQUIRE(f.is_open(1000));
    while (!f.advance(first, 64)) {
    }
    REQUIRE(f.open(1, 1001) == 0);
    REQUIRE(f.link->view(0).slot(1000).side[0].control.flags == (kFlagDead | kFlagClosed));
}

TEST_CASE("what the next program opens is not ended with what it did not take over") {
    Family f;
    f.segment->members = {{nullptr, 0}};
    for (unsigned i = 1; i <= 1000; ++i) {
        f.memory.open(i, 77, i, 0);
    }
    std::vector<uint64_t> kept(kOfds / 64);
    kept[0] = uint64_t{1} << 7;
    kept[900 / 64] = uint64_t{1} << 900 % 64;
    Segment::Reaping at = f.segment->retain({nullptr, 0}, kept);
    REQUIRE_FALSE(f.advance(at, 64));
    f.memory.open(1001, 77, 1001, 0); // in a word that has not been looked at
    f.memory.open(2000, 77, 2000, 0);
    while (!f.advance(at, 64)) {
    }
    REQUIRE(f.open(1, 1001) == 2);
    for (const unsigned still : {7, 900, 1001, 2000}) {
        REQUIRE(f.is_open(still));
    }
}

TEST_CASE("others are answered while the connections of a dead process are closed") {
    Crowd crowd;
    const unsigned all = crowd.open();
    REQUIRE(all > 100);
    kill(crowd.pid, SIGKILL);
    // Answered between two looks that both found some open and some closed.
    bool between = false, partly = false;
    for (unsigned now = all; now != 0;) {
        REQUIRE(crowd.pair.server.channel.ask(Op::check, wire::ListenerRef{crowd.pair.listener, 0}).header.status ==
                0);
        now = crowd.open();
        between = between || (partly && now != 0);
        partly = now != 0 && now != all;
    }
    REQUIRE(between);
}

TEST_CASE("whoever asks for what ended processes held waits until it is closed") {
    Crowd crowd;
    REQUIRE(crowd.open() > 100);
    kill(crowd.pid, SIGKILL);
    pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, crowd.pid, 0)), POLLIN, 0};
    REQUIRE(poll(&ended, 1, 10'000) == 1);
    const UniqueFd closed(ended.fd);
    REQUIRE(crowd.pair.server.channel.ask(Op::ends).header.status == 0);
    REQUIRE(crowd.open() == 0);
    // And nothing of it is asked for again.
    REQUIRE(crowd.pair.server.channel.ask(Op::ends).header.status == 0);
}

TEST_CASE("who gives up waiting for the end of others lives, and keeps what it holds") {
    Crowd crowd;
    REQUIRE(crowd.open() > 100);
    // In a child: this process has other records at the same monitor.
    const pid_t child = in_child([&] {
        const MonitorProcess &monitor = crowd.pair.monitor;
        static TestProcess process(monitor);
        const Answer made =
            process.channel.ask(Op::connect, wire::Connect{crowd.pair.listener, wire::kLoopbackAddresses});
        process.segment.open(3, made.as<wire::ConnectReply>().link_id, 8, 0);
        const UniqueFd dead(static_cast<int>(syscall(SYS_pidfd_open, crowd.pid, 0)));
        kill(monitor.pid, SIGSTOP);
        kill(crowd.pid, SIGKILL);
        pollfd ended{dead.get(), POLLIN, 0};
        poll(&ended, 1, 10'000);
        const wire::Header ends{wire::kMagic, wire::kVersion, static_cast<uint16_t>(Op::ends), 1, 0, 0, 0, 0};
        process.channel.raw(&ends, sizeof ends);
        process.channel.close();
        kill(monitor.pid, SIGCONT);
        const bool over = eventually([&] { return crowd.open() == 0; });
        if (!over || process.segment.view.ofd(3).state != static_cast<uint32_t>(OfdState::open)) {
            _exit(1);
        }
    });
    kill_child(child);
}

TEST_CASE("nobody waits for what a stranger has left to close") {
    if (geteuid() != 0) {
        SKIP_TEST("only root can become another user");
    }
    Crowd crowd(65534);
    REQUIRE(crowd.open() > 100);
    kill(crowd.pid, SIGKILL);
    pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, crowd.pid, 0)), POLLIN, 0};
    REQUIRE(poll(&ended, 1, 10'000) == 1);
    const UniqueFd closed(ended.fd);
    REQUIRE(crowd.pair.server.channel.ask(Op::ends).header.status == 0);
    REQUIRE(crowd.open() > 0);
}

TEST_CASE("a channel that comes back while its connections are being closed has to wait") {
    Pair pair;
    for (unsigned i = 1; i <= kMany; ++i) {
        pair.client.segment.open(i, 1, i % kLinkSlots, 0);
    }
    pair.client.channel.close();
    const auto last = [&] { return pair.client.segment.view.ofd(kMany).state.load(); };
    bool refused = false;
    REQUIRE(eventually([&] {
        Channel again(pair.monitor);
        const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
        const int status =
            again.ask(Op::hello, body, {pair.client.segment.fd.get(), pair.client.socket.get()}).header.status;
        refused = refused || status == -EBUSY;
        return status == 0;
    }));
    REQUIRE(last() == static_cast<uint32_t>(OfdState::free));
}
