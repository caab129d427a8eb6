// The file actions of posix_spawn: what libc keeps in a posix_spawn_file_actions_t, and carrying it out in a
// forked child.
#pragma once
#include <spawn.h>
#include <sys/types.h>

namespace sd {

/// Whether the array in the object can be read: libc does not publish its form, so it is tried once on an
/// object of known contents. False too when an action is of a kind this library does not know. May allocate.
[[nodiscard]] bool readable(const posix_spawn_file_actions_t *actions) noexcept;

/// Whether an action copies a socket of ours, which may then be kept over the exec even where the original is
/// not. Of readable actions only.
[[nodiscard]] bool copies_sockets(const posix_spawn_file_actions_t *actions) noexcept;

/// In a forked child: all of them in order, with the descriptor table kept up to date. `group`: what
/// tcsetpgrp is called with, 0 for the process's own. 0, or -errno of the first that failed. Of readable
/// actions only.
[[nodiscard]] long perform(const posix_spawn_file_actions_t *actions, pid_t group) noexcept;

} // namespace sd
