// Waits as cancellation points, as the C library makes them: asynchronous for as long as the thread sleeps,
// and only there.
#pragma once
#include "libsd/control/libc_threads.hpp"
#include "libsd/queue/token.hpp"
#include <pthread.h>

namespace sd {

/// Runs `sleep`, which makes one system call; if the thread is cancelled in it, `undo(arg)` runs before the
/// program's own cleanup handlers.
template <class F> long cancellable(void (*undo)(void *), void *arg, F sleep) noexcept {
    if (one_thread())
        return sleep();
    return with_cleanup(undo, arg, [&sleep] {
        int type;
        // Only around one system call, as the C library itself makes its cancellation points.
        // NOLINTNEXTLINE(concurrency-thread-canceltype-asynchronous)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
        self.asleep = type == PTHREAD_CANCEL_DEFERRED;
        const long r = sleep();
        self.asleep = false;
        pthread_setcanceltype(type, nullptr);
        return r;
    });
}

/// The thread is not cancelled in this scope, if that is `wanted`: two locked instructions.
class NoCancellation {
  public:
    explicit NoCancellation(bool wanted = true) noexcept : wanted_(wanted) {
        if (wanted_)
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
    }
    ~NoCancellation() {
        if (wanted_)
            pthread_setcancelstate(before_, nullptr);
    }
    NoCancellation(const NoCancellation &) = delete;
    NoCancellation &operator=(const NoCancellation &) = delete;

  private:
    const bool wanted_;
    int before_ = 0;
};

} // namespace sd
