// io_uring as far as it passes through syscall().
#pragma once

namespace sd {

/// io_uring_setup(): a ring whose submissions we will see, or the kernel's error.
long uring_setup(unsigned entries, void *params) noexcept;
/// io_uring_enter(): performs what is submitted for descriptors of ours, lets the kernel do the rest. -1 with errno set on failure.
long uring_enter(const long *arguments) noexcept;

/// In a forked child, whose rings are those of its parent.
void reset_urings_in_child() noexcept;

} // namespace sd
