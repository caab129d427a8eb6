// The short way for small messages does what the long way does, or nothing.
#include "libsd/queue/small_record.hpp"
#include "tests/unit/direction.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <sys/mman.h>

using namespace sd;

namespace {

bool same(const TxState &a, const TxState &b) {
    return a.tail == b.tail && a.base == b.base && a.cls == b.cls && a.bytes == b.bytes;
}

bool send_small(Direction &d, const std::vector<uint8_t> &v) {
    const ring::Place place = d.place();
    REQUIRE(place.settle(d.tx.cls) == 0);
    return ring::refresh_credit(d.tx, d.consumed) &&
           ring::put_small(d.tx, place, v.data(), static_cast<uint32_t>(v.size()));
}

/// The record that take_small() gives for a read of `n` bytes; empty: none.
std::vector<uint8_t> receive_small(Direction &d, size_t n) {
    std::vector<uint8_t> out(n);
    const ring::Place place = d.place();
    REQUIRE(place.settle(d.rx.cls) == 0);
    out.resize(ring::take_small(d.rx, place, out.data(), n));
    d.consumed.store(ring::read_up_to(d.rx), std::memory_order_release);
    return out;
}

} // namespace

TEST_CASE("what either way puts in, either way takes out, wherever in the ring it lies") {
    std::mt19937 random(20261121);
    for (uint32_t cls : {0u, 1u}) {
        Direction d;
        if (cls != 0)
            REQUIRE(ring::change_class(d.tx, d.place(), cls));
        unsigned sent_quickly = 0, taken_quickly = 0;
        for (unsigned i = 0; i < 20'000; ++i) {
            const auto in = pattern(1 + random() % 100, static_cast<uint8_t>(i));
            const TxState before = d.tx;
            const bool quick = random() % 2 != 0 && send_small(d, in);
            if (quick) {
                ++sent_quickly;
            } else {
                REQUIRE(same(d.tx, before));
                REQUIRE(d.send(in));
            }
            REQUIRE(d.tx.bytes == before.bytes + in.size());
            std::vector<uint8_t> out;
            if (random() % 2 != 0)
                out = receive_small(d, in.size() + random() % 2);
            if (!out.empty())
                ++taken_quickly;
            else
                REQUIRE(d.receive(out, 4096) == static_cast<long>(in.size()));
            REQUIRE(out == in);
            REQUIRE(d.rx.head == d.tx.tail);
            REQUIRE(d.rx.bytes == d.tx.bytes);
        }
        REQUIRE(sent_quickly > 5'000);
        REQUIRE(taken_quickly > 5'000);
    }
}

TEST_CASE("the short way leaves to the long one what is not a whole plain record by itself") {
    Direction d;
    std::vector<uint8_t> out;
    REQUIRE(receive_small(d, 100).empty()); // an empty ring
    REQUIRE(d.send(pattern(50, 1)));
    REQUIRE(receive_small(d, 49).empty()); // more than the caller takes
    REQUIRE(d.send(pattern(20, 2)));
    REQUIRE(receive_small(d, 60).empty()); // a read would find some of the next one, too
    REQUIRE(receive_small(d, 50) == pattern(50, 1));
    REQUIRE(d.receive(out, 5) == 5);
    REQUIRE(receive_small(d, 100).empty()); // the rest of a record
    REQUIRE(d.receive(out, 100) == 15);
    ring::put_urgent(d.tx, d.place(), 'u');
    REQUIRE(receive_small(d, 100).empty());
    ring::skip_urgent(d.rx);
    REQUIRE(ring::change_class(d.tx, d.place(), 1));
    REQUIRE(receive_small(d, 100).empty()); // a change of ring
    REQUIRE(d.receive(out, 100) == 0);
    REQUIRE(send_small(d, pattern(8, 3)));
    REQUIRE(receive_small(d, 8) == pattern(8, 3));
}

TEST_CASE("the short way takes nothing without room, and never crosses the end of the ring") {
    Direction d;
    unsigned sent = 0;
    while (send_small(d, pattern(8, static_cast<uint8_t>(sent))))
        ++sent;
    REQUIRE(sent == (kInlineRing - 8) / 16);
    REQUIRE(receive_small(d, 8) == pattern(8, 0));
    REQUIRE_FALSE(send_small(d, pattern(8, 1))); // the word after it would be the ring's first
    REQUIRE(d.send(pattern(8, 1)));
}

TEST_CASE("rubbish in place of a header is left to the long way, which refuses it") {
    Direction d;
    std::vector<uint8_t> out;
    REQUIRE(d.send(pattern(8, 1)));
    auto &header = ring::next_header(d.rx, d.place());
    const uint64_t good = header.load();
    for (uint64_t bad : {good ^ uint64_t{1} << 40, good | 0xffff, (good & ~uint64_t{0xffff}),
                         ring::make_header(ring::RecordKind::data, kInlineRing - 8, d.rx.head)}) {
        header.store(bad);
        const uint64_t head = d.rx.head;
        REQUIRE(receive_small(d, 1u << 16).empty());
        REQUIRE(d.rx.head == head);
        REQUIRE(d.receive(out, 1u << 16) == -EPROTO);
    }
    header.store(good);
    REQUIRE(receive_small(d, 8) == pattern(8, 1));
}
