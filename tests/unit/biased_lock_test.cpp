// The biased lock: one thread at a time, whoever comes and whenever.
#include "libsd/vfs/readiness/biased_lock.hpp"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace sd;

TEST_CASE("a second thread takes the lock from the favoured one in the middle of its work") {
    register_barrier();
    for (unsigned round = 0; round < 300; ++round) {
        BiasedLock lock;
        uint64_t a = 0, b = 0; // equal whenever the lock is free
        std::atomic<bool> differ{false}, stop{false};
        uint64_t favoured_turns = 0;
        std::thread favoured([&] {
            while (!stop) {
                BiasedGuard g(lock);
                differ = differ || a != b;
                ++a;
                asm volatile("" ::: "memory");
                ++b;
                ++favoured_turns;
            }
        });
        if (round % 2)
            std::this_thread::sleep_for(std::chrono::microseconds(round));
        std::vector<std::thread> others;
        for (unsigned t = 0; t < 2; ++t)
            others.emplace_back([&] {
                for (unsigned i = 0; i < 200; ++i) {
                    BiasedGuard g(lock);
                    differ = differ || a != b;
                    ++a;
                    asm volatile("" ::: "memory");
                    ++b;
                }
            });
        for (auto &t : others)
            t.join();
        stop = true;
        favoured.join();
        REQUIRE_FALSE(differ);
        REQUIRE(a == b);
        REQUIRE(a == 400 + favoured_turns);
    }
}

TEST_CASE("after a reset the lock belongs to whoever comes first") {
    BiasedLock lock;
    for (int i = 0; i < 3; ++i) {
        std::thread([&] {
            { BiasedGuard first(lock); }
            CHECK(lock.lock()); // without the inner lock
            lock.unlock(true);
        }).join();
        lock.reset();
    }
}
