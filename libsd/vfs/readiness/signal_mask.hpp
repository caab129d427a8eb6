// What a thread's signal mask is to the program, where the kernel's has to be another.
//
// A bad pointer given to a socket call is found by a fault, and a fault whose signal is blocked ends the
// process. So in threads that may use sockets of ours the kernel's mask is without SIGSEGV and SIGBUS, and
// what the program wants is kept beside it: its mask is the kernel's and `pretended_mask` together. One of
// them that is sent meanwhile is put back and really blocked (api/signals/signal.cpp).
#pragma once
#include "libsd/control/sys.hpp"

namespace sd {

/// Those that sd_copy recovers from: SIGSEGV and SIGBUS.
constexpr uint64_t kCopyFaults = uint64_t{1} << (11 - 1) | uint64_t{1} << (7 - 1);

/// Of kCopyFaults, what the program has blocked and the kernel has not.
inline constinit thread_local uint64_t pretended_mask = 0;

/// The two together.
struct WholeMask {
    uint64_t kernels, pretended;
};

/// In a call that exchanges the kernel's mask: the one that it puts back at its end. That is what a handler
/// is shown in its context, and may change. None in handlers, hence also not when one of them has jumped
/// away.
inline constinit thread_local WholeMask *outer_mask = nullptr;

/// Installs the mask that ppoll, pselect and epoll_pwait ask for while they look instead of sleep; nothing
/// happens when there is none.
class SpinMask {
  public:
    explicit SpinMask(const uint64_t *mask) noexcept : swapped_(mask != nullptr) {
        if (!swapped_)
            return;
        uint64_t wanted = *mask & ~kCopyFaults;
        pretended_before_ = pretended_mask;
        pretended_mask = *mask & kCopyFaults;
        sys::call(SYS_rt_sigprocmask, 2 /*SIG_SETMASK*/, sys::arg(&wanted), sys::arg(&before_), 8);
    }
    ~SpinMask() {
        if (!swapped_)
            return;
        pretended_mask = pretended_before_;
        sys::restore_signals(&before_);
    }
    SpinMask(const SpinMask &) = delete;
    SpinMask &operator=(const SpinMask &) = delete;

  private:
    bool swapped_;
    uint64_t before_ = 0, pretended_before_ = 0;
};

/// In a call with a mask, what that blocks beyond the thread's own stays blocked between looking and
/// sleeping, too: else a signal that came while the thread looked would end the call. Nothing is let through
/// here, for that may happen only where a handler is noticed before the thread sleeps.
class CallMask {
  public:
    explicit CallMask(const uint64_t *mask) noexcept {
        if (!mask)
            return;
        masked_ = true;
        uint64_t more = *mask & ~kCopyFaults;
        before_.pretended = pretended_mask;
        pretended_mask |= *mask & kCopyFaults;
        sys::call(SYS_rt_sigprocmask, 0 /*SIG_BLOCK*/, sys::arg(&more), sys::arg(&before_.kernels), 8);
        blocks_more_ = (*mask & ~before_.kernels) != 0;
        outer_mask = &before_;
    }
    ~CallMask() {
        if (!masked_)
            return;
        outer_mask = nullptr;
        pretended_mask = before_.pretended;
        sys::restore_signals(&before_.kernels);
    }
    /// Handlers that ran before were not let through by the call, hence do not end it.
    bool blocks_more() const noexcept { return blocks_more_; }
    CallMask(const CallMask &) = delete;
    CallMask &operator=(const CallMask &) = delete;

  private:
    bool masked_ = false, blocks_more_ = false;
    WholeMask before_{};
};

/// Makes the kernel's mask the program's, for a scope: where a new thread or program inherits it, and where
/// the kernel is to exchange it during a call.
class TrueMask {
  public:
    explicit TrueMask(bool wanted = true) noexcept : moved_(wanted ? pretended_mask : 0) {
        if (moved_ == 0) [[likely]]
            return;
        sys::call(SYS_rt_sigprocmask, 0 /*SIG_BLOCK*/, sys::arg(&moved_), 0, 8);
        pretended_mask = 0;
    }
    ~TrueMask() {
        if (moved_ == 0) [[likely]]
            return;
        pretended_mask = moved_;
        sys::call(SYS_rt_sigprocmask, 1 /*SIG_UNBLOCK*/, sys::arg(&moved_), 0, 8);
    }
    TrueMask(const TrueMask &) = delete;
    TrueMask &operator=(const TrueMask &) = delete;

  private:
    uint64_t moved_;
};

} // namespace sd
