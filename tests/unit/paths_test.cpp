// A connection whose directions change their path: seeded sequences of calls against a model of its two
// streams.
#include "tests/unit/path_pair.hpp"

#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/ring_shrink.hpp"
#include <deque>
#include <linux/sockios.h>
#include <poll.h>
#include <random>
#include <string>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <thread>
#include <vector>

using namespace sd;
using namespace sd::test;

namespace {

constexpr uint8_t kEstablished = 1; ///< TCP state

/// Closed by the kernel alone.
struct UniqueNumber {
    int fd;
    explicit UniqueNumber(int n) : fd(n) {}
    ~UniqueNumber() { sys::close(fd); }
    UniqueNumber(const UniqueNumber &) = delete;
    UniqueNumber &operator=(const UniqueNumber &) = delete;
};

/// What has been sent each way and not been received.
struct Model {
    std::deque<char> unread[2];
    bool shut[2] = {};
    uint64_t sent = 0;
};

void run(uint32_t seed, uint64_t *moves) {
    INFO("seed " << seed);
    std::minstd_rand random(seed);
    PathPair p(kWantBoth);
    Model m;
    std::vector<char> bytes;
    for (int step = 0; step < 400; ++step) {
        INFO("step " << step);
        const unsigned me = random() % 2, peer = 1 - me;
        auto &coming = m.unread[me];
        switch (random() % 8) {
        case 0:
        case 1:
        case 2: { // send
            if (m.shut[me])
                break;
            bytes.resize(1 + random() % (random() % 8 == 0 ? 100000 : 600));
            for (char &b : bytes)
                b = static_cast<char>(random());
            const long r = p.send(me, bytes.data(), bytes.size(), random() % 16 == 0 ? MSG_MORE : 0);
            REQUIRE((r > 0 || r == -EAGAIN));
            if (r > 0)
                m.unread[peer].insert(m.unread[peer].end(), bytes.begin(), bytes.begin() + r);
            break;
        }
        case 3:
        case 4: { // receive all that a call of this size can have
            const size_t want = 1 + random() % (random() % 4 == 0 ? 200000 : 900);
            const int flags = random() % 4 == 0 ? MSG_PEEK : 0;
            bytes.resize(want);
            if (coming.empty()) {
                const long r = p.recv(me, bytes.data(), want, flags);
                if (m.shut[peer])
                    REQUIRE(soon([&] { return p.recv(me, bytes.data(), want, flags) == 0; }));
                else
                    REQUIRE(r == -EAGAIN);
                break;
            }
            long r = 0;
            REQUIRE(soon([&] { return (r = p.recv(me, bytes.data(), want, flags)) != -EAGAIN; }));
            REQUIRE(r > 0);
            REQUIRE(static_cast<size_t>(r) <= coming.size());
            REQUIRE(std::equal(bytes.begin(), bytes.begin() + r, coming.begin()));
            if (!flags)
                coming.erase(coming.begin(), coming.begin() + r);
            break;
        }
        case 5: { // what is there is one stream, once it has arrived
            const size_t all = coming.size();
            int waiting = 0; // in the sender's socket, with its FIN: the receiver's takes few small pieces
            REQUIRE(soon([&] {
                waiting = p.unsent(peer);
                const int arrived = static_cast<int>(all) - waiting;
                return p.unread(me) == arrived || (m.shut[peer] && waiting && p.unread(me) == arrived + 1);
            }));
            if (waiting)
                break;
            REQUIRE((p.events(me) & EPOLLIN) == (all || m.shut[peer] ? uint32_t{EPOLLIN} : 0u));
            if (all) {
                bytes.resize(all + 10);
                REQUIRE(soon(
                    [&] { return p.recv(me, bytes.data(), all + 10, MSG_PEEK) == static_cast<long>(all); }));
                REQUIRE(std::equal(coming.begin(), coming.end(), bytes.begin()));
            }
            break;
        }
        case 6: // readiness
            if (coming.size())
                REQUIRE(soon([&] { return p.events(me) & EPOLLIN; }));
            else if (!m.shut[peer])
                REQUIRE(!(p.events(me) & EPOLLIN));
            REQUIRE(!(p.events(me) & (EPOLLERR)));
            if (m.unread[peer].empty())
                REQUIRE(soon([&] { return p.events(me) & EPOLLOUT; }));
            break;
        default:
            if (random() % 100 == 0 && !m.shut[me]) {
                m.shut[me] = true;
                REQUIRE(vfs::shutdown(p.fd[me], SHUT_WR) == 0);
                REQUIRE(p.send(me, "x", 1) == -EPIPE);
            }
        }
    }
    for (unsigned i = 0; i < 2; ++i)
        *moves += p.to_ring(i) + p.to_kernel(i);
    // All that is left, and the end.
    for (unsigned me = 0; me < 2; ++me) {
        if (!m.shut[me])
            REQUIRE(vfs::shutdown(p.fd[me], SHUT_WR) == 0);
        auto &left = m.unread[1 - me];
        while (true) {
            bytes.resize(5000);
            long r = 0;
            REQUIRE(soon([&] { return (r = p.recv(1 - me, bytes.data(), bytes.size())) != -EAGAIN; }));
            if (r == 0)
                break;
            REQUIRE(r > 0);
            REQUIRE(static_cast<size_t>(r) <= left.size());
            REQUIRE(std::equal(bytes.begin(), bytes.begin() + r, left.begin()));
            left.erase(left.begin(), left.begin() + r);
        }
        REQUIRE(left.empty());
    }
}

} // namespace

