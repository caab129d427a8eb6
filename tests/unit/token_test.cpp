// Tokens: one thread at a time, whoever asks, and no lock while nobody asks.
#include "libsd/control/sys.hpp"
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/queue/token.hpp"
#include <catch2/catch.hpp>
#include <memory>
#include <new>
#include <thread>
#include <vector>

using namespace sd;

namespace {

struct Table {
    std::unique_ptr<ThreadRecord[]> records{new ThreadRecord[256]()};
    static inline std::atomic<uint32_t> next{1};
    Table() {
        thread_table[0] = records.get();
        upward.register_thread = [](unsigned seg) noexcept {
            uint32_t i = next++;
            self.id[seg] = make_thread_id(i, 0);
            self.record[seg] = &thread_table[seg][i];
            note_identity(*self.record[seg]);
            self.record[seg]->state = 1;
            return i < 256;
        };
    }
    ~Table() { self = ThreadSelf{}; }
};

} // namespace

TEST_CASE("the owner of a token claims it again without taking it over") {
    Table t;
    Token token{};
    const uint64_t before = *takeover_count;
    for (int i = 0; i < 100; ++i) {
        Claim c(0, token, 2);
        REQUIRE(c);
        REQUIRE(token.owner == self.id[0]);
        REQUIRE(self.record[0]->busy[0] == 2);
    }
    REQUIRE(*takeover_count == before);
    REQUIRE(self.record[0]->busy[0] == 0);
    REQUIRE(self.depth == 0);
}

TEST_CASE("claims of different tokens nest, as in a signal handler") {
    Table t;
    Token a{}, b{};
    Claim outer(0, a, 2);
    {
        Claim inner(0, b, 4);
        REQUIRE(inner);
        REQUIRE(self.record[0]->busy[0] == 2);
        REQUIRE(self.record[0]->busy[1] == 4);
    }
    REQUIRE(self.record[0]->busy[1] == 0);
    REQUIRE(self.record[0]->busy[0] == 2);
}

TEST_CASE("a signal handler waits for the end of the outermost operation, whatever is inside it") {
    Table t;
    static ThreadRecord others[256];
    thread_table[1] = others;
    Token a{}, b{};
    Lock lock;
    REQUIRE_FALSE(inside_operation());
    {
        Claim outer(0, a, 2);
        REQUIRE(inside_operation());
        {
            Claim other_segment(1, b, 4);
            REQUIRE(inside_operation());
            QuietGuard guard(lock);
        }
        REQUIRE(inside_operation());
        { Claim nested(0, b, 4); }
        REQUIRE(inside_operation());
        outer.release();
        REQUIRE_FALSE(inside_operation());
    }
    {
        QuietGuard guard(lock);
        REQUIRE(inside_operation());
        { Claim inner(0, a, 2); }
        REQUIRE(inside_operation());
    }
    REQUIRE_FALSE(inside_operation());
    thread_table[1] = nullptr;
}

TEST_CASE("threads that take a token from each other are never inside together") {
    Table t;
    Token token{};
    uint64_t plain = 0; // not atomic on purpose: ThreadSanitizer proves the exclusion
    std::atomic<int> inside{0}, overlaps{0};
    constexpr int kThreads = 4, kRounds = 3000;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&] {
            for (int k = 0; k < kRounds; ++k) {
                Claim c(0, token, 2);
                if (inside.fetch_add(1) != 0)
                    ++overlaps;
                ++plain;
                inside.fetch_sub(1);
            }
        });
    for (auto &th : threads)
        th.join();
    REQUIRE(overlaps == 0);
    REQUIRE(plain == kThreads * kRounds);
    REQUIRE(*takeover_count > 0);
}

TEST_CASE("a token whose owner ended inside an operation can be taken") {
    Table t;
    Token token{};
    std::thread([&] {
        // Never released: the thread ends as if it was killed. The storage is static so that no leak is
        // reported.
        alignas(Claim) static unsigned char storage[sizeof(Claim)];
        auto *c = new (storage) Claim(0, token, 2);
        REQUIRE(*c);
        self = ThreadSelf{};
    }).join();
    Claim c(0, token, 2);
    REQUIRE(c);
    REQUIRE(token.owner == self.id[0]);
}

TEST_CASE("a token that changes hands all the time is a lock until one thread is alone again") {
    Table t;
    Token token{};
    uint64_t plain = 0;
    std::atomic<int> turn{0};
    const auto play = [&](int me) {
        for (int k = 0; k < 200; ++k) {
            while (turn.load() != me)
                sys::sched_yield();
            {
                Claim c(0, token, 2);
                ++plain;
            }
            turn.store(1 - me);
        }
    };
    const uint64_t before = *takeover_count;
    std::thread other(play, 1);
    play(0);
    other.join();
    REQUIRE(plain == 400);
    // 400 without lock mode; a pause of the machine ends it for a few turns
    REQUIRE(*takeover_count - before < 100);
    for (int i = 0; i < 1000; ++i)
        Claim c(0, token, 2);
    REQUIRE(token.owner == self.id[0]);
    REQUIRE(token.lock == 0);
}

TEST_CASE("a lock whose holder ended in lock mode is taken from it, and its work repaired") {
    Table t;
    static std::atomic<int> repairs{0};
    upward.repair = [](unsigned, uint64_t name) noexcept { repairs += name == 2; };
    Token token{};
    token.owner = Token::kShared;
    std::thread([&] {
        alignas(Claim) static unsigned char storage[sizeof(Claim)];
        auto *c = new (storage) Claim(0, token, 2);
        REQUIRE_NOTHROW(c->error());
        self = ThreadSelf{};
    }).join();
    REQUIRE(token.lock != 0);
    const int before = repairs;
    Claim c(0, token, 2);
    REQUIRE(c);
    REQUIRE(repairs == before + 1);
    c.release();
    REQUIRE(token.lock == 0);
    upward.repair = [](unsigned, uint64_t) noexcept {};
}

TEST_CASE("a taker that ended half way leaves the former owner to be waited for") {
    Table t;
    Token token{};
    std::atomic<int> step{0};
    std::atomic<bool> done{false};
    std::thread owner([&] {
        Claim c(0, token, 2);
        step = 1;
        while (step != 2)
            sys::sched_yield();
        done = true;
    });
    while (step != 1)
        sys::sched_yield();
    // As a thread leaves it that dies between T2 and T4.
    ThreadId dead = 0;
    std::thread([&] {
        REQUIRE(upward.register_thread(0));
        dead = self.id[0];
        self = ThreadSelf{};
    }).join();
    token.prev = token.owner.load();
    token.owner = dead;
    token.lock = dead;
    std::thread release([&] {
        timespec t{0, 30'000'000};
        nanosleep(&t, nullptr);
        step = 2;
    });
    Claim c(0, token, 2);
    REQUIRE(done);
    REQUIRE(c);
    owner.join();
    release.join();
}
