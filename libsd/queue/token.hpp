// Tokens: who may send or receive on a socket, without a lock or an atomic read-modify-write while nobody else wants to.
//
// Each direction of each socket has a Token whose `owner` is a thread index of the family segment. A thread that owns it works like this:
//
//   O1  busy[depth] = name of the token        (plain store)
//   O2  owner == me ?                          (plain load) no: busy = 0, take()
//   O3  work (never blocks)
//   O4  busy[depth] = 0                        (release store)
//
// A taker, holding the token's takeover lock so that there is only one:
//
//   T1  busy[depth] = name                     so that the next taker waits for us
//   T2  owner = me
//   T3  membarrier: every running thread of the family passes a full fence
//   T4  wait until the old owner's busy words do not name the token (acquire)
//   T5  release the takeover lock; work as from O3
//
// Argument. The fence of T3 falls in the old owner either before its O2, which then reads T2's value and backs out; or after
// its O2, hence after O1, so that T4 sees the busy mark and waits for O4. Either way two threads are never in O3 together, and what the old owner wrote
// in O3 is visible to the taker through the release/acquire pair O4/T4. Waiting at T4 is bounded because nothing blocks in O3, unless the owner
// died there or is stopped: a dead owner is recognised (see wait_for_owner) and passed over; a stopped one runs again or dies.
// No cycle of waiting: only the holder of the takeover lock waits for a busy mark, and a thread that waits for the lock has no mark of that token.
#pragma once
#include "libsd/control/lock.hpp"
#include "libsd/queue/state.hpp"
#include <cstddef>

namespace sd {

constexpr unsigned kMaxSegments = 16; ///< family segments one process can have mapped

/// What the library keeps per thread. Initial-exec TLS, zero at thread start.
struct ThreadSelf {
    uint32_t index[kMaxSegments]; ///< thread index per segment, 0: not registered yet
    ThreadRecord *record[kMaxSegments];
    uint32_t depth;      ///< nesting of operations (signal handlers)
    uint32_t deferred;   ///< handlers put off until the operation ends; see api/signal
    uint64_t handled;    ///< signal handlers run in this thread: ends poll and epoll_wait
    uint64_t interrupts; ///< those installed without SA_RESTART: end every blocking call
    struct Bell *bell;   ///< the thread's own doorbell, made on first need
};
extern constinit thread_local ThreadSelf self;

/// Registers the calling thread in segment `seg`; false when its table is full. Set by vfs.
extern bool (*register_thread)(unsigned seg) noexcept;
/// Thread table of each mapped segment; written under vfs's lock before any socket of the segment is used.
extern ThreadRecord *thread_table[kMaxSegments];
/// Runs the handlers that were put off; set by api/signal.
extern void (*run_deferred)() noexcept;

/// The right to work on one direction, for a scope. Between construction and destruction nothing may block.
class Claim {
  public:
    /// `name` identifies the token in its segment (not 0).
    Claim(unsigned seg, Token &token, uint64_t name) noexcept : seg_(seg) {
        uint32_t me = self.index[seg];
        unsigned d = self.depth;
        if (me != 0 && d < kBusyDepth) [[likely]] {
            self.depth = d + 1;
            asm volatile("" ::: "memory"); // a handler that runs from here on must use the next busy word
            busy_ = &self.record[seg]->busy[d];
            busy_->store(name, std::memory_order_relaxed);
            asm volatile("" ::: "memory"); // O1 before O2 in program order; the processor's part is T3
            if (token.owner.load(std::memory_order_acquire) == me) [[likely]]
                return;
            busy_->store(0, std::memory_order_release);
            self.depth = d;
        }
        busy_ = take(token, name);
    }
    ~Claim() { release(); }
    void release() noexcept {
        if (!busy_)
            return;
        busy_->store(0, std::memory_order_release);
        busy_ = nullptr;
        asm volatile("" ::: "memory");
        if (--self.depth == 0 && self.deferred) [[unlikely]]
            run_deferred();
    }
    /// False only when the thread could not be registered or handlers nest too deep.
    explicit operator bool() const noexcept { return busy_ != nullptr; }
    Claim(const Claim &) = delete;
    Claim &operator=(const Claim &) = delete;

  private:
    std::atomic<uint64_t> *take(Token &token, uint64_t name) noexcept;
    std::atomic<uint64_t> *busy_ = nullptr;
    unsigned seg_;
};

/// Holds a Lock for a scope without a system call: signal handlers of this thread are put off meanwhile (by raising `depth`) instead of
/// being blocked. For short sections on paths that are taken often.
class QuietGuard {
  public:
    explicit QuietGuard(Lock &l) noexcept : lock_(l) {
        ++self.depth;
        asm volatile("" ::: "memory");
        lock_.lock_unmasked();
    }
    ~QuietGuard() {
        lock_.unlock_unmasked();
        asm volatile("" ::: "memory");
        if (--self.depth == 0 && self.deferred) [[unlikely]]
            run_deferred();
    }
    QuietGuard(const QuietGuard &) = delete;
    QuietGuard &operator=(const QuietGuard &) = delete;

  private:
    Lock &lock_;
};

/// True while the thread behind a record can still run. Slow (a system call).
bool thread_alive(const ThreadRecord &r) noexcept;

} // namespace sd