TEST_CASE("one that stays in the kernel is a kernel connection") {
    PathPair p(kWantKernel);
    char room[100];
    for (unsigned i = 0; i < 20; ++i) {
        REQUIRE(p.recv(1, room, sizeof room) == -EAGAIN);
        REQUIRE(p.send(0, "hello", 5) == 5);
        REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
        REQUIRE(p.recv(1, room, sizeof room) == 5);
    }
    CHECK(p.to_ring(0) == 0);
    int low = 3;
    socklen_t n = sizeof low;
    REQUIRE(set_option(p.fd[1], SOL_SOCKET, SO_RCVLOWAT, &low, n) == 0);
    REQUIRE(get_option(p.fd[1], SOL_SOCKET, SO_RCVLOWAT, &low, &n) == 0);
    CHECK(low == 3);
    REQUIRE(p.send(0, "ab", 2) == 2);
    REQUIRE(soon([&] { return p.unread(1) == 2; }));
    CHECK(!(p.events(1) & EPOLLIN));
    REQUIRE(p.send(0, "c", 1) == 1);
    REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
}

TEST_CASE("both directions move when the receiver has agreed, and the socket is empty from then on") {
    PathPair p(kWantRing);
    char room[100];
    for (unsigned i = 0; i < 5; ++i)
        for (unsigned me = 0; me < 2; ++me) {
            REQUIRE(p.send(me, "hello", 5) == 5);
            REQUIRE(soon([&] { return p.recv(1 - me, room, sizeof room) == 5; }));
        }
    for (unsigned me = 0; me < 2; ++me) {
        const Ofd &o = *p.file(me)->ofd;
        CHECK(sends_in_ring(o));
        CHECK(receives_in_ring(o));
        CHECK(p.to_ring(me) == 1);
        CHECK(socket_pending(p.fd[me]) == 0);
        // As cheap as one that was born here
        CHECK(o.tx_block.load() == 0);
        CHECK(o.rcvlowat.load() == 1);
        tcp_info info{};
        socklen_t n = sizeof info;
        REQUIRE(sys::getsockopt(p.fd[me], IPPROTO_TCP, TCP_INFO, &info, &n) == 0);
        CHECK(info.tcpi_state == kEstablished);
    }
}

