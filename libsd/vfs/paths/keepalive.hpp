// Keepalives of a kernel socket whose connection goes by the ring, so that nobody on the way forgets it.
#pragma once
#include "libsd/vfs/connections/connection.hpp"

namespace sd {

/// Does the socket send keepalives that the program has not asked for?
bool has_hidden_keepalive(const Ofd &o) noexcept;
/// What the program reads then for TCP_KEEPIDLE and the like.
int shown_keepalive(int name) noexcept;
/// When the socket may become idle, and before the program sets its own or somebody else gets the socket.
void hide_keepalive(int fd, Ofd &o) noexcept;
void end_hidden_keepalive(int fd, Ofd &o) noexcept;

} // namespace sd
