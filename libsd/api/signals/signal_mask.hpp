// What the other signal files and the system calls need of the mask.
#pragma once

namespace sd {

/// In a thread that begins to use sockets of ours: of what it has blocked, SIGSEGV and SIGBUS only seem to be
/// from now on.
void let_faults_through() noexcept;
/// rt_sigprocmask as the system call is. For raw.cpp.
[[nodiscard]] long change_kernel_mask(int how, const void *set, void *old) noexcept;

} // namespace sd