TEST_CASE("a member of an epoll set that is taken out and put in again is watched meanwhile, if it is idle") {
    PathPair p(kWantRing);
    char room[100];
    const auto exchange = [&](unsigned times) {
        for (unsigned i = 0; i < times; ++i)
            for (unsigned me = 0; me < 2; ++me) {
                REQUIRE(p.send(me, "hello", 5) == 5);
                REQUIRE(soon([&] { return p.recv(1 - me, room, sizeof room) == 5; }));
            }
    };
    exchange(5);
    REQUIRE(is_settled_in_ring(*p.file(0)));
    const int ep = static_cast<int>(sys::epoll_create1(EPOLL_CLOEXEC));
    vfs::epoll_created(ep);
    REQUIRE(file_of(ep));
    const Epoll &x = *file_of(ep)->epoll;
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = 7;
    const auto is_watched = [&] {
        epoll_event same{};
        same.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | static_cast<uint32_t>(EPOLLET);
        same.data.u64 = static_cast<uint32_t>(p.fd[0]);
        return sys::epoll_ctl(x.sockets, EPOLL_CTL_MOD, p.fd[0], &same) == 0;
    };
    const timespec now{0, 0};
    epoll_event got{};
    REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_ADD, p.fd[0], &e) == 0);
    CHECK(is_watched());
    REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_DEL, p.fd[0], nullptr) == 0);
    CHECK(is_watched());
    CHECK(vfs::epoll_ctl(ep, EPOLL_CTL_DEL, p.fd[0], nullptr) == -ENOENT);
    REQUIRE(p.send(1, "hello", 5) == 5);
    CHECK(vfs::epoll_wait(ep, &got, 1, &now, nullptr) == 0);
    REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_ADD, p.fd[0], &e) == 0);
    CHECK(vfs::epoll_wait(ep, &got, 1, &now, nullptr) == 1);
    CHECK(uint64_t{got.data.u64} == 7);
    REQUIRE(p.recv(0, room, sizeof room) == 5);
    SECTION("until its socket is used again") {
        REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_DEL, p.fd[0], nullptr) == 0);
        for (unsigned me = 0; me < 2; ++me)
            (p.file(me)->ofd->opt.*kPathWanted).store(kWantKernel);
        for (unsigned me = 0; me < 2; ++me)
            p.file(me)->ofd->tx_block.fetch_or(kTxPath);
        exchange(5);
        REQUIRE(soon([&] { return vfs::epoll_wait(ep, &got, 1, &now, nullptr) == 0 && !is_watched(); }));
        REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_ADD, p.fd[0], &e) == 0);
        CHECK(is_watched());
        REQUIRE(p.send(1, "hello", 5) == 5);
        CHECK(soon([&] { return vfs::epoll_wait(ep, &got, 1, &now, nullptr) == 1; }));
    }
    SECTION("or closed, while somebody else has the socket") {
        REQUIRE(vfs::epoll_ctl(ep, EPOLL_CTL_DEL, p.fd[0], nullptr) == 0);
        const UniqueNumber others(static_cast<int>(sys::fcntl(p.fd[0], F_DUPFD_CLOEXEC, 0)));
        vfs::close(p.fd[0]);
        epoll_event left{};
        shutdown(others.fd, SHUT_RD); // an edge, if it were watched
        CHECK(sys::epoll_pwait(x.sockets, &left, 1, 0, nullptr) == 0);
    }
    vfs::close(ep);
}

TEST_CASE("a direction is not moved before the receiver has agreed, nor again before it has followed") {
    PathPair p(kWantRing);
    char room[100];
    REQUIRE(p.send(0, "a", 1) == 1); // asks
    REQUIRE(p.send(0, "b", 1) == 1);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    REQUIRE(soon([&] { return p.unread(1) == 2; }));
    REQUIRE(p.recv(1, room, 1) == 1); // agrees
    REQUIRE(p.send(0, "c", 1) == 1);
    CHECK(sends_in_ring(*p.file(0)->ofd));
    CHECK(!receives_in_ring(*p.file(1)->ofd)); // "b" is in the socket
    (p.file(0)->ofd->opt.*kPathWanted).store(kWantKernel);
    REQUIRE(p.send(0, "d", 1) == 1);
    CHECK(sends_in_ring(*p.file(0)->ofd));
    CHECK(p.unread(1) == 3); // of which one is in the socket
    REQUIRE(p.recv(1, room, sizeof room) == 3);
    CHECK(std::string(room, 3) == "bcd");
    p.file(0)->ofd->tx_block.fetch_or(kTxPath);
    REQUIRE(p.send(0, "e", 1) == 1);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; }));
    CHECK(room[0] == 'e');
    CHECK(!receives_in_ring(*p.file(1)->ofd));
}

