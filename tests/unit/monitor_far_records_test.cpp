// Records that go from the memory of one host's process to that of another's by way of the monitors.
#include "libsd/layout/record.hpp"
#include "monitor/peers/far_records.hpp"
#include "monitor/records/link.hpp"

#include <catch2/catch.hpp>
#include <cstring>

using namespace sd;
using namespace sd::monitor;

namespace {

constexpr uint32_t kSlot = 5;

struct Fixture {
    std::unique_ptr<Link> near = Link::create_far(7, {nullptr, 0, 0, 0}); ///< with the sender, side 1
    std::unique_ptr<Link> far = Link::create_far(8, {nullptr, 1, 0, 0});
    LinkView from() const { return near->view(0); }
    LinkView to() const { return far->view(0); }
    Slot &sent() const { return from().slot(kSlot); }
    Slot &got() const { return to().slot(kSlot); }

    /// A record of side 1 in the sender's memory; a byte of its payload is its place in the stream.
    RingPlace put(RingPlace at, uint32_t length, ring::RecordKind kind = ring::RecordKind::data) {
        uint8_t *r = ring_of(from(), at.cls);
        const uint32_t mask = kRingSize[at.cls] - 1;
        const auto offset = static_cast<uint32_t>(at.position - at.base);
        const uint64_t none = 0, header = ring::make_header(kind, length, at.position);
        const auto size = kind == ring::RecordKind::change ? 0 : static_cast<uint32_t>(ring::pad8(length));
        for (uint32_t i = 0; i < size; ++i)
            r[(offset + 8 + i) & mask] = i < length ? static_cast<uint8_t>(next++) : 0;
        memcpy(r + ((offset + 8 + size) & mask), &none, 8);
        memcpy(r + (offset & mask), &header, 8);
        at.position += 8 + size;
        if (kind == ring::RecordKind::change) {
            at = {length, at.position, at.position};
            memcpy(ring_of(from(), length), &none, 8);
        }
        return at;
    }
    uint8_t *ring_of(LinkView v, uint32_t cls) const {
        return cls == 0
                   ? v.slot(kSlot).ring[1]
                   : v.base + kFirstArenas + kFirstArena + (v.piece(kSlot, 1, cls).load() - 1) * kPieceUnit;
    }
    void take(uint64_t position) { got().side[0].credit.consumed = position; }
    uint64_t header_at(RingPlace at) const {
        uint64_t h;
        memcpy(&h, ring_of(to(), at.cls) + ((at.position - at.base) & (kRingSize[at.cls] - 1)), 8);
        return h;
    }
    uint8_t next = 1;
};

/// As they travel.
bool carry(RecordsWriter &writer, LinkView to, const std::string &bytes, size_t piece) {
    for (size_t at = 0; at < bytes.size(); at += piece)
        if (!writer.add(to, std::string_view(bytes).substr(at, piece)))
            return false;
    return true;
}

} // namespace

TEST_CASE("records are put where they stood, whole, whatever pieces they come in") {
    for (const size_t piece : {8, 16, 96}) {
        Fixture f;
        RingPlace at;
        RecordsWriter writer(kSlot, 1, at);
        uint8_t expected = 1;
        for (int round = 0; round < 40; ++round) { // around the ring, several times
            const RingPlace first = at;
            at = f.put(f.put(at, 33), 1);
            const RecordsRead read = read_records(f.from(), kSlot, 1, first, 1 << 20);
            REQUIRE(read.all);
            REQUIRE(read.sound);
            REQUIRE(read.bytes.size() == at.position - first.position);
            REQUIRE(carry(writer, f.to(), read.bytes, piece));
            REQUIRE_FALSE(writer.is_inside());
            REQUIRE(writer.place().position == at.position);
            REQUIRE(f.header_at(first) == ring::make_header(ring::RecordKind::data, 33, first.position));
            REQUIRE(f.header_at(at) == 0);
            for (uint32_t i = 0; i < 33; ++i)
                REQUIRE(f.got().ring[1][(first.position + 8 + i) & (kInlineRing - 1)] == expected++);
            REQUIRE(f.got().ring[1][(first.position + 56) & (kInlineRing - 1)] == expected++);
            f.take(at.position);
        }
    }
}

