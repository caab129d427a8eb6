// The limit on address space (RLIMIT_AS) as the program sees it.
//
// Links and segments take address space, which the kernel counts like memory. A program that allows itself
// 100 MB while it has connections could map nothing more at all, not even a page. So the kernel is told a
// limit that is larger by what this library has mapped, and the program is told its own.
#pragma once
#include <sys/resource.h>

namespace sd::vfs {

/// setrlimit(RLIMIT_AS) of the program; 0 or -errno.
[[nodiscard]] long set_space_limit(const rlimit &wanted) noexcept;
/// What the program is to read where the kernel says `*limit`.
void show_space_limit(rlimit *limit) noexcept;
/// An executed program starts without what was mapped here: it gets the limit itself. Undone if the exec
/// fails.
void space_limit_before_exec() noexcept;
void space_limit_after_failed_exec() noexcept;

} // namespace sd::vfs
