// What the layer below is told around exec, and forks without libc's handlers.
#pragma once
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/family/space_limit.hpp"
#include "libsd/vfs/sharing/exec.hpp"
#include <cerrno>

namespace sd {

/// `loadable`: this library will be in the new program, too.
inline void announce_exec(bool loadable) noexcept {
    vfs::before_exec(loadable);
    vfs::space_limit_before_exec();
}

/// Passes the result of an exec that came back on.
inline int exec_failed(int r) noexcept {
    int saved = errno;
    vfs::space_limit_after_failed_exec();
    vfs::after_failed_exec();
    errno = saved;
    return r;
}

/// Forks through `make`, which returns as fork does, with what pthread_atfork handlers would do for the
/// library.
[[nodiscard]] long fork_by_hand(long (*make)(void *), void *context) noexcept;

} // namespace sd
