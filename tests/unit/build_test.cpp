// The properties of the build that the rest relies on.
#include <catch2/catch.hpp>

#include <bit>
#include <cstddef>

TEST_CASE("the target is little-endian with 64-bit pointers") {
    REQUIRE(std::endian::native == std::endian::little);
    REQUIRE(sizeof(void *) == 8);
}
