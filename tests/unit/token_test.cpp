// Tokens: one thread at a time, whoever asks, and no lock while nobody asks.
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
        register_thread = [](unsigned seg) noexcept {
            uint32_t i = next++;
            self.index[seg] = i;
            self.record[seg] = &thread_table[seg][i];
            self.record[seg]->tid = static_cast<uint32_t>(sys::gettid());
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
    for (int i = 0; i < 100; ++i) {
        Claim c(0, token, 2);
        REQUIRE(c);
        REQUIRE(token.owner == self.index[0]);
        REQUIRE(self.record[0]->busy[0] == 2);
    }
    REQUIRE(token.takeovers == 0);
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
    REQUIRE(token.takeovers > 0);
}

TEST_CASE("a token whose owner ended inside an operation can be taken") {
    Table t;
    Token token{};
    std::thread([&] {
        // Never released: the thread ends as if it was killed. The storage is static so that no leak is reported.
        alignas(Claim) static unsigned char storage[sizeof(Claim)];
        auto *c = new (storage) Claim(0, token, 2);
        REQUIRE(*c);
        self = ThreadSelf{};
    }).join();
    Claim c(0, token, 2);
    REQUIRE(c);
    REQUIRE(token.owner == self.index[0]);
}
