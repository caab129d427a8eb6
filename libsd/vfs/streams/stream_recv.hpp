// Receiving over an accelerated connection.
#pragma once
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// Beside MSG_PEEK, as splice looks: what lies behind an urgent byte is not seen, and waiting ends there with
/// 0. Never in the flags of a program: vfs::recv() and vfs::recvv() take it away.
constexpr int kUpToMark = 0x01000000;
/// Receives with the semantics of recvmsg(2).
/// `interrupts`: as for wait_stream().
[[nodiscard]] long stream_recv(int fd, File &f, IoCursor &to, size_t total, int flags,
                               uint64_t interrupts = self.interrupts) noexcept;

} // namespace sd
