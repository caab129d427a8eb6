// What a descriptor from a client is, and closing it, without being held up by whoever is behind it.
//
// A file of a file system in user space answers when its owner likes: stat, poll, mmap, and also close (which
// flushes) would stop the monitor for as long. So what comes with a request is looked at by calls that only
// the kernel's own objects answer, before anything else is done with it.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <sys/types.h>

namespace sd::monitor {

/// A memfd, a socket or an eventfd: all that clients have reason to send. Asks no file system.
bool is_kernels_own(int fd);

/// Closes what `user` has sent. A socket does not linger for longer than some milliseconds; what is not the
/// kernel's own is closed by a thread, which may be stopped for good.
void close_received(UniqueFd fd, uid_t user);

/// Whether so many closes of what the user has sent do not come to an end that it should not be able to send
/// more. Never the superuser: containers may share it.
bool is_holding_us_up(uid_t user);

} // namespace sd::monitor
