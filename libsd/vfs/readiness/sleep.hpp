// The sleep itself (step 5 of queue/sleeper.hpp), and what libsd does for a process's connections around it.
#pragma once
#include "libsd/queue/sleeper.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/cleanup_stack.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include "libsd/vfs/streams/cancel.hpp"
#include <poll.h>

namespace sd {

/// What a sleep adds to a list of descriptors: the bell, its ends for other domains, the control channel.
constexpr size_t kWakers = 3;

/// From here to the system call that sleeps no handler runs; the kernel lets signals in during that call
/// only. So none falls between the last look at self.handled and the sleep, where it would be slept through.
class OnlyAsleep {
  public:
    /// `mask`: what the program asks for during its call (CallMask holds it already), or null for its own.
    explicit OnlyAsleep(const uint64_t *mask) noexcept : nested_(mask != nullptr) {
        sys::block_signals(&before_.kernels);
        before_.pretended = pretended_mask;
        asleep_ = mask ? *mask : before_.kernels | before_.pretended; // nothing is copied meanwhile
        if (nested_)
            pretended_mask = 0; // the program's mask says it all
        else
            outer_mask = &before_;
    }
    ~OnlyAsleep() {
        if (!nested_)
            outer_mask = nullptr;
        pretended_mask = before_.pretended;
        sys::restore_signals(&before_.kernels);
    }
    OnlyAsleep(const OnlyAsleep &) = delete;
    OnlyAsleep &operator=(const OnlyAsleep &) = delete;
    /// The mask for the system call.
    const uint64_t *mask() const noexcept { return &asleep_; }

  private:
    const bool nested_;
    WholeMask before_{};
    uint64_t asleep_;
};

/// Runs `sleep(mask)`, which makes one system call; -ECANCELED without it when a handler has run since
/// self.handled was `handled`. A cancellation point: `undo(arg)` runs then, and what the thread's calls
/// hold is given back.
template <class F> long sleep_in_kernel(const uint64_t *mask, uint64_t handled, void (*undo)(void *),
                                        void *arg, F sleep) noexcept {
    const OnlyAsleep signals(mask);
    if (self.handled != handled)
        return -ECANCELED;
    struct Cancelled {
        void (*undo)(void *);
        void *arg;
    } cancelled{undo, arg};
    return cancellable(
        [](void *c) {
            const auto &what = *static_cast<Cancelled *>(c);
            self.asleep = false;
            outer_mask = nullptr;
            what.undo(what.arg);
            CleanupStack::give_back_all();
        },
        &cancelled, [&] { return sleep(signals.mask()); });
}

/// For sleep_in_kernel(), where nothing is to be undone.
inline void nothing_to_undo(void *) noexcept {}

/// A sleep of this thread.
class Sleep : public Sleeper {
  public:
    /// Rings that have been idle are shrunk first; when the next are due, the sleep ends.
    Sleep(Bell &bell, int64_t deadline) noexcept;

    /// Sleeps in ppoll on list[0..n), which has room for kWakers more and gets its revents. The program's
    /// `mask` or null, `handled`, `undo`: as for sleep_in_kernel(). How many entries are ready, the wakers
    /// counted; -EINTR, -ECANCELED. The caller looks again in any case.
    [[nodiscard]] long in_poll(pollfd *list, size_t n, const uint64_t *mask, uint64_t handled,
                               void (*undo)(void *) = nothing_to_undo, void *arg = nullptr) noexcept;

    /// Sleeper::announce, which counts the thread first.
    unsigned announce(LinkMap &l) noexcept {
        if (rdma::is_remote(l))
            may_sleep_.begins();
        return Sleeper::announce(l);
    }
    /// Before sets of connections are announced.
    void any_link_may_ring() noexcept { may_sleep_.begins(); }
    /// At once after a sleep in another call, before anything is drained.
    void is_awake() noexcept { may_sleep_.is_awake(); }
    /// After it; it began at `start`. `rung`: the bell was among what ended it.
    void over(int64_t start, bool rung) noexcept;

  private:
    rdma::MaySleep may_sleep_;
};

} // namespace sd
