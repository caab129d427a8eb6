// Which of several devices a queue pair is made on: the one that the connection's own route leads over, and
// the others as spares.
#pragma once
#include "libsd/rdma/plugin.hpp"

namespace sd::rdma {

/// What is known of the connection for which a queue pair is made. Addresses of 16 bytes; IPv4 is mapped.
struct Ends {
    const uint8_t *local, *peer; ///< of the TCP connection, as this host sees it
    const uint8_t *theirs;       ///< the one that the other side's queue pair has; null: not known yet
};

/// Puts the places in the order in which they are tried. First the one with the connection's own address: the
/// kernel has chosen that by the route. But where the other side has a queue pair on another address than the
/// connection's, first those that share the most leading bits with it, since it may be on its spare. Else the
/// order stays as it was.
void order_by_route(Place *, unsigned n, const Ends &) noexcept;

} // namespace sd::rdma