TEST_CASE("what was asked for and taken back before the receiver looked may be asked for again") {
    PathPair p(kWantRing);
    char room[100];
    const auto want = [&](uint32_t path) {
        (p.file(0)->ofd->opt.*kPathWanted).store(path);
        p.file(0)->ofd->tx_block.fetch_or(kTxPath);
    };
    REQUIRE(p.send(0, "a", 1) == 1); // asks
    want(kWantKernel);
    REQUIRE(p.send(0, "b", 1) == 1);
    REQUIRE(soon([&] { return p.unread(1) == 2; }));
    REQUIRE(p.recv(1, room, sizeof room) == 2);
    want(kWantRing);
    for (unsigned i = 0; i < 3; ++i) {
        REQUIRE(p.send(0, "c", 1) == 1);
        REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; }));
    }
    CHECK(sends_in_ring(*p.file(0)->ofd));
}

TEST_CASE("what was sent arrives in order, whatever changes its path meanwhile") {
    uint64_t moves = 0;
    for (uint32_t seed = 1; seed <= 60; ++seed)
        run(seed, &moves);
    INFO("moves " << moves);
    CHECK(moves > 500);
}

TEST_CASE("unread bytes in the socket or the ring make a close a reset") {
    for (const bool ring : {false, true}) {
        INFO(ring);
        PathPair p(ring ? kWantRing : kWantKernel);
        char room[100];
        for (unsigned i = 0; i < 3; ++i) {
            REQUIRE(p.send(0, "hello", 5) == 5);
            REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 5; }));
        }
        CHECK(receives_in_ring(*p.file(1)->ofd) == ring);
        REQUIRE(p.send(0, "unread", 6) == 6);
        REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
        vfs::close(p.fd[1]);
        REQUIRE(soon([&] { return p.events(0) & EPOLLERR; }));
        CHECK(p.recv(0, room, sizeof room) == -ECONNRESET);
        CHECK(p.recv(0, room, sizeof room) == 0);
    }
}

namespace {

/// Sends more than the inline ring holds. The other end has not received it.
void make_ring_grow(const PathPair &p) {
    const std::vector<char> bytes(3000);
    REQUIRE(p.send(0, bytes.data(), bytes.size()) == 3000);
    REQUIRE(p.file(0)->ofd->tx.s.cls != 0);
}
/// What is sent goes over the socket from the next send on, if the receiver has followed so far.
void want_kernel(const PathPair &p) {
    (p.file(0)->ofd->opt.*kPathWanted).store(kWantKernel);
    p.file(0)->ofd->tx_block.fetch_or(kTxPath);
}
/// Long enough for a ring in which nothing happens to be made small.
void be_idle() {
    for (unsigned i = 0; i < 3; ++i) {
        shrink_idle_rings();
        usleep(210'000);
    }
    shrink_idle_rings();
}

int socket_option(int fd, int level, int name) {
    int value = -1;
    socklen_t n = sizeof value;
    REQUIRE(sys::getsockopt(fd, level, name, &value, &n) == 0);
    return value;
}

int shown_option(int fd, int level, int name) {
    int value = -1;
    socklen_t n = sizeof value;
    REQUIRE(get_option(fd, level, name, &value, &n) == 0);
    return value;
}

} // namespace

TEST_CASE("a receiver finds the socket behind a ring that has become small") {
    PathPair p(kWantRing);
    settle(p);
    make_ring_grow(p);
    char room[3000];
    REQUIRE(p.recv(1, room, sizeof room) == 3000);
    be_idle();
    REQUIRE(p.file(0)->ofd->tx.s.cls == 0);
    want_kernel(p);
    REQUIRE(p.send(0, "a", 1) == 1);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
    CHECK(p.unread(1) == 1);
    REQUIRE(p.recv(1, room, sizeof room) == 1);
    CHECK(room[0] == 'a');
    CHECK(!receives_in_ring(*p.file(1)->ofd));
}

TEST_CASE("a ring that is left does not become small before its receiver has found its end") {
    PathPair p(kWantRing);
    settle(p);
    make_ring_grow(p);
    want_kernel(p);
    REQUIRE(p.send(0, "a", 1) == 1);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    char room[3000];
    REQUIRE(p.recv(1, room, 3000) == 3000); // all that is in the ring, and no more is looked for
    REQUIRE(receives_in_ring(*p.file(1)->ofd));
    be_idle();
    REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
    REQUIRE(p.recv(1, room, sizeof room) == 1);
    CHECK(room[0] == 'a');
    be_idle();
    CHECK(p.file(0)->ofd->tx.s.cls == 0);
}

TEST_CASE("the idle socket is kept alive, and the program does not see it") {
    PathPair p(kWantRing);
    const int before = shown_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE);
    settle(p);
    CHECK(socket_option(p.fd[0], SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(socket_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE) == 60);
    CHECK(shown_option(p.fd[0], SOL_SOCKET, SO_KEEPALIVE) == 0);
    CHECK(shown_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE) == before);
    const int idle = 30;
    REQUIRE(set_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) == 0);
    CHECK(socket_option(p.fd[0], SOL_SOCKET, SO_KEEPALIVE) == 0);
    CHECK(socket_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE) == 30);
    CHECK(shown_option(p.fd[0], IPPROTO_TCP, TCP_KEEPIDLE) == 30);
    CHECK(shown_option(p.fd[0], IPPROTO_TCP, TCP_KEEPCNT) == socket_option(p.fd[0], IPPROTO_TCP, TCP_KEEPCNT));
}

