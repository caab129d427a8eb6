// A client who is accepted in place of one that has gone.
//
// What poll() says of a listener stays true in the kernel until somebody accepts: a client who goes meanwhile
// leaves a connection that is reset, or at its end. So a program may go on to an accept() that blocks. The
// request in a link's queue is memory that the client can write. Where it is gone, a program that serves
// others as well would wait for whoever connects next.
#pragma once
#include "libsd/vfs/connections/listener.hpp"

namespace sd {

/// Puts a connection that is reset already into the kernel's queue of the listener, `fd`, if that takes one
/// from this process. Any thread; where it is not possible nothing happens.
void stand_in(Listener &l, int fd) noexcept;

} // namespace sd
