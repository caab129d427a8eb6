// Receiving over an accelerated connection.
#pragma once
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// Receives with the semantics of recvmsg(2).
/// `interrupts`: as for wait_stream().
long stream_recv(int fd, File &f, IoCursor &to, size_t total, int flags,
                 uint64_t interrupts = self.interrupts) noexcept;

} // namespace sd
