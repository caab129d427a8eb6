// mlockall(2) of the program, which means the program's memory.
//
// Links and segments are mapped with room to grow, and almost empty: locked they would be filled with pages
// (8 MiB for a link, 100 for a segment), and count for RLIMIT_MEMLOCK. So what there is of them is left
// out, and while all that is mapped later is locked (MCL_FUTURE), none is mapped: new connections are the
// kernel's.
#pragma once

namespace sd::vfs {

/// mlockall; 0 or -errno.
[[nodiscard]] long lock_memory(int flags) noexcept;
/// munlockall; 0 or -errno.
[[nodiscard]] long unlock_memory() noexcept;
/// Locks are not inherited.
void memory_lock_fork_child() noexcept;

} // namespace sd::vfs