TEST_CASE("options whose words have another use are those of the socket") {
    PathPair p(kWantBoth);
    for (const int name : {TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT}) {
        INFO(name);
        CHECK(shown_option(p.fd[0], IPPROTO_TCP, name) == socket_option(p.fd[0], IPPROTO_TCP, name));
    }
}

TEST_CASE("one that is called home goes over its socket, and stays there") {
    PathPair p(kWantRing);
    settle(p);
    REQUIRE(vfs::fcntl(p.fd[0], F_SETFL, O_NONBLOCK | O_APPEND) == 0);
    REQUIRE(come_home(*p.file(0)));
    CHECK(socket_option(p.fd[0], SOL_SOCKET, SO_KEEPALIVE) == 0);
    CHECK((sys::fcntl(p.fd[0], F_GETFL) & O_APPEND) != 0);
    char room[100];
    for (unsigned i = 0; i < 5; ++i) { // as who has only the sockets
        REQUIRE(sys::call(SYS_sendto, p.fd[0], sys::arg("there"), 5, 0, 0, 0) == 5);
        REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 5; }));
        REQUIRE(p.send(1, "back", 4) == 4);
        REQUIRE(soon([&] {
            return sys::call(SYS_recvfrom, p.fd[0], sys::arg(room), sizeof room, MSG_DONTWAIT, 0, 0) == 4;
        }));
    }
}

TEST_CASE("one with an unread urgent byte in the ring does not come home, and loses none") {
    PathPair p(kWantRing);
    settle(p);
    REQUIRE(p.send(1, "unread", 6, MSG_OOB) == 6);
    CHECK(!come_home(*p.file(0)));
    char room[100];
    REQUIRE(p.recv(0, room, sizeof room) == 5);
    REQUIRE(p.send(1, "behind", 6) == 6);
    REQUIRE(soon([&] { return p.recv(0, room, sizeof room) == 6; }));
    CHECK(come_home(*p.file(0)));
}

TEST_CASE("a direction moves behind an urgent byte") {
    PathPair p(kWantRing);
    char room[100];
    REQUIRE(p.send(0, "ab", 2) == 2); // asks
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 2; }));
    REQUIRE(p.send(0, "cU", 2, MSG_OOB) == 2);
    REQUIRE(soon([&] { return p.events(1) & EPOLLPRI; }));
    (p.file(0)->ofd->opt.*kPathWanted).store(kWantRing);
    REQUIRE(p.send(0, "de", 2) == 2);
    REQUIRE(p.send(0, "f", 1) == 1);
    CHECK(sends_in_ring(*p.file(0)->ofd));
    REQUIRE(p.recv(1, room, 1, MSG_OOB) == 1);
    CHECK(room[0] == 'U');
    std::string all;
    REQUIRE(soon([&] {
        REQUIRE((p.events(1) & EPOLLIN || all == "cdef"));
        const long r = p.recv(1, room, sizeof room);
        if (r > 0)
            all.append(room, static_cast<size_t>(r));
        return all == "cdef";
    }));
    CHECK(receives_in_ring(*p.file(1)->ofd));
}

