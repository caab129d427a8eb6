// io_uring as far as it passes through syscall() or liburing.
#pragma once

struct io_uring_sqe;

namespace sd {

/// io_uring_setup(): a ring whose submissions we will see, or the kernel's error.
[[nodiscard]] long uring_setup(unsigned entries, void *params) noexcept;
/// Is a ring with these flags not to be had? A kernel thread that takes submissions by itself would take
/// those for our sockets, too: the answer is that of a kernel that wants privileges, EPERM.
[[nodiscard]] bool uring_refused(unsigned flags) noexcept;
/// io_uring_enter(): performs what is submitted for descriptors of ours, lets the kernel do the rest. -1 with
/// errno set on failure.
[[nodiscard]] long uring_enter(const long *arguments) noexcept;
/// io_uring_register(): files that a ring is to keep become the kernel's first. -1 with errno set on failure.
[[nodiscard]] long uring_register(int ring, unsigned operation, void *what, unsigned count) noexcept;

/// Carries out what a submission wants of a descriptor of ours and leaves one for the kernel that completes
/// with the result, or makes the socket the kernel's. Before the kernel sees the submission. errno is
/// preserved.
void uring_serve(io_uring_sqe &submission) noexcept;
/// `count` descriptors that a ring is to keep, -1 for none; memory of the program's, which may be bad.
void uring_keep(const int *fds, unsigned count) noexcept;

/// In a forked child, whose rings are those of its parent.
void reset_urings_in_child() noexcept;

} // namespace sd
