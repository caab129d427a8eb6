// Sockets that come into the hands of another process before they are connected: by a fork, an exec, or over
// a Unix socket.
//
// A placeholder is the same for all sockets and says nothing in another process. Both would make a connection
// of their own, and what the one that does not connect writes would be lost. So before a fork each such
// socket becomes a kernel socket, which parent and child then share, and whichever of them connects it
// connects through the kernel (Cause::shared_early). It may still listen, and be accelerated then.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// The number stands for a socket that is not connected: the next fork looks at it. Any thread,
/// async-signal-safe.
void note_unconnected(int fd) noexcept;
/// Another process has, or is about to have, the socket: the kernel connects it.
void mark_shared(File &f) noexcept;
/// Before a fork, without locks. `executes`: the child does nothing but start a program, so that what is
/// close-on-exec is not shared.
void share_unconnected(bool executes) noexcept;
/// A fork makes a kernel socket of what this number stands for: waits until that is done. Any other thread
/// than the one that forks.
void await_shared(int fd) noexcept;

} // namespace sd