TEST_CASE("a receiver looks at the sender's word again once the ring was left, and only then") {
    PathPair p(kWantRing);
    settle(p);
    File &sender = *p.file(0), &receiver = *p.file(1);
    auto &flags = sender.mine->control.flags;
    REQUIRE((flags & (kFlagTellsLeaving | kFlagHasLeft)) == kFlagTellsLeaving);
    auto &word = sender.mine->credit.path.offer;
    const uint64_t said = word.exchange(path_word(9, kPathKernel)); // no honest sender's, without the flag
    REQUIRE(is_settled_in_ring(receiver));
    flags.fetch_or(kFlagHasLeft);
    REQUIRE_FALSE(is_settled_in_ring(receiver));
    word = said;
    // Of a sender of the first release, which has neither flag
    flags.fetch_and(~uint32_t{kFlagTellsLeaving | kFlagHasLeft});
    REQUIRE(is_settled_in_ring(receiver));
    word = path_word(9, kPathKernel);
    REQUIRE_FALSE(is_settled_in_ring(receiver));
    word = said;
}

TEST_CASE("a step that a killed sender has begun is finished, or was none") {
    for (const unsigned done : {0U, 1U, 2U}) {
        INFO(done);
        PathPair p(kWantRing);
        settle(p);
        File &f = *p.file(0);
        auto &own = f.ofd->opt.*kPathTx;
        const auto now = static_cast<uint32_t>(own.load());
        const uint32_t next = path_word((now >> 8) + 1, kPathKernel);
        own.store(static_cast<int32_t>(next | 0x80)); // as in take_step()
        f.ofd->tx_block.fetch_or(kTxPath);
        if (done >= 1)
            f.mine->control.flags.fetch_or(kFlagHasLeft);
        if (done >= 2) {
            f.mine->credit.path.from.store(f.ofd->tx.s.tail);
            f.mine->credit.path.offer.store(next);
        }
        char room[100];
        for (unsigned i = 0; i < 5; ++i) {
            REQUIRE(p.send(0, "hello", 5) == 5);
            REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 5; }));
        }
    }
}

TEST_CASE("a sender that is killed as it takes back what it has asked for has asked") {
    PathPair p(kWantRing);
    char room[100];
    REQUIRE(p.send(0, "a", 1) == 1);
    File &f = *p.file(0);
    auto &own = f.ofd->opt.*kPathTx;
    REQUIRE(static_cast<uint32_t>(own.load()) == path_word(1, kPathAsked));
    own.store(static_cast<int32_t>(path_word(1, kPathKernel) | 0x80)); // as in take_step()
    for (unsigned i = 0; i < 5; ++i) {
        REQUIRE(p.send(0, "hello", 5) == 5);
        REQUIRE(soon([&] { return p.recv(1, room, sizeof room) >= 5; }));
    }
    CHECK(sends_in_ring(*f.ofd));
}

TEST_CASE("a send of nothing tells of a reset") {
    PathPair p(kWantKernel);
    REQUIRE(p.send(0, "unread", 6) == 6);
    REQUIRE(soon([&] { return p.events(1) & EPOLLIN; }));
    vfs::close(p.fd[1]);
    REQUIRE(soon([&] { return p.events(0) & EPOLLERR; }));
    CHECK(p.send(0, "", 0) == -ECONNRESET);
    CHECK(p.send(0, "", 0) == -EPIPE);
}

TEST_CASE("an urgent byte waits for room in the socket") {
    PathPair p(kWantKernel, false);
    std::vector<char> bytes(65536);
    size_t sent = 0;
    for (unsigned quiet = 0; quiet < 20;) {
        const long r = p.send(0, bytes.data(), bytes.size(), MSG_DONTWAIT);
        sent += r > 0 ? static_cast<size_t>(r) : 0;
        quiet = r > 0 ? 0 : quiet + 1;
        usleep(1000);
    }
    CHECK(p.send(0, "U", 1, MSG_OOB | MSG_DONTWAIT) == -EAGAIN);
    std::thread reader([&] {
        usleep(20000);
        for (size_t got = 0; got < sent;) {
            const long r = p.recv(1, bytes.data(), bytes.size());
            got += r > 0 ? static_cast<size_t>(r) : sent;
        }
    });
    CHECK(p.send(0, "U", 1, MSG_OOB) == 1);
    reader.join();
}

