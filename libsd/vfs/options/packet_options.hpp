// What a server can read of the packets that asked for its connection: IP_PKTOPTIONS.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Type of service (or traffic class) and time to live (or hop limit) of what the client `f`, whose number is
/// `fd`, would send. Notes them for its server.
void note_packet_marks(const File &f, int fd, Slot::Identity &to) noexcept;
/// Is it an option whose answer is about the packets that came?
bool asks_for_packets(int level, int name) noexcept;
/// Its answer. `fd`: a kernel socket of the connection's own, which knows what was asked for.
[[nodiscard]] long packet_options(int fd, const File &f, int level, int name, void *value, socklen_t *n,
                                  int room) noexcept;

} // namespace sd
