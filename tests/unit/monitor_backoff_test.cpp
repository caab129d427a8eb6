// After failures in a row the next try is later each time, and at once after something has worked.
#include "monitor/hosts/backoff.hpp"

#include <catch2/catch.hpp>

using sd::monitor::Backoff;
using namespace std::chrono_literals;

TEST_CASE("pauses double from a second to 64") {
    Backoff backoff;
    auto now = Backoff::Clock::time_point{} + 1000s;
    CHECK(backoff.is_over(now));
    for (const auto pause : {1s, 2s, 4s, 8s, 16s, 32s, 64s, 64s, 64s}) {
        backoff.failed(now);
        CHECK_FALSE(backoff.is_over(now));
        CHECK_FALSE(backoff.is_over(now + pause - 1ms));
        CHECK(backoff.is_over(now + pause));
        now += pause;
    }
}

TEST_CASE("what has worked begins with a second again") {
    Backoff backoff;
    auto now = Backoff::Clock::time_point{} + 1000s;
    for (int i = 0; i < 5; ++i) {
        backoff.failed(now);
    }
    backoff.worked();
    CHECK(backoff.is_over(now));
    backoff.failed(now);
    CHECK_FALSE(backoff.is_over(now + 999ms));
    CHECK(backoff.is_over(now + 1s));
}

TEST_CASE("what has not failed for long begins with a second again") {
    Backoff backoff;
    auto now = Backoff::Clock::time_point{} + 1000s;
    CHECK(backoff.is_forgotten(now));
    backoff.failed(now);
    backoff.failed(now + 1s); // two seconds
    now += 3s;
    CHECK_FALSE(backoff.is_forgotten(now + 64s));
    CHECK(backoff.is_forgotten(now + 64s + 1ms));
    backoff.failed(now + 65s);
    CHECK_FALSE(backoff.is_over(now + 65s + 999ms));
    CHECK(backoff.is_over(now + 66s));
}
