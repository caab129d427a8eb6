// A lock between processes that is taken from the dead. For short work only: whoever waits spins.
#pragma once
#include <atomic>
#include <cstdint>
#include <sched.h>

namespace sd::fake_verbs {

/// Of this thread; forgotten in a child (process.cpp).
uint32_t thread_id() noexcept;
/// Also of one that nobody has waited for yet.
bool has_died(uint32_t thread) noexcept;

class Lock {
  public:
    /// True: its former owner has died with it.
    bool take() noexcept {
        const uint32_t me = thread_id();
        for (unsigned spins = 1;; ++spins) {
            uint32_t owner = 0;
            if (owner_.compare_exchange_weak(owner, me, std::memory_order_acquire))
                return false;
            if (spins % 64 == 0 && owner != 0) {
                if (spins % 4096 == 0 && has_died(owner) &&
                    owner_.compare_exchange_strong(owner, me, std::memory_order_acquire))
                    return true;
                sched_yield();
            }
        }
    }
    void give() noexcept { owner_.store(0, std::memory_order_release); }

  private:
    std::atomic<uint32_t> owner_;
};

struct Guard {
    explicit Guard(Lock &l) noexcept : lock(l), stolen(l.take()) {}
    ~Guard() { lock.give(); }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;
    Lock &lock;
    const bool stolen;
};

} // namespace sd::fake_verbs
