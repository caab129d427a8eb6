// The rare part of the biased lock: the first thread, and the second.
#include "libsd/vfs/readiness/biased_lock.hpp"
#include "libsd/cpu/instructions.hpp"

namespace sd {

bool BiasedLock::lock_shared(const void *me) noexcept {
    inner_.lock_unmasked();
    const void *who = favoured_.load(std::memory_order_relaxed);
    if (who == this)
        return false;
    if (who == nullptr) {
        // This time the inner lock is held; from the next time on the short way works.
        favoured_.store(me, std::memory_order_release);
        return false;
    }
    favoured_.store(this, std::memory_order_seq_cst);
    heavy_barrier();
    for (unsigned n = 0; busy_.load(std::memory_order_acquire) != 0; ++n)
        if (n < 64)
            cpu::pause();
        else
            sys::sched_yield();
    return false;
}

} // namespace sd
