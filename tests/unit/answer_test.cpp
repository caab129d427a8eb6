// The short look for an answer.
#include "libsd/cpu/answer.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <ctime>
#include <execinfo.h>
#include <sys/time.h>
#include <thread>

namespace {

std::atomic<unsigned> handled{0}, unwound{0};

/// Walks the stack from wherever the signal came: through the frame of the look, in any of its instructions.
void count(int) {
    void *frames[32];
    const int n = backtrace(frames, 32);
    handled.fetch_add(1);
    unwound.fetch_add(n > 3);
}

} // namespace

TEST_CASE("a word that is there is found at the first look") {
    std::atomic<uint64_t> word{uint64_t{1} << 63};
    REQUIRE(sd_await_word(&word, 1) != 0);
    REQUIRE(sd_await_word(&word, 1000) != 0);
    REQUIRE(word.load() == uint64_t{1} << 63);
}

TEST_CASE("a word that does not come is given up after so many looks") {
    std::atomic<uint64_t> word{0};
    for (unsigned looks : {1u, 2u, 3u, 256u, 100'000u})
        REQUIRE(sd_await_word(&word, looks) == 0);
}

TEST_CASE("a word that another thread writes is found, every time") {
    std::atomic<uint64_t> there{0}, back{0};
    constexpr uint64_t kTimes = 20'000;
    std::thread peer([&] {
        for (uint64_t n = 1; n <= kTimes; ++n) {
            while (!sd_await_word(&there, 64))
                std::this_thread::yield();
            const uint64_t got = there.exchange(0);
            back.store(got, std::memory_order_release);
        }
    });
    uint64_t wrong = 0;
    for (uint64_t n = 1; n <= kTimes; ++n) {
        there.store(n, std::memory_order_release);
        while (!sd_await_word(&back, 64))
            std::this_thread::yield();
        wrong += back.exchange(0) != n;
    }
    peer.join();
    REQUIRE(wrong == 0);
}

TEST_CASE("signals interrupt a look anywhere, and find a stack they can walk") {
    void *frame;
    REQUIRE(backtrace(&frame, 1) == 1); // loads what it needs before a handler does
    struct sigaction action {
    }, old{};
    action.sa_handler = count;
    REQUIRE(sigaction(SIGPROF, &action, &old) == 0);
    const itimerval often{{0, 1000}, {0, 1000}}, never{};
    REQUIRE(setitimer(ITIMER_PROF, &often, nullptr) == 0);
    std::atomic<uint64_t> word{0};
    unsigned found = 0;
    while (handled.load() < 100)
        found += sd_await_word(&word, 10'000) != 0;
    REQUIRE(setitimer(ITIMER_PROF, &never, nullptr) == 0);
    REQUIRE(sigaction(SIGPROF, &old, nullptr) == 0);
    REQUIRE(found == 0);
    REQUIRE(unwound.load() == handled.load());
}
