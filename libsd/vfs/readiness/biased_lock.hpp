// A lock for things that one thread uses nearly always, such as an epoll instance: that thread takes it
// without an atomic read-modify-write, until another thread comes; from then on it is an ordinary lock.
//
//   favoured thread:  B1 busy = 1 (plain store)      other thread, with  R1 favoured = nobody, for ever
//                     B2 favoured == me ?            the inner lock:     R2 heavy_barrier()
//                     B3 critical section                                R3 wait until busy == 0
//                     B4 busy = 0 (release)
//
// The barrier falls, on the favoured thread's core, before B2, which then reads R1 and backs out; or after B2
// and so after B1, and R3 waits for B4. The wait is short, because nothing blocks in a critical section, and
// happens once in the life of the lock.
#pragma once
#include "libsd/queue/token.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

class BiasedLock {
  public:
    /// With signal handlers put off (see BiasedGuard). True: taken as the favoured thread; pass it to
    /// unlock().
    [[nodiscard]] bool lock() noexcept {
        const void *me = &self;
        if (favoured_.load(std::memory_order_relaxed) == me) [[likely]] {
            busy_.store(1, std::memory_order_relaxed);
            cpu::in_order_for_membarrier(); // B1 before B2 in program order; the processor's part is R2
            if (favoured_.load(std::memory_order_acquire) == me) [[likely]]
                return true;
            busy_.store(0, std::memory_order_release);
        }
        return lock_shared(me);
    }
    void unlock(bool as_favoured) noexcept {
        if (as_favoured)
            busy_.store(0, std::memory_order_release);
        else
            inner_.unlock_unmasked();
    }
    /// By who holds it: the next thread to come is the favoured one.
    void favour_next() noexcept { favoured_.store(nullptr, std::memory_order_release); }
    /// In a forked child.
    void reset() noexcept {
        inner_.reset();
        if (busy_.load(std::memory_order_relaxed) != 0)
            busy_.store(0, std::memory_order_relaxed);
        if (favoured_.load(std::memory_order_relaxed) != nullptr)
            favoured_.store(nullptr, std::memory_order_release);
    }

  private:
    [[nodiscard]] bool lock_shared(const void *me) noexcept;

    std::atomic<const void *> favoured_{
        nullptr}; ///< the thread's ThreadSelf; nullptr: nobody came yet; this lock itself: for all
    std::atomic<uint32_t> busy_{0};
    Lock inner_;
};

/// Holds the lock for a scope; signal handlers of this thread are put off meanwhile.
class BiasedGuard {
  public:
    explicit BiasedGuard(BiasedLock &l) noexcept : lock_(l) { favoured_ = lock_.lock(); }
    ~BiasedGuard() { lock_.unlock(favoured_); }
    BiasedGuard(const BiasedGuard &) = delete;
    BiasedGuard &operator=(const BiasedGuard &) = delete;

  private:
    PutOff put_off_; // begins before the lock is taken, ends after it is given back
    BiasedLock &lock_;
    bool favoured_;
};

} // namespace sd
