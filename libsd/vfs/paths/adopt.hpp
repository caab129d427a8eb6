// A connection that began in shared memory gets a kernel socket, by which it can leave it (moves.hpp).
//
// The monitor makes the two ends of a kernel connection with the same names, and marks both ends of ours:
// kTxMoved and kTxAdopt, kMovedLowat, and kTxPath where the end is told to leave the ring. So its user goes
// to follow() (vfs/sharing/moved.hpp), and comes here.
//
// Several processes may hold an end, each with a placeholder under its numbers. So it takes two steps:
//
//   fetch   Each process asks the monitor for the socket, puts it under its numbers, and says that it has.
//           From then on it works on in the ring as before, on the same tokens as those that have not.
//   begin   When all who hold either end have the socket, the monitor sets kTxBegin at both, and keeps no
//           descriptor. Whoever comes next sets the words by which both directions are in the ring (`taken`),
//           and clears the marks: the connection has paths, for all of them.
//
// A child made meanwhile has what its parent has. One that closes or dies is a holder less. What comes in
// between before kTxBegin is set - somebody passes the connection on, a monitor that is gone, a sandbox -
// ends it: the marks go, and the connection stays what it was. Such a process may keep the socket under its
// numbers, which nobody reads from or writes to.
//
// An end does not leave the ring before the other one has answered for its first step, which it does when it
// begins. So nothing is ever written to a socket whose other end nobody took, and an end that cannot begin
// goes on as if nothing had been. Killed between its two steps, a process leaves nothing half done; killed in
// the second one, it leaves the marks, and whoever comes next finishes: kSeenPath tells that the words are
// set. Nobody works with them before the marks are gone.
//
// Another monitor knows nothing of the sockets. It sets another mark, at which whoever has one lets go of it,
// so that the names are free, and is told EAGAIN until there are others, for which there is one more mark.
//
// The monitor does both steps at once (serial 0) where an end is of a library that knows only that.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Is the socket that the monitor has one more path of the connection?
inline bool is_to_adopt(const File &f) noexcept {
    return f.ofd->tx_block.load(std::memory_order_acquire) & kTxAdopt;
}
/// Of a marked connection, by one thread at a time, without tokens: the next step of this process. If it
/// cannot take it the marks are gone.
void adopt_socket(File &f) noexcept;

} // namespace sd