TEST_CASE("a ring that goes on in another one does so there") {
    Fixture f;
    f.from().piece(kSlot, 1, 1) = 1;
    f.from().piece(kSlot, 1, 2) = 5;
    RingPlace at = f.put({}, 8);
    at = f.put(at, 1, ring::RecordKind::change);
    const RingPlace in_first = at;
    at = f.put(at, 3000);
    at = f.put(at, 2, ring::RecordKind::change);
    at = f.put(at, 5000);
    const between_hosts::Words words = read_words(f.from(), kSlot, 1);
    put_first_words(f.to(), kSlot, 1, words);
    RecordsWriter writer(kSlot, 1, {});
    RingPlace from;
    for (int asked = 0; from.position != at.position; ++asked) { // each answer ends behind a record
        const RecordsRead read = read_records(f.from(), kSlot, 1, from, 1);
        REQUIRE(read.sound);
        REQUIRE(asked < 10);
        REQUIRE(carry(writer, f.to(), read.bytes, 96));
        from = writer.place();
    }
    CHECK(from.cls == 2);
    CHECK(from.base == at.base);
    CHECK(f.header_at(in_first) == ring::make_header(ring::RecordKind::data, 3000, in_first.position));
    CHECK(memcmp(f.ring_of(f.from(), 2), f.ring_of(f.to(), 2), 5008) == 0);
    CHECK(read_records(f.from(), kSlot, 1, from, 1).all);
}

TEST_CASE("what is held back comes as if it was not") {
    Fixture f;
    const RingPlace after = f.put({}, 16);
    const uint64_t none = 0, header = ring::make_header(ring::RecordKind::data, 16, 0);
    memcpy(f.sent().ring[1], &none, 8);
    CHECK(read_records(f.from(), kSlot, 1, {}, 1 << 20).bytes.empty());
    f.sent().side[1].control.back.header = header;
    const RecordsRead read = read_records(f.from(), kSlot, 1, {}, 1 << 20);
    CHECK(read.bytes.size() == after.position);
    RecordsWriter writer(kSlot, 1, {});
    REQUIRE(writer.add(f.to(), read.bytes));
    CHECK(f.header_at({}) == header);
}

TEST_CASE("words come over, but what only their receiver may say") {
    Fixture f;
    SlotSide &own = f.sent().side[1];
    own.control.flags = kFlagWriteShut | kFlagLost | kFlagHome;
    own.control.oob = 3;
    own.credit.consumed = 4;
    own.credit.path.offer = 5;
    own.credit.path.from = 6;
    own.credit.path.taken = 7;
    const between_hosts::Words words = read_words(f.from(), kSlot, 1);
    put_first_words(f.to(), kSlot, 1, words);
    SlotSide &there = f.got().side[1];
    CHECK(there.control.oob == 3);
    CHECK(there.control.flags == 0); // before the records they say nothing
    put_last_words(f.to(), kSlot, 1, words);
    CHECK(there.control.flags == (kFlagWriteShut | kFlagHome));
    CHECK(there.credit.consumed == 4);
    CHECK(there.credit.path.offer == 5);
    CHECK(there.credit.path.from == 6);
    CHECK(there.credit.path.taken == 7);
}

TEST_CASE("what is no record is neither read nor put") {
    Fixture f;
    memset(f.sent().ring[1], 0xff, kInlineRing);
    CHECK_FALSE(read_records(f.from(), kSlot, 1, {}, 1 << 20).sound);
    CHECK_FALSE(read_records(f.from(), kSlot, 1, {3, 0, 0}, 1 << 20).sound); // there is no such ring
    f.from().piece(kSlot, 1, 3) = ~0u;
    CHECK_FALSE(read_records(f.from(), kSlot, 1, {3, 0, 0}, 1 << 20).sound);
    for (const uint32_t cls : {0u, kRingClasses}) { // to itself, and to none
        const uint64_t header = ring::make_header(ring::RecordKind::change, cls, 0);
        memcpy(f.sent().ring[1], &header, 8);
        CHECK_FALSE(read_records(f.from(), kSlot, 1, {}, 1 << 20).sound);
    }

    const auto one = [](ring::RecordKind kind, uint32_t length, uint64_t position) {
        const uint64_t header = ring::make_header(kind, length, position);
        return std::string(reinterpret_cast<const char *>(&header), 8) +
               std::string(ring::pad8(length % 64), 'x');
    };
    const auto add = [&](const std::string &bytes) { return RecordsWriter(kSlot, 1, {}).add(f.to(), bytes); };
    CHECK_FALSE(add(one(ring::RecordKind::data, 8, 8)));                // of another place
    CHECK_FALSE(add(one(ring::RecordKind::data, ring::kMaxRecord, 0))); // no room in that ring
    CHECK_FALSE(add(one(ring::RecordKind::change, kRingClasses, 0)));
    CHECK_FALSE(add(one(ring::RecordKind::change, 0, 0))); // to itself
    CHECK_FALSE(add(one(ring::RecordKind::change, 1, 0))); // where there is none
    CHECK(add(one(ring::RecordKind::data, 8, 0)));
    // Nothing over what has not been read.
    RecordsWriter writer(kSlot, 1, {});
    uint64_t position = 0;
    while (position < kInlineRing && writer.add(f.to(), one(ring::RecordKind::data, 56, position)))
        position += 64;
    CHECK(position < kInlineRing);
    f.take(position);
    CHECK(RecordsWriter(kSlot, 1, writer.place()).add(f.to(), one(ring::RecordKind::data, 56, position)));
}
