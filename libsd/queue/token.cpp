// Taking a token over from another thread, and lock mode; the argument stands in token.hpp.
#include "libsd/queue/token.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/run_stopped.hpp"
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/transport/link.hpp"
#include <initializer_list>
#include <linux/membarrier.h>

namespace sd {

constinit thread_local ThreadSelf self{};
ThreadRecord *thread_table[kMaxSegments];

namespace {

constinit std::atomic<uint64_t> uncounted{0};

// A takeover costs about as much as 200 operations in lock mode. So a token that changes hands more often
// than that is better off there; and when a thread has come that often with nobody in between, going back
// cannot cost more than twice what staying had cost.
constexpr unsigned kBouncesToLock = 3;
constexpr unsigned kAlone = 200;
constexpr unsigned kStampShift = 22; ///< nanoseconds to Token::stamp
constexpr uint8_t kSoon = 2;         ///< in units of it

uint8_t stamp_now() noexcept { return static_cast<uint8_t>(sys::now_ns() >> kStampShift); }

/// Waiting for another thread to leave O3: it is there for less than a microsecond, unless it lost its core.
/// So look briefly, then give the core away, then sleep, longer and longer: its core may be taken by somebody
/// whom sched_yield does not put aside.
class Backoff {
  public:
    /// True each time it is worth asking whether the other thread can go on at all.
    bool pause() noexcept {
        ++n_;
        if (n_ < 64) {
            cpu::pause();
            return false;
        }
        if (n_ < 256) {
            sys::sched_yield();
            return false;
        }
        sys::nap(n_ < 300 ? 50'000 : 1'000'000);
        return (n_ - 256) % 16 == 0;
    }

  private:
    unsigned n_ = 0;
};

bool is_busy_on(const ThreadRecord &r, uint64_t token_id) noexcept {
    for (const auto &b : r.busy)
        if (b.load(std::memory_order_acquire) == token_id)
            return true;
    return false;
}

/// T3. Within one process the private form is enough and disturbs nobody else.
void fence_in(const ThreadRecord &other) noexcept {
    const uint32_t pid = other.pid.load(std::memory_order_relaxed);
    if (pid != 0 && pid == static_cast<uint32_t>(sys::getpid()) &&
        sys::membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) >= 0)
        return;
    heavy_barrier();
}

/// As the scope of PutOff, where the end is elsewhere.
void enter() noexcept {
    ++self.depth;
    cpu::in_order_for_handlers();
}

/// A mark in a busy word has taken over: handlers are put off still.
void leave_to_mark() noexcept {
    cpu::in_order_for_handlers();
    --self.depth;
}

/// The calling thread's name in one of its segments, 0 is nobody's.
[[maybe_unused]] bool is_self(ThreadId id) noexcept {
    for (const ThreadId mine : self.id)
        if (id != 0 && id == mine)
            return true;
    return false;
}

/// Handlers that came meanwhile get their turn.
void leave() noexcept {
    leave_to_mark();
    if (self.deferred) [[unlikely]]
        upward.run_deferred();
}

} // namespace

std::atomic<uint64_t> *takeover_count = &uncounted;

bool used_elsewhere(unsigned seg, const Token &token, uint64_t token_id) noexcept {
    uint32_t who = token.owner.load(std::memory_order_acquire);
    if (who == Token::kShared)
        who = token.lock.load(std::memory_order_acquire) & ~Token::kWaiters;
    return who != 0 && who != self.id[seg] && thread_table[seg] &&
           is_busy_on(thread_table[seg][thread_index(who)], token_id);
}

bool orphaned(unsigned seg, const Token &token) noexcept {
    if (!thread_table[seg])
        return false;
    for (const auto *word : {&token.owner, &token.lock}) {
        const uint32_t who = word->load(std::memory_order_acquire) & ~Token::kWaiters;
        if (who != 0 && who != Token::kShared && record_gone(thread_table[seg][thread_index(who)], who))
            return true;
    }
    return false;
}

namespace {

/// With the lock, handlers are put off (enter()). `*inherited`: its holder died with it. False: interrupted.
bool get_lock(unsigned seg, Token &token, ThreadId me, Claim::Patience patience, bool *inherited) noexcept {
    constexpr unsigned kLooks = 10, kYields = 4;
    const uint64_t interrupts = self.interrupts;
    uint32_t mark = 0;
    for (unsigned n = 0;; ++n) {
        uint32_t seen = 0;
        enter();
        if (token.lock.compare_exchange_strong(seen, me | mark, std::memory_order_acquire)) [[likely]]
            return true;
        leave();
        if (patience == Claim::interruptible && self.interrupts != interrupts) {
            self.refused = -EINTR;
            return false;
        }
        const uint32_t holder = seen & ~Token::kWaiters;
        // A handler for a fault that somebody sent with kill(): the only kind that is never put off
        if (holder == me) {
            self.refused = -EDEADLK;
            return false;
        }
        if (n < kLooks) {
            // Who has the lock is quicker when nobody looks at its cache line; it uses the lock many times in
            // this while.
            for (unsigned k = 0; k < 1u << (n < 6 ? n : 6); ++k)
                cpu::pause();
            continue;
        }
        if (n < kLooks + kYields) {
            sys::sched_yield();
            continue;
        }
        // From here on there may be others that sleep: only the last to wake up may forget it
        mark = Token::kWaiters;
        if (!(seen & Token::kWaiters) && !token.lock.compare_exchange_strong(seen, seen | Token::kWaiters))
            continue;
        timespec t{0, n < kLooks + kYields + 4 ? 1'000'000 : 10'000'000};
        const long r = sys::futex(&token.lock, 0 /*FUTEX_WAIT*/, holder | Token::kWaiters, &t);
        if (r != -ETIMEDOUT)
            continue;
        const ThreadRecord &record = thread_table[seg][thread_index(holder)];
        const Liveness liveness = liveness_of(record, holder);
        if (liveness == Liveness::stopped)
            run_stopped(record, token.lock, holder | Token::kWaiters);
        if (liveness != Liveness::gone)
            continue;
        seen = holder | Token::kWaiters;
        enter();
        if (token.lock.compare_exchange_strong(seen, me | mark, std::memory_order_acquire)) {
            *inherited = true;
            return true;
        }
        leave();
    }
}

/// T3, T4. False: it takes long, and a signal handler wants to run.
bool settle(unsigned seg, ThreadId prev, uint64_t token_id) noexcept {
    const ThreadRecord &r = thread_table[seg][thread_index(prev)];
    fence_in(r);
    for (Backoff wait;;) {
        if (record_gone(r, prev))
            break;
        if (!is_busy_on(r, token_id)) {
            // The words are cleared for the next thread that gets the record, after `generation`
            if (record_gone(r, prev))
                break;
            return true;
        }
        if (!wait.pause())
            continue;
        if (self.deferred)
            return false;
        const Liveness liveness = liveness_of(r, prev);
        if (liveness == Liveness::gone)
            break;
        if (liveness == Liveness::stopped)
            for (const auto &b : r.busy)
                if (b.load(std::memory_order_relaxed) == token_id)
                    run_stopped(r, b, token_id);
    }
    upward.repair(seg, token_id);
    return true;
}

} // namespace

void Claim::unlock(Token &token) noexcept {
    const uint32_t held = token.lock.exchange(0, std::memory_order_release);
    SD_ASSERT(is_self(held & ~Token::kWaiters)); // nobody takes it from one who lives
    if (held & Token::kWaiters) [[unlikely]]
        sys::futex(&token.lock, 1 /*FUTEX_WAKE, also for other processes*/, 1);
}

void Claim::end_unusual(Token &token, uintptr_t busy) noexcept {
    enter();
    SD_ASSERT(mark(busy).load(std::memory_order_relaxed) != 0);
    mark(busy).store(0, std::memory_order_release);
    if (busy & kLocked)
        unlock(token);
    leave();
}

uintptr_t Claim::take(unsigned seg, Token &t, uint64_t token_id, Patience patience) noexcept {
    self.refused = -ENOBUFS;
    if (self.id[seg] == 0 && !upward.register_thread(seg))
        return 0;
    const ThreadId me = self.id[seg];
    SD_ASSERT(token_id != 0 && is_self(me) && self.record[seg]);
    auto *busy = &self.record[seg]->busy[0];
    auto *const end = busy + kBusyDepth;
    uintptr_t how = 0;
    while (busy->load(std::memory_order_relaxed) != 0) {
        how = kNested;
        if (++busy == end)
            return 0;
    }
    if (how == kNested) { // the short way with another word
        busy->store(token_id, std::memory_order_relaxed);
        cpu::in_order_for_membarrier();
        if (t.owner.load(std::memory_order_acquire) == me)
            return reinterpret_cast<uintptr_t>(busy) | how;
        busy->store(0, std::memory_order_release);
    }
    const uint64_t interrupts = self.interrupts;
    for (;;) {
        bool inherited = false;
        if (!get_lock(seg, t, me, patience, &inherited))
            return 0;
        busy->store(token_id, std::memory_order_relaxed); // T1, L1
        leave_to_mark();
        const uint32_t owner = t.owner.load(std::memory_order_acquire);
        uint32_t prev = t.prev.load(std::memory_order_relaxed);
        if (owner == Token::kShared && prev == 0) {
            if (inherited) [[unlikely]]
                upward.repair(seg, token_id);
            const auto low = static_cast<uint8_t>(me);
            const unsigned streak = t.last.load(std::memory_order_relaxed) == low
                                        ? t.streak.load(std::memory_order_relaxed) + 1u
                                        : 0;
            t.last.store(low, std::memory_order_relaxed);
            t.streak.store(static_cast<uint8_t>(streak), std::memory_order_relaxed);
            if (streak >= kAlone) { // L2
                t.streak.store(0, std::memory_order_relaxed);
                t.owner.store(me, std::memory_order_release);
                unlock(t);
                return reinterpret_cast<uintptr_t>(busy) | how;
            }
            return reinterpret_cast<uintptr_t>(busy) | how | kLocked;
        }
        if (prev == 0 && owner != me) {
            prev = owner;
            t.prev.store(prev, std::memory_order_relaxed); // T0
        }
        const uint8_t now = stamp_now();
        const bool soon = static_cast<uint8_t>(now - t.stamp.load(std::memory_order_relaxed)) <= kSoon;
        const unsigned bounces = !soon || prev == 0 ? 0 : t.bounces.load(std::memory_order_relaxed) + 1u;
        const bool to_lock = bounces >= kBouncesToLock;
        t.bounces.store(static_cast<uint8_t>(to_lock ? kBouncesToLock - 1 : bounces), std::memory_order_relaxed);
        t.stamp.store(now, std::memory_order_relaxed);
        t.owner.exchange(to_lock ? Token::kShared : me, std::memory_order_seq_cst); // T2
        if (prev != 0 && prev != me) {
            takeover_count->fetch_add(1, std::memory_order_relaxed);
            SD_PROBE2(takeover, prev, me);
            if (!settle(seg, prev, token_id)) {
                // prev stays; the owner is nobody, so that we do not pass O2 while prev may be at work.
                enter();
                t.owner.store(0, std::memory_order_release);
                busy->store(0, std::memory_order_release);
                unlock(t);
                leave();
                if (patience == interruptible && self.interrupts != interrupts) {
                    self.refused = -EINTR;
                    return 0;
                }
                continue;
            }
        }
        if (inherited) [[unlikely]]
            upward.repair(seg, token_id);
        SD_ASSERT((t.lock.load(std::memory_order_relaxed) & ~Token::kWaiters) == me);
        SD_ASSERT(busy->load(std::memory_order_relaxed) == token_id);
        t.prev.store(0, std::memory_order_release); // T5
        if (to_lock) {
            t.last.store(static_cast<uint8_t>(me), std::memory_order_relaxed);
            t.streak.store(0, std::memory_order_relaxed);
            return reinterpret_cast<uintptr_t>(busy) | how | kLocked;
        }
        unlock(t);
        return reinterpret_cast<uintptr_t>(busy) | how;
    }
}

} // namespace sd
