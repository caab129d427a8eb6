// Hooks of the layer below around exec and at the end of the process, and forks without libc's handlers.
#pragma once
#include "libsd/vfs/process.hpp"
#include <cerrno>

namespace sd::vfs {
// Defined where there is something to do.
__attribute__((weak)) void before_exec() noexcept;
__attribute__((weak)) void after_failed_exec() noexcept;
} // namespace sd::vfs

namespace sd {

inline void announce_exec() noexcept {
    if (vfs::before_exec)
        vfs::before_exec();
}

/// Passes the result of an exec that came back on.
inline int exec_failed(int r) noexcept {
    if (vfs::after_failed_exec) {
        int saved = errno;
        vfs::after_failed_exec();
        errno = saved;
    }
    return r;
}

/// Forks through `make`, which returns as fork does, with what pthread_atfork handlers would do for the library.
long fork_by_hand(long (*make)(void *), void *context) noexcept;

} // namespace sd
