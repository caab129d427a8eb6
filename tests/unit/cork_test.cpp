// Holding data back in the ring: invisible until one of the two ends shows it, whoever dies or lies.
#include "libsd/queue/cork.hpp"
#include "tests/unit/direction.hpp"

#include <catch2/catch.hpp>
#include <thread>

using namespace sd;

namespace {

struct CorkedSender : Direction {
    bool hold(const std::vector<uint8_t> &v, uint32_t answered = 0) {
        if (!ring::refresh_credit(tx, consumed) || ring::room(tx) < 8 + ring::pad8(v.size()))
            return false;
        const auto n = static_cast<uint32_t>(v.size());
        if (ring::copy_in(tx, place(), v.data(), n) < 0)
            return false;
        if (ring::is_corked(back, receiver)) {
            ring::commit(tx, place(), n);
            ring::cork_more(back, n, false);
        } else {
            ring::cork(tx, place(), back, receiver, n, 1, answered);
        }
        return true;
    }
    bool show() { return ring::uncork(tx, place(), back, receiver); }
    void uncork_late() { ring::uncork_late(rx, place(), back, receiver); }
    long waiting() { return ring::available(rx, place(), 1 << 24); }
    bool comes(const std::vector<uint8_t> &expected) {
        std::vector<uint8_t> out, all;
        while (all.size() < expected.size() && receive(out, 1 << 16) > 0)
            all.insert(all.end(), out.begin(), out.end());
        return all == expected;
    }
};

std::vector<uint8_t> joined(std::initializer_list<std::vector<uint8_t>> parts) {
    std::vector<uint8_t> all;
    for (const auto &p : parts)
        all.insert(all.end(), p.begin(), p.end());
    return all;
}

} // namespace

TEST_CASE("what is held back is not there until it is shown, by whichever end") {
    for (bool late : {false, true}) {
        CorkedSender c;
        for (int round = 0; round < 100; ++round) { // over the end of the ring
            REQUIRE(c.send(pattern(30, 1)));
            REQUIRE(c.hold(pattern(50, 2)));
            REQUIRE(c.hold(pattern(20, 3)));
            REQUIRE(c.waiting() == 30);
            REQUIRE(ring::cork_place(c.back).payload == 70);
            REQUIRE(c.comes(pattern(30, 1)));
            REQUIRE(c.waiting() == 0);
            REQUIRE(ring::all_uncorked_taken(c.tx, c.back, c.receiver));
            REQUIRE_FALSE(ring::all_taken(c.tx, c.consumed));
            if (late)
                c.uncork_late();
            else
                REQUIRE(c.show());
            REQUIRE_FALSE(ring::is_corked(c.back, c.receiver));
            REQUIRE(c.waiting() == 70);
            REQUIRE_FALSE(ring::all_uncorked_taken(c.tx, c.back, c.receiver));
            REQUIRE(c.comes(joined({pattern(50, 2), pattern(20, 3)})));
            REQUIRE_FALSE(c.show());
        }
    }
}

TEST_CASE("the receiver shows what stands behind data that is not read, or read in part") {
    CorkedSender c;
    std::vector<uint8_t> out;
    REQUIRE(c.send(pattern(30, 1)));
    REQUIRE(c.send(pattern(30, 2)));
    REQUIRE(c.hold(pattern(50, 3)));
    REQUIRE(c.receive(out, 10) == 10);
    c.uncork_late();
    REQUIRE(c.waiting() == 100);
    REQUIRE(c.receive(out, 100) == 20);
    REQUIRE(c.comes(joined({pattern(30, 2), pattern(50, 3)})));
}

TEST_CASE("what is held back may go on in other rings") {
    for (bool late : {false, true}) {
        CorkedSender c;
        REQUIRE(c.send(pattern(30, 1)));
        REQUIRE(c.hold(pattern(300, 2)));
        REQUIRE(ring::change_class(c.tx, c.place(), 1));
        REQUIRE(c.hold(pattern(9000, 3)));
        REQUIRE(ring::change_class(c.tx, c.place(), 3));
        REQUIRE(c.hold(pattern(20000, 4)));
        REQUIRE(c.waiting() == 30);
        if (late)
            c.uncork_late();
        else
            REQUIRE(c.show());
        REQUIRE(c.comes(joined({pattern(30, 1), pattern(300, 2), pattern(9000, 3), pattern(20000, 4)})));
        // The first of a ring.
        REQUIRE(ring::change_class(c.tx, c.place(), 4));
        REQUIRE(c.hold(pattern(40, 5)));
        REQUIRE(c.waiting() == 0);
        REQUIRE(ring::all_uncorked_taken(c.tx, c.back, c.receiver));
        if (late)
            c.uncork_late();
        else
            REQUIRE(c.show());
        REQUIRE(c.comes(pattern(40, 5)));
    }
}

