// Slots of a link: which are free for a new connection. Client side only, with LinkMap::slot_lock.
#pragma once
#include "libsd/transport/link.hpp"

namespace sd {

/// A free slot of the link, initialised; -1 when all are in use.
int64_t take_slot(LinkMap &l) noexcept;
/// One that was taken and that nobody else has seen.
void give_slot_back(LinkMap &l, uint32_t slot) noexcept;
/// We have closed the connection in it: free again once the server has let go of it, too.
void close_slot(LinkMap &l, uint32_t slot) noexcept;

} // namespace sd
