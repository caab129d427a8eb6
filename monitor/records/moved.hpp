// A connection whose holders share a kernel socket from now on: see BridgeStart::for_all in
// libsd/layout/protocol.hpp.
#pragma once
#include "monitor/kernel/client_socket.hpp"
#include "monitor/records/segment.hpp"

namespace sd::monitor {

struct MovedConnection {
    std::shared_ptr<Segment> segment;
    uint32_t ofd = 0;
    uint32_t generation = 0;
    ClientSocket socket; ///< for those who have not come for it yet; while we have it, it is not closed
    Charge charge;
};

} // namespace sd::monitor
