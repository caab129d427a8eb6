// A connection whose link was lost goes back to its kernel socket, is offered again, and gets another link.
#include "libsd/vfs/paths/back_again.hpp"
#include "tests/unit/path_pair.hpp"

#include <deque>
#include <random>
#include <string>
#include <vector>

using namespace sd;
using namespace sd::test;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

/// A pair whose link can be lost. What is lost is said of the whole link, so only while this lives.
struct LosingPair : PathPair {
    LosingPair() : PathPair(kWantRing) {}
    ~LosingPair() { say_lost(false); }

    bool is_fresh(unsigned i) const { return file(i)->kind == FileKind::fresh; }
    /// As both monitors and processes do when a queue pair has ended.
    void lose() const {
        say_lost(true);
        for (unsigned i = 0; i < 2; ++i)
            if (!is_fresh(i))
                file(i)->mine->control.flags.fetch_or(kFlagHome);
    }
    /// As the next call would. True: it is the kernel's.
    bool anew(unsigned i) const {
        LinkMap *l = test_link(i);
        l->transport = &rdma_transport;
        offer_anew(fd[i], *file(i));
        l->transport = &shm_transport;
        return is_fresh(i);
    }
    /// Both ends are joined again.
    void join() const {
        say_lost(false);
        const int64_t slot = take_slot(*test_link(0));
        REQUIRE(slot >= 0);
        auto &s = test_link(0)->view.slot(static_cast<uint32_t>(slot));
        for (auto &side : s.side) {
            side.control.flags.store(0);
            for (auto *word : {&side.credit.path.offer, &side.credit.path.from, &side.credit.path.taken,
                               &side.credit.counted})
                word->store(0);
        }
        for (unsigned i = 0; i < 2; ++i)
            REQUIRE(become_joined(fd[i], *file(i), *test_link(i), static_cast<uint32_t>(slot)));
    }
    long put(unsigned i, const void *p, size_t n) const {
        return is_fresh(i) ? sys::call(SYS_sendto, fd[i], sys::arg(p), static_cast<long>(n), MSG_NOSIGNAL, 0, 0)
                           : send(i, p, n);
    }
    long get(unsigned i, void *p, size_t n) const {
        return is_fresh(i) ? sys::call(SYS_recvfrom, fd[i], sys::arg(p), static_cast<long>(n), 0, 0, 0)
                           : recv(i, p, n);
    }
    std::string get_some(unsigned i) const {
        std::string bytes(1000, '\0');
        long n = -EAGAIN;
        REQUIRE(soon([&] { return (n = get(i, bytes.data(), bytes.size())) != -EAGAIN; }));
        REQUIRE(n >= 0);
        bytes.resize(static_cast<size_t>(n));
        return bytes;
    }
    /// Both directions go over to the ring.
    void move() const {
        char byte;
        REQUIRE(soon([&] {
            for (unsigned i = 0; i < 2; ++i) {
                REQUIRE(put(i, "t", 1) == 1);
                REQUIRE(soon([&] { return get(1 - i, &byte, 1) == 1; }));
            }
            return is_settled_in_ring(*file(0)) && is_settled_in_ring(*file(1));
        }));
    }

  private:
    static void say_lost(bool is_so) {
        for (unsigned i = 0; i < 2; ++i)
            for (unsigned side = 0; side < 2; ++side) {
                auto &flags = test_link(i)->view.header().side[side].flags;
                is_so ? flags.fetch_or(kLinkLost) : flags.fetch_and(~uint32_t{kLinkLost});
            }
    }
};

/// Bytes both ways in pieces of all sizes, while links are lost and made again at random.
void run(uint32_t seed, unsigned *joined) {
    INFO("seed " << seed);
    std::minstd_rand random(seed);
    LosingPair p;
    std::deque<char> unread[2];
    std::vector<char> bytes;
    bool is_lost = false;
    for (int step = 0; step < 600; ++step) {
        INFO("step " << step);
        const unsigned me = random() % 2;
        switch (random() % 6) {
        case 0:
        case 1: {
            bytes.resize(1 + random() % (random() % 8 == 0 ? 100000 : 600));
            for (char &b : bytes)
                b = static_cast<char>(random());
            const long r = p.put(me, bytes.data(), bytes.size());
            REQUIRE((r > 0 || r == -EAGAIN));
            if (r > 0)
                unread[1 - me].insert(unread[1 - me].end(), bytes.begin(), bytes.begin() + r);
            break;
        }
        case 2:
        case 3: {
            const size_t want = 1 + random() % (random() % 4 == 0 ? 200000 : 900);
            bytes.resize(want);
            long r = 0;
            if (unread[me].empty()) {
                REQUIRE(p.get(me, bytes.data(), want) == -EAGAIN);
                break;
            }
            REQUIRE(soon([&] { return (r = p.get(me, bytes.data(), want)) != -EAGAIN; }));
            REQUIRE(r > 0);
            REQUIRE(static_cast<size_t>(r) <= unread[me].size());
            REQUIRE(std::equal(bytes.begin(), bytes.begin() + r, unread[me].begin()));
            unread[me].erase(unread[me].begin(), unread[me].begin() + r);
            break;
        }
        case 4:
            if (!is_lost && random() % 8 == 0) {
                p.lose();
                is_lost = true;
            }
            break;
        default:
            if (is_lost && !p.is_fresh(me))
                p.anew(me);
            if (is_lost && p.is_fresh(0) && p.is_fresh(1) && random() % 4 == 0) {
                p.join();
                is_lost = false;
                ++*joined;
            }
        }
    }
    for (unsigned i = 0; i < 2; ++i)
        while (!unread[i].empty()) {
            const std::string some = p.get_some(i);
            REQUIRE(some.size() <= unread[i].size());
            REQUIRE(std::equal(some.begin(), some.end(), unread[i].begin()));
            unread[i].erase(unread[i].begin(), unread[i].begin() + static_cast<ptrdiff_t>(some.size()));
        }
}

} // namespace

