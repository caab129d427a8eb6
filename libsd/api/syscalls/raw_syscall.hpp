// System calls for the api layer: libc's own syscall() is interposed too, so it may not be used in here.
#pragma once

#include "libsd/control/sys.hpp"

#include <cerrno>

namespace sd {

/// Makes a system call; the value or -errno. Async-signal-safe, leaves errno alone.
[[nodiscard]] inline long raw_syscall6(long number, long a = 0, long b = 0, long c = 0, long d = 0,
                                       long e = 0, long f = 0) noexcept {
    return sys::call(number, a, b, c, d, e, f);
}

[[gnu::cold, gnu::noinline]] inline long set_errno(long negative) noexcept {
    errno = static_cast<int>(-negative);
    return -1;
}
/// Turns "value or -errno" into libc's way: the value, or -1 with errno set.
[[nodiscard]] inline long with_errno(long result) noexcept {
    return static_cast<unsigned long>(result) > -4096UL ? set_errno(result) : result;
}

} // namespace sd
