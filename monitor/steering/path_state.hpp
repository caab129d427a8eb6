// Where a direction of a connection goes, and what keeps it from going elsewhere: for sdstat and sdctl.
#pragma once
#include "monitor/records/connection_row.hpp"
#include "monitor/records/segment.hpp"

namespace sd::monitor {

struct PathState {
    Path path = Path::shm;
    Blocker blocker = Blocker::none;
    /// Nothing of the former path is used any more: what was left there has been read.
    bool is_over = true;
    uint32_t moves = 0;  ///< that have been begun, those that were taken back included
    uint64_t offset = 0; ///< at which the former path was left: a byte of the socket, a position in the ring
};

/// Of what `side` sends. Null: who has that end is not known. Words of shared memory, which may say anything.
PathState path_state(const Link &link, uint32_t slot, unsigned side, const Segment::OpenOfd *sender);

} // namespace sd::monitor
