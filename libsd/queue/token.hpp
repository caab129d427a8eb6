// Tokens: who may send or receive on a socket, without a lock or an atomic read-modify-write while nobody
// else wants to.
//
// Each direction of each socket has a Token whose `owner` is a thread of the family. The owner works like
// this:
//
//   O1  busy[n] = id of the token          (plain store; n is 0 unless the thread is in another operation)
//   O2  owner == me ?                      (plain load) no: busy = 0, take()
//   O3  work (never blocks)
//   O4  busy[n] = 0                        (release store)
//
// The busy word serves twice: it tells takers that the thread is in O3, and it tells the thread's own signal
// handlers that they have to wait for O4. So a claim costs two stores and no others.
//
// Whoever is not the owner gets the token's lock (`lock` = its own id) and looks at `owner`.
//
//   Takeover: `owner` is some other thread (or 0: nobody's).
//   T0  prev = owner, unless prev is set already: then it stays, see below
//   T1  busy[n] = id                           so that the next taker waits for us
//   T2  owner = me                             to go over to lock mode: owner = kShared
//   T3  membarrier: every running thread of the family passes a full fence
//   T4  wait until the busy words of prev do not name the token (acquire), or prev is dead: then repair()
//   T5  prev = 0; release the lock (in lock mode keep it until O4); work as from O3
//
//   Lock mode: `owner` is kShared, so O2 fails for everybody, and the lock is held during O3.
//   L1  busy[n] = id
//   L2  the same thread came many times with nobody in between: owner = me, release the lock; the token is
//       its own again
//   L3  work as from O3; after O4 release the lock
//
// One at a time. The fence of T3 falls in prev either before its O2, which then reads T2's value and backs
// out; or after its O2, hence after O1, so that T4 sees the busy mark and waits for O4. Either way two
// threads are never in O3 together, and what prev wrote in O3 is visible to the taker through the
// release/acquire pair O4/T4. In lock mode the lock does both. A thread that goes from lock mode to owner
// (L2) has its busy mark set before it lets the lock go, so a taker finds it at T4.
//
// Nobody waits for ever. Nothing blocks in O3. Only the holder of the lock waits for a busy mark, and a
// thread that waits for the lock has no mark of that token. A thread holds two tokens only to close, the
// sending one first. A thread that was stopped (SIGSTOP, a debugger) in O3 is run until it has left O3 where
// we may (queue/run_stopped.cpp); where we may not, the wait ends when it is continued or dies, or in EINTR.
// While it waits a thread runs its signal handlers.
//
// Death at any instruction. A lock whose holder is dead is taken from it, and the taker goes on as if it had
// just got it, because each step leaves a state in which that is right:
//   before T2   owner is still prev, who works on as ever; T0 sees prev set and keeps it
//   T2..T5      prev is set, and names the only thread that can be in O3 (the dead taker was not there yet):
//               it is the one to wait for
//   T5, L1, L3  prev is 0: nobody but the dead one can have been in O3: repair()
//   L2          owner is 0-or-kShared or the dead one: as L1, or as below
// A dead owner that does not hold the lock is found at T4, by its record (the monitor frees it) or in /proc:
// repair(). repair() makes good what a dead thread left half done in O3 (ring.hpp) and can itself be cut
// short and done again: prev is only cleared after it. Ids are not used again (ThreadId), so that a new
// thread is never taken for the owner that a dead one was.
//
// tests/model/token.pml is this protocol for the model checker, with deaths at every step.
#pragma once
#include "libsd/base/upward.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/layout/state.hpp"
#include <cerrno>
#include <cstddef>

