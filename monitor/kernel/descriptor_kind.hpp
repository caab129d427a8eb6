// What a descriptor from a client is, and closing it, without being held up by whoever is behind it.
//
// A file of a file system in user space answers when its owner likes: stat, poll, mmap, and also close (which
// flushes) would stop the monitor for as long. So what comes with a request is looked at by calls that only
// the kernel's own objects answer, before anything else is done with it.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <sys/types.h>

namespace sd::monitor {

/// A memfd, a socket of IP or of Unix, an eventfd, or the end of a channel of the zero-copy module: all that
/// clients have reason to send. Asks no file system.
bool is_kernels_own(int fd);
/// The end of such a channel. The kernel gives its name to nothing else: a path begins with "/".
bool is_channel_end(int fd);

/// Closes what `user` has sent. An IP socket does not linger for longer than some milliseconds. What is not
/// the kernel's own is closed by a thread, which may be stopped for good; so is a Unix socket in whose queue
/// something waits, since that may be descriptors of any kind. For the main thread.
void close_received(UniqueFd fd, uid_t user);
/// The same for a socket that was kept, in the name of the user who has made it.
void close_client_socket(UniqueFd fd);
/// The same for the monitor's end of a channel. Who is at the other end is told at once.
void close_channel(UniqueFd fd);

/// Whether so many closes of what the user has sent do not come to an end that it should not be able to send
/// more. Never the superuser: containers may share it.
bool is_holding_us_up(uid_t user);

} // namespace sd::monitor
