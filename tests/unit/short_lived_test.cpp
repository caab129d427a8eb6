// Which connections are marked for discovery, or accelerated to a server that forks, where those before ended
// soon.
#include "libsd/vfs/paths/short_lived.hpp"

#include <catch2/catch.hpp>
#include <unistd.h>

using namespace sd;

namespace {

SlotAddress address(uint8_t last, uint16_t port) {
    SlotAddress a{};
    a.ip[10] = a.ip[11] = 0xff;
    a.ip[12] = 10;
    a.ip[15] = last;
    a.port = port;
    return a;
}

/// Of 160 connections that follow a row of short ones, those that would be marked. A pause of this process
/// between two of them ends the row, so it is tried again where that may have been.
unsigned marked_after_row(uint32_t destination, unsigned short_ones) {
    unsigned least = 160;
    for (unsigned again = 0; again < 200 && least > 10; ++again) {
        note_lasting(destination);
        for (unsigned i = 0; i < short_ones; ++i)
            note_short_lived(destination);
        unsigned marked = 0;
        for (unsigned i = 0; i < 160; ++i)
            marked += is_worth_marking(destination);
        least = marked < least ? marked : least;
    }
    return least;
}

} // namespace

TEST_CASE("after many short connections to a destination only some are marked") {
    const uint32_t destination = destination_of(address(1, 80));
    REQUIRE(marked_after_row(destination, 31) == 160);
    REQUIRE(marked_after_row(destination, 32) == 10);
    REQUIRE(marked_after_row(destination, 1000) == 10);
}

TEST_CASE("another port or address is another destination") {
    const uint32_t destination = destination_of(address(1, 81));
    const uint32_t others[] = {destination_of(address(1, 82)), destination_of(address(2, 81))};
    for (const uint32_t other : others) {
        REQUIRE(other != destination);
        for (int i = 0; i < 100; ++i)
            note_short_lived(destination);
        REQUIRE(is_worth_marking(other));
    }
}

TEST_CASE("a connection that lasts has all marked again") {
    const uint32_t destination = destination_of(address(1, 83));
    REQUIRE(marked_after_row(destination, 100) == 10);
    note_lasting(destination);
    for (int i = 0; i < 100; ++i)
        REQUIRE(is_worth_marking(destination));
}

TEST_CASE("connections that come seldom are marked always") {
    const uint32_t destination = destination_of(address(1, 84));
    for (int i = 0; i < 100; ++i)
        note_short_lived(destination);
    usleep(100'000);
    for (int i = 0; i < 20; ++i)
        REQUIRE(is_worth_marking(destination));
}

namespace {

/// Of 640 connections that follow `short_ones` to a server that forks for each, those that are accelerated.
unsigned accelerated_after_row(const SlotAddress &to, unsigned short_ones, uint64_t sends, uint64_t bytes,
                               bool forks = true) {
    unsigned least = 640;
    for (unsigned again = 0; again < 200 && least > 10; ++again) {
        note_forked(to, true, 1000, 0);
        for (unsigned i = 0; i < short_ones; ++i)
            note_forked(to, forks, sends, bytes);
        unsigned accelerated = 0;
        for (unsigned i = 0; i < 640; ++i)
            accelerated += is_worth_forking(to);
        least = accelerated < least ? accelerated : least;
    }
    return least;
}

} // namespace

TEST_CASE("after many short connections to a server that forks for each, few are accelerated") {
    REQUIRE(accelerated_after_row(address(1, 90), 31, 3, 100) == 640);
    REQUIRE(accelerated_after_row(address(1, 90), 32, 3, 100) == 10);
}

TEST_CASE("connections that send often or much, or to a server that does not fork, stay accelerated") {
    REQUIRE(accelerated_after_row(address(1, 91), 100, 20, 100) == 640);
    REQUIRE(accelerated_after_row(address(1, 92), 100, 3, 1'000'000) == 640);
    REQUIRE(accelerated_after_row(address(1, 93), 100, 3, 100, false) == 640);
}

TEST_CASE("one connection to a forking server that lasts, or a pause, has all accelerated again") {
    const SlotAddress to = address(1, 94);
    REQUIRE(accelerated_after_row(to, 100, 3, 100) == 10);
    note_forked(to, true, 1000, 0);
    for (int i = 0; i < 100; ++i)
        REQUIRE(is_worth_forking(to));
    for (int i = 0; i < 100; ++i)
        note_forked(to, true, 3, 100);
    usleep(500'000);
    for (int i = 0; i < 20; ++i)
        REQUIRE(is_worth_forking(to));
}