namespace sd {

/// What the library keeps per thread. Initial-exec TLS, zero at thread start.
struct ThreadSelf {
    ThreadId id[kMaxSegments]; ///< per segment, 0: not registered yet
    ThreadRecord *record[kMaxSegments];
    uint32_t depth;      ///< scopes of PutOff around us
    uint32_t deferred;   ///< handlers put off until the operation ends; see api/signal
    uint64_t handled;    ///< signal handlers run in this thread: ends poll and epoll_wait
    uint64_t interrupts; ///< those installed without SA_RESTART: end every blocking call
    struct Bell *bell;   ///< the thread's own doorbell, made on first need
    long refused;        ///< why the last Claim failed, -errno
    bool asleep;         ///< in a sleep that cancellation may end at once; a signal handler is not part of it
};
extern constinit thread_local ThreadSelf self;

/// Thread table of each mapped segment; written under vfs's lock before any socket of the segment is used.
extern ThreadRecord *thread_table[kMaxSegments];
/// Is the calling thread inside an operation, or a scope of PutOff, that a signal handler would see half
/// done? Async-signal-safe.
inline bool inside_operation() noexcept {
    if (self.depth != 0)
        return true;
    for (const ThreadRecord *r : self.record)
        if (r && r->busy[0].load(std::memory_order_relaxed) != 0)
            return true;
    return false;
}
/// Where takeovers are counted.
extern std::atomic<uint64_t> *takeover_count;

#ifdef SD_NO_SHARING
constexpr bool kUnguarded = SD_NO_SHARING == 1;
/// bench/sharing.cpp measures what all this costs. 1: nothing guards a direction. 2: the thread's own signal
/// handlers are put off all the same, as they must be in a library for programs of one thread that share
/// nothing.
constinit inline thread_local std::atomic<uint64_t> only_mark{0};
[[gnu::always_inline]] inline std::atomic<uint64_t> *mark_own(unsigned, const Token &, uint64_t) noexcept {
    auto *busy = &only_mark;
    if (SD_NO_SHARING == 2) {
        if (busy->load(std::memory_order_relaxed) != 0) [[unlikely]]
            return nullptr;
        cpu::in_order_for_handlers();
        busy->store(1, std::memory_order_relaxed);
        cpu::in_order_for_handlers();
    }
    return busy;
}
#else
constexpr bool kUnguarded = false;
/// O1 and O2 in the thread's first busy word, which is returned; nullptr, and nothing is marked: the token is
///    not its own, or it is in another operation.
[[gnu::always_inline]] inline std::atomic<uint64_t> *mark_own(unsigned seg, const Token &token,
                                                              uint64_t token_id) noexcept {
    const ThreadId me = self.id[seg];
    if (me == 0) [[unlikely]]
        return nullptr;
    auto *busy = &self.record[seg]->busy[0];
    if (busy->load(std::memory_order_relaxed) != 0) [[unlikely]]
        return nullptr;
    cpu::in_order_for_handlers(); // a handler that came before this has ended: the word is still 0
    busy->store(token_id, std::memory_order_relaxed);
    cpu::in_order_for_membarrier(); // O1 before O2 in program order; the processor's part is T3
    if (token.owner.load(std::memory_order_acquire) == me) [[likely]]
        return busy;
    busy->store(0, std::memory_order_release);
    return nullptr;
}
#endif

/// The right to work on one direction, for a scope. Between construction and destruction nothing may block.
class Claim {
  public:
    enum Patience : bool {
        interruptible, ///< fails with -EINTR when a signal handler ends a wait for another thread
        patient
    };

    /// A claim on nothing unless `wanted`.
    Claim(unsigned seg, Token &token, uint64_t token_id, Patience patience, bool wanted) noexcept
        : token_(token), seg_(seg) {
        if (wanted)
            get(token_id, patience);
    }
    /// `token_id` identifies the token in its segment (not 0).
    Claim(unsigned seg, Token &token, uint64_t token_id, Patience patience = interruptible) noexcept
        : token_(token), seg_(seg) {
        get(token_id, patience);
    }
    ~Claim() { release(); }
    void release() noexcept {
        if (!busy_ || kUnguarded)
            return;
        if (busy_ & (kLocked | kNested)) [[unlikely]] {
            end_unusual(token_, busy_);
            busy_ = 0;
            return;
        }
        SD_ASSERT(mark(busy_).load(std::memory_order_relaxed) != 0);
        mark(busy_).store(0, std::memory_order_release);
        busy_ = 0;
        cpu::in_order_for_handlers(); // a handler that comes before the store is put off, and seen here
        if (self.deferred) [[unlikely]]
            upward.run_deferred();
    }
    /// False when the thread could not be registered, handlers nest too deep, or a wait was interrupted;
    /// error() is what the call returns.
    explicit operator bool() const noexcept { return busy_ != 0; }
    static long error() noexcept { return self.refused; }
    Claim(const Claim &) = delete;
    Claim &operator=(const Claim &) = delete;

