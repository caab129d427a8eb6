// Storage that a forked child goes on with, whatever the parent's other threads were doing.
#include "libsd/control/pool.hpp"

#include <catch2/catch.hpp>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace sd;

namespace {

struct Thing {
    Thing() noexcept {} // its memory is not touched, so that many of them cost little
    Thing *pool_next = nullptr;
    char rest[4096 - sizeof(Thing *)];
};

/// Past ThreadSanitizer, which would miss the parent's thread.
[[noreturn]] void end(int status) {
    for (;;)
        syscall(SYS_exit_group, status);
}

} // namespace

TEST_CASE("a child that is forked while another thread takes memory finds its objects whole") {
    static constinit Pool<Thing> pool;
    static std::atomic<unsigned> made{0};
    // A child's look at each object costs a page of ThreadSanitizer's own, too.
#ifdef __SANITIZE_THREAD__
    static constexpr unsigned kForks = 20, kObjects = 10'000;
#else
    static constexpr unsigned kForks = 40, kObjects = 30'000;
#endif
    std::atomic<bool> over{false};
    std::thread maker([&] {
        while (!over && made < kObjects) {
            pool.allocate();
            ++made;
        }
    });
    unsigned failed = 0;
    for (unsigned n = 0; n < kForks; ++n) {
        const unsigned before = made;
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            pool.reset_lock();
            size_t found = 0;
            pool.for_each([&](Thing &t) { found += t.pool_next == nullptr; });
            for (unsigned i = 0; i < 40; ++i) {
                Thing *t = pool.allocate();
                if (t)
                    t->rest[0] = 1;
                else
                    end(1);
            }
            end(found >= before ? 0 : 2);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        failed += status != 0;
    }
    over = true;
    maker.join();
    CHECK(failed == 0);
}

TEST_CASE("a list that has made room takes the next thing, and does not move for it") {
    MapVector<uint64_t> list;
    REQUIRE(list.make_room());
    while (list.size() < 2000) { // beyond the first piece of memory
        REQUIRE(list.make_room());
        const size_t before = list.capacity_bytes();
        REQUIRE(list.push(list.size()));
        REQUIRE(list.capacity_bytes() == before);
    }
    for (size_t i = 0; i < list.size(); ++i)
        REQUIRE(list[i] == i);
    list.clear();
}
