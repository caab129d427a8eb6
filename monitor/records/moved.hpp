// A connection whose holders share a kernel socket from now on: see BridgeStart::for_all in
// libsd/layout/protocol.hpp.
#pragma once
#include "monitor/records/segment.hpp"

namespace sd::monitor {

struct MovedConnection {
    std::shared_ptr<Segment> segment;
    uint32_t ofd = 0;
    uint32_t generation = 0;
    UniqueFd socket; ///< for those who have not come for it yet; while we have it, it is not closed
    /// Client id of the sd-bridge that alone goes on with the Ofd; 0: has not claimed it yet
    uint64_t bridge = 0;
    Charge charge;
    bool is_adopted = false; ///< nobody carries: it is one more path of the connection (kTxAdopt)
};

} // namespace sd::monitor
