// Descriptors that came from elsewhere; see import.cpp.
#pragma once

namespace sd {

/// A descriptor has come over a socket under this number: what poll() has found out about the number before
/// is not true of it.
void number_received(int fd) noexcept;
void import_fork_child() noexcept;

namespace vfs {

/// A descriptor not in the table that may be an inherited listener: takes it in. For accept, epoll_ctl and
/// whatever else is the first use of one.
void import_listener(int fd) noexcept;
/// The same for poll() and select(), which are called with any descriptors, again and again: a number that is
/// nothing of ours is asked about once.
void import_polled(int fd) noexcept;
/// A descriptor not in the table that may be an epoll instance: takes it in, without what is in it already.
void import_epoll(int fd) noexcept;

} // namespace vfs

} // namespace sd