TEST_CASE("a sender that dies when it begins to hold back, or shows it, loses and repeats nothing") {
    // Before the header is noted; after that; and after the receiver has shown it as well.
    for (int done = 0; done < 4; ++done) {
        CorkedSender c;
        REQUIRE(c.send(pattern(20, 1)));
        const TxState before = c.tx;
        REQUIRE(c.hold(pattern(100, 2)));
        c.tx = before;
        if (done == 0)
            c.back.header = 0;
        if (done >= 2)
            c.uncork_late();
        if (done == 3) // the receiver was killed before it said so
            c.receiver.shown = 0;
        for (int again = 0; again < 2; ++again)
            ring::recover_tx(c.tx, c.place(), c.back);
        REQUIRE(c.hold(pattern(30, 3)));
        c.show();
        REQUIRE(c.comes(done == 0 ? joined({pattern(20, 1), pattern(30, 3)})
                                  : joined({pattern(20, 1), pattern(100, 2), pattern(30, 3)})));
        REQUIRE(c.waiting() == 0);
    }
}

TEST_CASE("a word that was not cleared after it was shown does no harm") {
    for (bool late : {false, true}) {
        CorkedSender c;
        REQUIRE(c.hold(pattern(100, 1)));
        const uint64_t header = c.back.header;
        REQUIRE(c.show());
        REQUIRE(c.comes(pattern(100, 1)));
        std::vector<uint8_t> sent;
        for (uint8_t i = 0; i < 6; ++i) {
            REQUIRE(c.send(pattern(40, i)));
            sent = joined({sent, pattern(40, i)});
        }
        c.back.header = header;
        if (late)
            c.uncork_late();
        else
            c.show();
        REQUIRE_FALSE(ring::is_corked(c.back, c.receiver));
        REQUIRE(c.comes(sent));
        REQUIRE(c.waiting() == 0);
    }
}

TEST_CASE("lies about what is held back stay in the liar's ring") {
    for (uint64_t where :
         {uint64_t{0}, ~uint64_t{0}, uint64_t{0x5555555555555555}, uint64_t{0xaaaaaaaaaaaaaaaa}}) {
        const ring::CorkPlace w = ring::unpack(where);
        REQUIRE(w.cls < kRingClasses);
        REQUIRE(w.offset % 8 == 0);
        REQUIRE(w.offset + 8 <= kRingSize[w.cls]);
        CorkedSender c;
        REQUIRE(c.send(pattern(30, 1)));
        for (uint64_t header : {uint64_t{1}, ~uint64_t{0}, ring::make_header(ring::RecordKind::data, 70000, 40),
                                ring::make_header(ring::RecordKind::change, 77, 40)}) {
            c.back.header = header;
            c.back.where = where;
            c.uncork_late();
            REQUIRE_FALSE(ring::is_corked(c.back, c.receiver));
        }
        std::vector<uint8_t> out;
        REQUIRE(c.receive(out, 100) == 30);
        REQUIRE(c.receive(out, 100) <= 0); // nothing, or refused
    }
    const ring::CorkPlace kept = ring::unpack(ring::pack({100000, 4u << 20 >> 1, 5, ring::answered_mark(4096)}));
    REQUIRE(kept.payload == 100000);
    REQUIRE(kept.offset == 2u << 20);
    REQUIRE(kept.cls == 5);
    REQUIRE(kept.answered == ring::answered_mark(4096));
}

TEST_CASE("both ends show at the same time") {
    CorkedSender c;
    REQUIRE(ring::change_class(c.tx, c.place(), 2));
    constexpr uint32_t kRecords = 40000;
    std::thread sender([&] {
        uint32_t n = 0;
        while (n < kRecords) {
            std::vector<uint8_t> v(4 + n % 50);
            memcpy(v.data(), &n, 4);
            if (n % 7 < 5 ? c.hold(v) : c.send(v))
                ++n;
            else
                std::this_thread::yield();
            if (n % 7 == 6 || n % 64 == 0)
                c.show();
        }
        c.show();
    });
    bool right = true;
    uint32_t n = 0;
    while (n < kRecords && right) {
        std::vector<uint8_t> out;
        const long r = c.receive(out, 100);
        if (r == 0) {
            c.uncork_late();
            continue;
        }
        uint32_t which = ~0u;
        if (r >= 4)
            memcpy(&which, out.data(), 4);
        right = which == n && out.size() == 4 + n % 50;
        ++n;
    }
    sender.join();
    REQUIRE(right);
}
