// Links whose queue pair has ended: the monitor carries on from where the receiver says that it stands.
#include "libsd/layout/record.hpp"
#include "monitor/records/link.hpp"

#include <catch2/catch.hpp>
#include <cstring>

using namespace sd;
using namespace sd::monitor;

namespace {

struct Fixture {
    std::unique_ptr<Link> link = Link::create(77, 0, 0, {}, true);
    Slot &slot(unsigned side) { return link->view(side).slot(3); }

    /// A record of side 0 in `side`'s copy of its ring, at `position` in class 0.
    void put(unsigned side, uint64_t position, const char (&eight)[9]) {
        uint8_t *ring = slot(side).ring[0];
        const auto at = static_cast<uint32_t>(position) & (kInlineRing - 1);
        memcpy(ring + at + 8, eight, 8);
        const uint64_t none = 0, header = ring::make_header(ring::RecordKind::data, 8, position);
        memcpy(ring + at + 16, &none, 8);
        memcpy(ring + at, &header, 8);
    }
    uint64_t header(unsigned side, uint64_t position) {
        uint64_t h;
        memcpy(&h, slot(side).ring[0] + position, 8);
        return h;
    }
};

} // namespace

TEST_CASE("what had not arrived is carried, and nothing before it") {
    Fixture f;
    for (uint64_t position : {0, 16, 32}) {
        f.put(0, position, "12345678");
    }
    f.put(1, 0, "arrived!"); // what the queue pair has brought
    f.slot(0).side[0].control.flags = kFlagWriteShut;
    f.slot(0).side[0].credit.path.from = 48;
    f.slot(0).side[0].credit.path.offer = 7;

    mark_and_ring(*f.link, 3, 0, 0);
    CHECK(f.header(1, 16) == 0); // nobody has said how far it has come

    REQUIRE(f.link->arrived(3, 0, 0, 16, 0));
    mark_and_ring(*f.link, 3, 0, 0);
    CHECK(memcmp(f.slot(1).ring[0] + 8, "arrived!", 8) == 0);
    for (uint64_t position : {16, 32}) {
        CHECK(f.header(1, position) == f.header(0, position));
        CHECK(memcmp(f.slot(1).ring[0] + position + 8, "12345678", 8) == 0);
    }
    CHECK(f.header(1, 48) == 0);
    CHECK(f.slot(1).side[0].control.flags == kFlagWriteShut);
    CHECK(f.slot(1).side[0].credit.path.from == 48);
    CHECK(f.slot(1).side[0].credit.path.offer == 7);

    // The rest comes with the next change, and is not said again to one who tells another place.
    REQUIRE(f.link->arrived(3, 0, 0, 0, 0));
    f.put(0, 48, "87654321");
    mark_and_ring(*f.link, 3, 0, 0);
    CHECK(memcmp(f.slot(1).ring[0] + 8, "arrived!", 8) == 0);
    CHECK(memcmp(f.slot(1).ring[0] + 56, "87654321", 8) == 0);
}

TEST_CASE("the dead have said all that lies in their memory") {
    Fixture f;
    f.put(0, 0, "12345678");
    mark_and_ring(*f.link, 3, 0, kFlagDead | kFlagClosed);
    // The other side is told to end the queue pair, and then says where it stands.
    CHECK(f.link->lost());
    CHECK((f.link->header(1).side[0].flags & kLinkLost) != 0);
    CHECK((f.slot(1).side[0].control.flags & kFlagDead) != 0);
    CHECK(f.header(1, 0) == 0);
    REQUIRE(f.link->arrived(3, 0, 0, 0, 0));
    mark_and_ring(*f.link, 3, 0, 0);
    CHECK(f.header(1, 0) == f.header(0, 0));
}

TEST_CASE("places that no ring has are refused") {
    Fixture f;
    CHECK_FALSE(f.link->arrived(3, 0, kRingClasses, 0, 0));
    CHECK_FALSE(f.link->arrived(3, 0, 0, 4, 0));
    CHECK_FALSE(f.link->arrived(3, 0, 0, 8, 1));
    CHECK(f.link->carried(3) == nullptr);
    // A sender whose words make no sense reaches no byte outside of the ring.
    REQUIRE(f.link->arrived(3, 0, 5, 1u << 20, 0));
    f.link->view(0).piece(3, 0, 5) = ~0u;
    mark_and_ring(*f.link, 3, 0, 0);
    REQUIRE(f.link->arrived(4, 0, 0, 0, 0));
    memset(f.link->view(0).slot(4).ring[0], 0xff, kInlineRing);
    mark_and_ring(*f.link, 4, 0, 0);
    CHECK(f.link->carried(4)->direction[0].position == 0);
}
