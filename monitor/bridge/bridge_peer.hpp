// Whether anybody still has the other end of a kernel connection of this host.
#pragma once

namespace sd::monitor {

/// To be asked after the end of the stream was read from `fd`, a TCP socket: true when the other end was
/// closed by all who had it, false when it was only shut down, and when that cannot be told (another network
/// namespace, no TCP).
bool peer_hung_up(int fd);

} // namespace sd::monitor