  private:
    void get(uint64_t token_id, Patience patience) noexcept {
        if (auto *busy = mark_own(seg_, token_, token_id)) [[likely]] {
            busy_ = reinterpret_cast<uintptr_t>(busy);
            return;
        }
        busy_ = take(seg_, token_, token_id, patience);
    }
    static std::atomic<uint64_t> &mark(uintptr_t busy) noexcept {
        return *reinterpret_cast<std::atomic<uint64_t> *>(busy & ~(kLocked | kNested));
    }
    // Static, so that the object itself stays in registers on the short way.
    static uintptr_t take(unsigned seg, Token &token, uint64_t token_id, Patience patience) noexcept;
    static void end_unusual(Token &token, uintptr_t busy) noexcept;
    static void unlock(Token &token) noexcept;

    static constexpr uintptr_t kLocked = 1; ///< lock mode: release() gives the lock back
    /// Not the thread's first busy word: it is inside another operation
    static constexpr uintptr_t kNested = 2;
    Token &token_;
    uintptr_t busy_ = 0; ///< our busy word, kLocked, kNested
    unsigned seg_;
};

/// A Claim where nobody else wants the token and the thread is in no other operation: one that is had without
/// a call. False otherwise: a Claim says why.
class FastClaim {
  public:
    [[gnu::always_inline]] FastClaim(unsigned seg, const Token &token, uint64_t token_id) noexcept {
        busy_ = mark_own(seg, token, token_id);
        if (!busy_ && self.deferred) [[unlikely]]
            upward.run_deferred(); // put off by a mark that was taken back
    }
    [[gnu::always_inline]] ~FastClaim() { release(); }
    [[gnu::always_inline]] void release() noexcept {
        if (!busy_ || kUnguarded)
            return;
        busy_->store(0, std::memory_order_release);
        busy_ = nullptr;
        cpu::in_order_for_handlers();
        if (self.deferred) [[unlikely]]
            upward.run_deferred();
    }
    explicit operator bool() const noexcept { return busy_ != nullptr; }
    FastClaim(const FastClaim &) = delete;
    FastClaim &operator=(const FastClaim &) = delete;

  private:
    std::atomic<uint64_t> *busy_ = nullptr;
};

/// Is a thread other than the caller in O3 of this token now? Without the token, as a hint.
bool used_elsewhere(unsigned seg, const Token &token, uint64_t token_id) noexcept;

/// Did whoever has the token die with it, as far as the monitor has noticed? Cheap.
bool orphaned(unsigned seg, const Token &token) noexcept;

/// Puts signal handlers of this thread off for a scope, without a system call. For short sections that a
/// handler must not find half done.
class PutOff {
  public:
    PutOff() noexcept {
        ++self.depth;
        cpu::in_order_for_handlers();
    }
    ~PutOff() {
        cpu::in_order_for_handlers();
        SD_ASSERT(self.depth != 0);
        if (--self.depth == 0 && self.deferred) [[unlikely]]
            upward.run_deferred();
    }
    PutOff(const PutOff &) = delete;
    PutOff &operator=(const PutOff &) = delete;
};

/// Holds a Lock for a scope with signal handlers put off instead of blocked. For short sections on paths that
/// are taken often.
class QuietGuard {
  public:
    explicit QuietGuard(Lock &l) noexcept : lock_(l) { lock_.lock_unmasked(); }
    ~QuietGuard() { lock_.unlock_unmasked(); }
    QuietGuard(const QuietGuard &) = delete;
    QuietGuard &operator=(const QuietGuard &) = delete;

  private:
    PutOff put_off_; // begins before the lock is taken, ends after it is given back
    Lock &lock_;
};

} // namespace sd