TEST_CASE("one whose receiver has got more than was written stays in the socket, counted") {
    PathPair p(kWantRing);
    char room[100];
    auto &counted = stats().fallbacks[static_cast<unsigned>(Cause::counts_differ)];
    const uint64_t before = counted.load();
    REQUIRE(p.send(0, "a", 1) == 1);
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; })); // agrees
    p.file(1)->mine->credit.counted.fetch_add(6); // as if a box on the way had added so much
    for (unsigned i = 0; i < 5; ++i)
        for (unsigned me = 0; me < 2; ++me) {
            REQUIRE(p.send(me, "hello", 5) == 5);
            REQUIRE(soon([&] { return p.recv(1 - me, room, sizeof room) == 5; }));
        }
    CHECK(p.to_ring(0) == 0);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    CHECK(!sends_in_ring(*p.file(1)->ofd));
    CHECK(counted.load() == before + 1);

    // Also if somebody wishes it to go to the ring again (sdctl attach): they differ still.
    for (unsigned me = 0; me < 2; ++me) {
        (p.file(me)->ofd->opt.*kPathWanted).store(kWantRing);
        p.file(me)->ofd->tx_block.fetch_or(kTxPath);
        p.file(me)->mine->control.flags.fetch_and(~uint32_t{kFlagHome});
    }
    REQUIRE(p.send(0, "a", 1) == 1);
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; }));
    p.file(1)->mine->credit.counted.fetch_add(6);
    REQUIRE(p.send(0, "b", 1) == 1);
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    CHECK(counted.load() == before + 2);
}

TEST_CASE("a first move waits until the receiver has told of all that was written") {
    PathPair p(kWantRing);
    char room[100];
    REQUIRE(p.send(0, "a", 1) == 1);
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; }));
    p.file(1)->mine->credit.counted.fetch_sub(1);
    for (unsigned i = 0; i < 30; ++i) {
        REQUIRE(p.send(0, "b", 1) == 1);
        REQUIRE(soon([&] { return p.unsent(0) == 0; }));
    }
    CHECK(!sends_in_ring(*p.file(0)->ofd));
    REQUIRE(soon([&] { return p.unread(1) == 30; }));
    REQUIRE(p.recv(1, room, 1) == 1);
    REQUIRE(p.send(0, "c", 1) == 1);
    CHECK(sends_in_ring(*p.file(0)->ofd));
}

TEST_CASE("who has received more than was sent before the ring ends the connection") {
    PathPair p(kWantRing);
    char room[100];
    REQUIRE(p.send(0, "a", 1) == 1);
    REQUIRE(soon([&] { return p.recv(1, room, sizeof room) == 1; }));
    REQUIRE(p.send(0, "b", 1) == 1);
    REQUIRE(sends_in_ring(*p.file(0)->ofd));
    REQUIRE(sys::call(SYS_sendto, p.fd[0], sys::arg("more"), 4, 0, 0, 0) == 4); // as a box on the way would
    long r = 0;
    REQUIRE(soon([&] { return (r = p.recv(1, room, sizeof room)) != -EAGAIN; }));
    CHECK(r <= 0);
}

TEST_CASE("a peer that says there is enough, and has it nowhere, does not put off the end of a receive") {
    PathPair p(kWantRing, false);
    constexpr uint32_t in_ring = path_word(1, kPathRing);
    char room[100]{};
    File &f = *p.file(0);
    (f.ofd->opt.*kPathRx).store(path_word(1, kPathAsked));
    f.mine->credit.path.taken.store(path_word(1, kPathAsked));
    (p.file(1)->ofd->opt.*kPathTx).store(in_ring);
    auto &says = p.file(1)->mine->credit.path;
    says.from.store(1 << 20); // of the socket, where nothing ever comes
    says.offer.store(in_ring);
    REQUIRE(p.send(1, room, sizeof room) == sizeof room);
    const int low = 50;
    const timeval brief{0, 1000};
    REQUIRE(set_option(p.fd[0], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0);
    REQUIRE(set_option(p.fd[0], SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief) == 0);
    REQUIRE((p.events(0) & EPOLLIN) != 0);
    CHECK(p.recv(0, room, sizeof room) == -EAGAIN);
}