TEST_CASE("an end whose link was lost becomes the kernel's once nothing of the stream is in the ring") {
    LosingPair p;
    p.move();
    REQUIRE(p.put(0, "ring ", 5) == 5);
    CHECK_FALSE(p.anew(0)); // its link is not lost
    p.lose();
    CHECK_FALSE(p.anew(0)); // it is in the ring
    REQUIRE(p.put(1, "back", 4) == 4);
    CHECK(p.get_some(0) == "back");
    CHECK_FALSE(p.anew(0)); // its own direction
    REQUIRE(p.put(0, "socket ", 7) == 7);
    CHECK_FALSE(p.anew(0)); // its peer has not read the ring
    CHECK_FALSE(p.anew(1));
    std::string got = p.get_some(1);
    while (got.size() < 12)
        got += p.get_some(1);
    CHECK(got == "ring socket ");
    REQUIRE(p.put(0, "unread", 6) == 6);
    REQUIRE(p.anew(0));
    CHECK(may_be_joined(*p.file(0)));
    CHECK(is_too_early(*p.file(0)));
    // The other end goes on in its slot, and one knows nothing of the other.
    REQUIRE(p.put(0, " and more", 9) == 9);
    REQUIRE(p.put(1, "answer", 6) == 6);
    CHECK(p.get_some(0) == "answer");
    got = p.get_some(1);
    while (got.size() < 15)
        got += p.get_some(1);
    CHECK(got == "unread and more");
    REQUIRE(p.put(1, "waits", 5) == 5);
    REQUIRE(p.anew(1));
    p.join();
    CHECK(p.get_some(0) == "waits");
    p.move();
}

TEST_CASE("an end that its peer has asked to go over to the ring answers first that it does not") {
    LosingPair p;
    REQUIRE(p.put(1, "a", 1) == 1); // and asks
    REQUIRE(senders_word(*p.file(0)) == path_word(1, kPathAsked));
    p.lose();
    CHECK_FALSE(p.anew(0));
    REQUIRE(p.put(1, "b", 1) == 1); // and takes it back
    CHECK_FALSE(p.anew(0));
    CHECK_FALSE(p.anew(1));
    std::string got = p.get_some(0);
    while (got.size() < 2)
        got += p.get_some(0);
    CHECK(got == "ab");
    CHECK(p.anew(0));
    CHECK(p.anew(1));
}

TEST_CASE("an end that the program has more of than the kernel knows stays as it is") {
    for (const int how : {0, 1, 2, 3}) {
        INFO(how);
        LosingPair p;
        p.lose();
        if (how == 0)
            REQUIRE(vfs::shutdown(p.fd[1], SHUT_WR) == 0);
        else if (how == 1)
            (p.file(0)->ofd->opt.*kPathWanted).store(kWantKernel); // sdctl
        else if (how == 2)
            (p.file(0)->ofd->opt.*kPathStays).fetch_or(kStaysPinned);
        else
            p.file(0)->ofd->so_error.store(EPIPE);
        CHECK_FALSE(p.anew(0));
        p.file(0)->ofd->so_error.store(0);
    }
    LosingPair p;
    p.lose();
    const int copy = static_cast<int>(vfs::dup(p.fd[0], 0, true));
    REQUIRE(copy >= 0);
    CHECK_FALSE(p.anew(0));
    vfs::close(copy);
    CHECK(p.anew(0));
}

TEST_CASE("no byte is lost where links are lost and made again at random") {
    unsigned joined = 0;
    for (uint32_t seed = 1; seed <= 60; ++seed)
        run(seed, &joined);
    CHECK(joined > 20);
}

TEST_CASE("an end that was never joined is not offered again") {
    static File f;
    CHECK_FALSE(will_try_again(f, Cause::no_rdma));
    CHECK_FALSE(is_too_early(f));
}

TEST_CASE("an end whose link was lost is offered again later each time, up to 64 s") {
    static File f;
    f.unconnected.tries_anew = 1;
    for (const int64_t seconds : {2, 4, 8, 16, 32, 64, 64, 64}) {
        const int64_t before = sys::now_ns();
        REQUIRE(will_try_again(f, seconds == 8 ? Cause::remote_host : Cause::no_rdma));
        const int64_t after = sys::now_ns();
        CHECK(f.unconnected.not_before >= before + seconds * kSecond);
        CHECK(f.unconnected.not_before <= after + seconds * kSecond);
        CHECK(is_too_early(f));
    }
    f.unconnected.not_before = sys::now_ns() - 1;
    CHECK_FALSE(is_too_early(f));
}

TEST_CASE("what does not pass ends it") {
    static File f;
    f.unconnected.tries_anew = 1;
    for (const Cause why : {Cause::policy, Cause::listener_gone, Cause::detached, Cause::limit})
        CHECK_FALSE(will_try_again(f, why));
}
