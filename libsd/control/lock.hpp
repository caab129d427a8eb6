// A small futex lock for slow paths. Signals are blocked while it is held, because a handler may call any
// socket function and would wait for its own thread. Never taken on an uncontended send or receive.
#pragma once
#include "libsd/control/assert.hpp"
#include "libsd/control/sys.hpp"
#include <atomic>

namespace sd {

class Lock {
  public:
    void lock(uint64_t *mask) noexcept {
        sys::block_signals(mask);
        lock_unmasked();
    }
    void unlock(const uint64_t *mask) noexcept {
        unlock_unmasked();
        sys::restore_signals(mask);
    }
    /// For callers that run with signals blocked already, and for the fork handlers.
    void lock_unmasked() noexcept {
        uint32_t zero = 0;
        if (word_.compare_exchange_strong(zero, 1, std::memory_order_acquire))
            return;
        while (word_.exchange(2, std::memory_order_acquire) != 0)
            sys::futex(&word_, 128 /*FUTEX_WAIT_PRIVATE*/, 2);
    }
    [[nodiscard]] bool try_lock_unmasked() noexcept {
        uint32_t zero = 0;
        return word_.compare_exchange_strong(zero, 1, std::memory_order_acquire);
    }
    void unlock_unmasked() noexcept {
        const uint32_t held = word_.exchange(0, std::memory_order_release);
        SD_ASSERT(held != 0);
        if (held == 2)
            sys::futex(&word_, 129 /*FUTEX_WAKE_PRIVATE*/, 1);
    }
    /// In a forked child, where the holder (if any) does not exist.
    /// It is not written without need, for what is written in a child is a page to be copied.
    void reset() noexcept {
        if (word_.load(std::memory_order_relaxed) != 0)
            word_.store(0, std::memory_order_relaxed);
    }

  private:
    std::atomic<uint32_t> word_{0};
};

class LockGuard {
  public:
    explicit LockGuard(Lock &l) noexcept : lock_(l) { lock_.lock(&mask_); }
    ~LockGuard() { lock_.unlock(&mask_); }
    LockGuard(const LockGuard &) = delete;
    LockGuard &operator=(const LockGuard &) = delete;

  private:
    Lock &lock_;
    uint64_t mask_;
};

} // namespace sd
