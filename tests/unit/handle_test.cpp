// Handles in a ring: records whose bytes lie elsewhere.
#include "tests/unit/direction.hpp"
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/pools/pools.hpp"
#include <catch2/catch.hpp>

using namespace sd;

namespace {

ring::HandleRecord place_of(uint64_t pool, uint64_t offset, uint64_t buffer) {
    return {pool, offset | buffer << ring::kHandleOffsetBits};
}

} // namespace

TEST_CASE("a handle stands for as many bytes of the stream as its header says") {
    Direction d;
    ring::put_handle(d.tx, d.place(), place_of(7, 4096, 3), ring::kMaxHandle);
    REQUIRE(d.send(pattern(10, 1)));
    ring::put_handle(d.tx, d.place(), place_of(8, 0, 0), 1);
    CHECK(d.tx.bytes == ring::kMaxHandle + 11);
    CHECK(ring::available(d.rx, d.place(), 1 << 20) == long{ring::kMaxHandle} + 11);

    ring::Record r{};
    REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
    CHECK(r.length == ring::kMaxHandle);
    const ring::HandleRecord where = ring::handle_at(d.rx, d.place());
    CHECK(where.pool == 7);
    CHECK(where.place == (uint64_t{3} << ring::kHandleOffsetBits | 4096));
    // In parts, and the sender hears of it only when all is taken.
    CHECK(ring::skip(d.rx, r, 1000) == 1000);
    CHECK(ring::read_up_to(d.rx) == 0);
    CHECK(ring::inside(d.rx));
    REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
    CHECK(r.read == 1000);
    CHECK(r.length == ring::kMaxHandle);
    CHECK(ring::available(d.rx, d.place(), 1 << 20) == long{ring::kMaxHandle} + 11 - 1000);
    CHECK(ring::skip(d.rx, r, 1 << 20) == long{ring::kMaxHandle} - 1000);
    CHECK(ring::read_up_to(d.rx) == ring::kHandleFootprint);
    std::vector<uint8_t> out;
    CHECK(d.receive(out, 10) == 10);
    CHECK(out == pattern(10, 1));
    REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
    CHECK(ring::skip(d.rx, r, 5) == 1);
    CHECK(ring::next_record(d.rx, d.place(), d.consumed, &r) == 0);
}

TEST_CASE("handles wrap around their ring") {
    Direction d;
    for (uint32_t i = 0; i < 200; ++i) {
        REQUIRE(ring::refresh_credit(d.tx, d.consumed));
        REQUIRE(ring::room(d.tx) >= ring::kHandleFootprint);
        ring::put_handle(d.tx, d.place(), place_of(i, i * 8, i % 5), 1 + i);
        ring::Record r{};
        REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
        REQUIRE(ring::handle_at(d.rx, d.place()).pool == i);
        REQUIRE(ring::skip(d.rx, r, r.length) == long{i} + 1);
        d.consumed = ring::read_up_to(d.rx);
    }
}

TEST_CASE("a sender that was killed with a handle has sent it or not") {
    Direction d;
    const TxState before = d.tx;
    ring::put_handle(d.tx, d.place(), place_of(7, 0, 0), 50'000);
    const TxState after = d.tx;
    d.tx = before; // it had shown the header, and not counted it
    const Corked none{};
    ring::recover_tx(d.tx, d.place(), none);
    CHECK(d.tx.tail == after.tail);
    CHECK(d.tx.bytes == after.bytes);
    ring::recover_tx(d.tx, d.place(), none);
    CHECK(d.tx.tail == after.tail);
}

TEST_CASE("a receiver that was killed in a handle goes on there") {
    Direction d;
    ring::put_handle(d.tx, d.place(), place_of(7, 0, 0), 50'000); // longer than its ring
    ring::Record r{};
    REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
    REQUIRE(ring::skip(d.rx, r, 49'999) == 49'999);
    REQUIRE(ring::sound(d.rx));
    ring::recover_rx(d.rx, d.consumed);
    CHECK(d.consumed == 0);
    REQUIRE(ring::next_record(d.rx, d.place(), d.consumed, &r) == ring::kHandleNext);
    CHECK(r.read == 49'999);
}

TEST_CASE("a handle of nothing, or of too much, is rubbish") {
    for (const uint32_t n : {0u, ring::kMaxHandle + 1}) {
        Direction d;
        ring::word(d.place().inline_ring, 0) = ring::make_header(ring::RecordKind::handle, n, 0);
        ring::Record r{};
        CHECK(ring::next_record(d.rx, d.place(), d.consumed, &r) == -EPROTO);
        ring::word(d.place().inline_ring, 0) = 0;
    }
}

TEST_CASE("who receives nothing in place receives nothing, as with recv()") {
    const sd::test::StreamPair p;
    char byte = 0;
    ReceivedBytes got{};
    CHECK(receive_in_place(p.fd[0], &byte, 1, 0, MSG_DONTWAIT, &got) == -EAGAIN);
    REQUIRE(vfs::send(p.fd[1], p.file(1), "ab", 2, 0) == 2);
    for (const uint64_t spare : {1, 0})
        CHECK(receive_in_place(p.fd[0], &byte, spare, 0, MSG_DONTWAIT, &got) == 0);
    CHECK(got.pool == nullptr);
    CHECK(receive_in_place(p.fd[0], &byte, 1, 2, MSG_DONTWAIT, &got) == 1);
}
