// A connection whose holders share a kernel socket from now on: see BridgeStart::for_all in
// libsd/layout/protocol.hpp.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include "monitor/kernel/client_socket.hpp"
#include "monitor/records/segment.hpp"

#include <memory>
#include <set>
#include <utility>

namespace sd::monitor {

/// Both ends of a connection are about to get a kernel socket, whoever holds them:
/// libsd/vfs/paths/adopt.hpp.
struct Adoption {
    uint32_t serial = 0; ///< adoption_of() both Ofds
    std::pair<const Segment *, uint32_t> end[2];
    /// Clients that have the socket; while there are none, those that have none of a former adoption
    std::set<uint64_t> fetched[2];
    bool has_sockets = false;
    SlotAddress client{}, server{}; ///< the names that they are to have
    int family = 0;                 ///< AF_INET or AF_INET6
    bool is_given = false;          ///< somebody may have one of the sockets
    bool rests = false;             ///< the marks have been taken away, and may be set again
};

struct MovedConnection {
    std::shared_ptr<Segment> segment;
    uint32_t ofd = 0;
    uint32_t generation = 0;
    ClientSocket socket; ///< for those who have not come for it yet; while we have it, it is not closed
    Charge charge;
    bool is_adopted = false;            ///< nobody carries: it is one more path of the connection (kTxAdopt)
    std::shared_ptr<Adoption> adoption; ///< of one that is adopted in two steps, the same at both ends
};

} // namespace sd::monitor
