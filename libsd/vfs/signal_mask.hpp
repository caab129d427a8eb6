// The signal mask that ppoll, pselect and epoll_pwait ask for, while they look instead of sleep.
#pragma once
#include "libsd/control/sys.hpp"

namespace sd {

/// Installs the mask for a scope; nothing happens when there is none. SIGSEGV and SIGBUS stay deliverable, because buffers are copied meanwhile.
class SpinMask {
  public:
    explicit SpinMask(const uint64_t *mask) noexcept : swapped_(mask != nullptr) {
        if (!swapped_)
            return;
        uint64_t wanted = *mask & ~(uint64_t{1} << (11 - 1) | uint64_t{1} << (7 - 1));
        sys::call(SYS_rt_sigprocmask, 2 /*SIG_SETMASK*/, sys::arg(&wanted), sys::arg(&before_), 8);
    }
    ~SpinMask() {
        if (swapped_)
            sys::restore_signals(&before_);
    }
    SpinMask(const SpinMask &) = delete;
    SpinMask &operator=(const SpinMask &) = delete;

  private:
    bool swapped_;
    uint64_t before_ = 0;
};

} // namespace sd
