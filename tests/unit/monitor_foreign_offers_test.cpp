// Offers of another host, which may send what it likes.
#include "monitor/records/foreign_offers.hpp"

#include <catch2/catch.hpp>

using namespace sd::monitor;
using between_hosts::Offer;

namespace {

Offer offer(uint64_t number, uint64_t nonce) { return {number, 1, {nonce, 0, 0, 0}}; }
PairKey pair_of(uint64_t nonce) { return {nonce, 0, 0, 0}; }

} // namespace

TEST_CASE("an offer of another host is found by its connection until it is withdrawn") {
    ForeignOffers offers;
    CHECK_FALSE(offers.add(offer(1, 10)));
    CHECK_FALSE(offers.add(offer(2, 20)));
    REQUIRE(offers.find(pair_of(10)) != nullptr);
    CHECK(offers.find(pair_of(10))->number == 1);
    CHECK(offers.find(pair_of(30)) == nullptr);
    offers.remove(1);
    offers.remove(1);
    offers.remove(7);
    CHECK(offers.find(pair_of(10)) == nullptr);
    CHECK(offers.size() == 1);
    offers.clear();
    CHECK(offers.find(pair_of(20)) == nullptr);
    CHECK(offers.size() == 0);
}

TEST_CASE("the same number, or the same connection, again stands in place of the former") {
    ForeignOffers offers;
    offers.add(offer(1, 10));
    offers.add(offer(1, 20));
    CHECK(offers.find(pair_of(10)) == nullptr);
    CHECK(offers.find(pair_of(20))->number == 1);
    offers.add(offer(2, 20));
    CHECK(offers.size() == 1);
    CHECK(offers.find(pair_of(20))->number == 2);
    offers.remove(1);
    CHECK(offers.find(pair_of(20))->number == 2);
}

TEST_CASE("of more offers than are kept the oldest makes room") {
    ForeignOffers offers(100);
    for (uint64_t i = 1; i <= 100; ++i) {
        CHECK_FALSE(offers.add(offer(i, i)));
    }
    offers.add(offer(1, 1)); // is the youngest now
    for (uint64_t i = 101; i <= 150; ++i) {
        CHECK(offers.add(offer(i, i)));
    }
    CHECK(offers.size() == 100);
    CHECK(offers.find(pair_of(1)) != nullptr);
    CHECK(offers.find(pair_of(51)) == nullptr);
    CHECK(offers.find(pair_of(52)) != nullptr);
    CHECK(offers.find(pair_of(150)) != nullptr);
}
