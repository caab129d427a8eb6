// A connection that began in shared memory gets a kernel socket, by which it can leave it (moves.hpp).
//
// The monitor makes the two ends of a kernel connection with the same names, and marks both ends of ours:
// kTxMoved and kTxAdopt, kMovedLowat, and kTxPath where the end is told to leave the ring. So its user goes
// to follow() (vfs/sharing/moved.hpp), asks the monitor for the socket, and comes here. From then on the
// connection has paths, and both directions are in the ring.
//
// An end does not leave the ring before the other one has answered for its first step, which it does here. So
// nothing is ever written to a socket whose other end nobody took, and an end that cannot adopt goes on as if
// nothing had been. Where the monitor dies before both have come, both directions stay in the ring.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Is the socket that the monitor has one more path of the connection?
inline bool is_to_adopt(const File &f) noexcept {
    return f.ofd->tx_block.load(std::memory_order_acquire) & kTxAdopt;
}
/// Of a marked connection, by one thread at a time, without tokens. `socket`: the monitor's, which stays the
/// caller's; or -errno, and there is none. The mark is gone then. True: the connection has paths.
bool adopt_socket(File &f, long socket) noexcept;

} // namespace sd
