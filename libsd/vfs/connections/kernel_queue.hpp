// The kernel's own queue of a listener, which ordinary clients come to.
//
// accept4() cannot be told not to wait, and O_NONBLOCK belongs to the socket: a listener that is made
// non-blocking for one call is so for everybody who has it, with this library or without, and for ever if the
// thread is killed just then. So nothing is changed on the socket. A call that may block looks first (ppoll)
// and then accepts, and in between another acceptor may be faster. Two things make that right:
//
//  - Among those with this library one at a time is between look and accept: it has the first place of
//    ListenerSegment::in_kernel. The kernel's queue gets shorter by accept alone, so what was seen is still
//    there. The others go on looking at their links meanwhile.
//  - Somebody without the library, who was passed the listener, knows nothing of that. So whoever accepts may
//    get blocked in the kernel, where no doorbell reaches it. It has said so before, in the headers of all
//    links (in_kernel). A client that finds that said after its SYN, and not unsaid soon, takes the SYN back
//    and connects through the kernel, which wakes the acceptor as any client's connection does.
//
// Acceptor:  A1 take a place      Client:  C1 publish the SYN         Monitor:  M1 list the new link
//            A2 refresh links              C2 read in_kernel                    M2 a place taken? mark link
//            A3 mark every link            C3 set: wait, else take back         M3 give it to the client
//            A4 look at the links
//            A5 accept4
// A3, C1 and M1 are full fences: either A4 finds the SYN or C2 finds the mark; and either A2 finds the link
// or M2 the place.
//
// The first place is not a lock that could be left locked: who finds it taken for long (its owner is stopped,
// or was killed and the monitor, who would free it, is not there) takes another one. Two may then be after
// one connection, which is what the marks are for. A mark that nobody takes back (the process was killed and
// there is no monitor) costs clients of that link their acceleration and nothing else. When another monitor
// comes while somebody is blocked in the kernel, links made by it do not carry the mark until that call ends.
#pragma once
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"

namespace sd {

/// An accept() that is under way.
struct AcceptCall {
    int number; ///< as the program gave it
    File &listener;
    Pin &pin;
    sockaddr *address;
    socklen_t *length;
    int flags;
};

/// Is somebody, or an error, in the queue of the listener's kernel socket?
[[nodiscard]] bool has_kernel_client(int fd) noexcept;
bool is_nonblocking_socket(int fd) noexcept;

/// One connection of the queue of `fd`, the listener's kernel socket by whatever number. -EAGAIN: there is
/// none. -EBUSY: there is, and another acceptor is about to take it, or an accelerated one has come
/// meanwhile; with `insist` it is taken from those. `its_turn`: the kernel's clients have waited while others
/// were accepted, so accelerated ones do not go first again. Any thread, any process.
[[nodiscard]] long accept_from_kernel(int fd, const AcceptCall &call, bool insist, bool its_turn) noexcept;

/// Client side, after a SYN: may acceptors be blocked in the kernel?
inline bool acceptor_in_kernel(const LinkMap &l) noexcept {
    return l.far.header().side[1].in_kernel.load(std::memory_order_seq_cst) != 0;
}
/// Where that says yes: waits for the SYN to be accepted, or for them to come back. False: not soon; the SYN
/// is taken back, and the slot the caller's again.
[[nodiscard]] bool accepted_soon(const LinkMap &l, uint32_t slot) noexcept;

} // namespace sd
