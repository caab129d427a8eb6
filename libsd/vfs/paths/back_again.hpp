// A connection whose queue pair was lost, and which has gone on in its socket since: it becomes the kernel's
// own, with nothing of the lost link left to it, and its end is offered anew (offer.hpp). Once the other end
// has done the same, the two are joined as any other connection is, and get a slot of another link.
//
// No byte is lost, come twice or out of turn. With both tokens in hand the two directions are in the socket:
// what is sent goes there, and the peer has said that it has read the ring to its end; what comes is read
// there, and so is all that the peer sends from here on, since both ends have called each other home, which
// is never taken back. So nothing of the stream lies in the link, none of it will, and the kernel's queues
// hold all that is under way. Nothing is written or read here. The two ends do this without each other: to
// the one that has not done it yet the socket is the same, and that this end has let go of the slot says
// nothing. The next move to a ring begins at a byte that the kernel counts, as the first one did.
//
// Only where no other thread or process can be about to use what goes.
#pragma once
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// As a call begins, with nothing held: what the number stands for may be a stream no more after it. Does
/// nothing where there is nothing to be done, or where it cannot be.
[[gnu::cold]] void offer_anew(int fd, File &f) noexcept;

/// When an end that was refused is offered again: after a second, and twice as long each time, up to 64 s.
[[nodiscard]] bool is_too_early(const File &f) noexcept;
/// The end is not wanted now. False: it was never joined, or for a reason that does not pass.
[[nodiscard]] bool will_try_again(File &f, Cause why) noexcept;

} // namespace sd
