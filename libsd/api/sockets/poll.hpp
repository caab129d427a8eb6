// poll and select for syscall().
#pragma once
#include <poll.h>
#include <sys/select.h>

namespace sd {

/// ppoll and pselect6 as the system calls are: `timeout` is updated, and the kernel refuses what cannot be
/// read. The value, -errno or vfs::kPass.
[[nodiscard]] long poll_updating(pollfd *fds, nfds_t count, timespec *timeout, const sigset_t *mask) noexcept;
/// `mask` points to the address of the mask and its size.
[[nodiscard]] long select_updating(int n, fd_set *r, fd_set *w, fd_set *x, timespec *timeout,
                                   const long *mask) noexcept;

} // namespace sd
