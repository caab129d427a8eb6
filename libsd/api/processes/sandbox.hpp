// seccomp() for syscall(): libc has no function of that name.
#pragma once

namespace sd {

/// The system call, with our instructions before the program's filter. As libc would answer.
[[nodiscard]] long sandbox_by_seccomp(unsigned operation, unsigned flags, void *arguments) noexcept;

} // namespace sd
