// What a new connection takes over: of the socket that became it, or of its listener.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// A new Ofd's options: as a new socket has them, then what was set on `f` before connecting. Call with the
/// descriptor still fresh or just bound to the Ofd, before other threads can use the connection.
void inherit_options(Ofd &o, const File &f, int fd) noexcept;
/// The same of a connection that was the kernel's until now.
void options_from_kernel(Ofd &o, int fd) noexcept;
/// The same for an accepted connection, from its listener; also leaves in `accepted` what a kernel socket
/// would have to be told.
void inherit_from_listener(int listener_fd, File &listener, File &accepted) noexcept;

} // namespace sd
