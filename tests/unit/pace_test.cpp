// Sending no faster than a program can bear: which programs, and that it holds.
#include "libsd/control/sys.hpp"
#include "libsd/vfs/pace.hpp"
#include <catch2/catch.hpp>
#include <initializer_list>
#include <vector>

namespace {

bool needs(std::initializer_list<const char *> words) {
    std::vector<const char *> argv(words);
    argv.push_back(nullptr);
    return sd::needs_pace(static_cast<int>(words.size()), argv.data());
}

} // namespace

TEST_CASE("only sockperf's ping-pong client is slowed down, and only while it has no room for more") {
    CHECK(needs({"sockperf", "pp", "--tcp"}));
    CHECK(needs({"/usr/bin/sockperf", "ping-pong", "-i", "127.0.0.1"}));
    CHECK(needs({"sockperf", "pp", "--mps=max"}));
    CHECK_FALSE(needs({"sockperf", "pp", "--mps=5000000"}));
    CHECK_FALSE(needs({"sockperf", "pp", "--mps", "5000000"}));
    CHECK_FALSE(needs({"sockperf", "pp", "--pps=5000000"}));
    CHECK_FALSE(needs({"sockperf", "server", "--tcp"}));
    CHECK_FALSE(needs({"sockperf", "throughput"}));
    CHECK_FALSE(needs({"sockperf"}));
    CHECK_FALSE(needs({"sockperf-wrapper", "pp"}));
    CHECK_FALSE(needs({"qperf", "pp"}));
    CHECK_FALSE(needs({}));
}

TEST_CASE("no second has more than 600,000 messages") {
    const int64_t start = sd::sys::now_ns();
    for (int i = 0; i <= 6'000; ++i)
        sd::wait_for_pace();
    CHECK(sd::sys::now_ns() - start >= 10'000'000);
}
