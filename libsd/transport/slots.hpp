// Slots of a link: which are free for a new connection. Client side only, with LinkMap::slot_lock.
#pragma once
#include "libsd/transport/link.hpp"

namespace sd {

/// For transports: the words of a slot as a new connection finds them, in one memory. `remote`: the side
/// whose owner has another memory; kNobodyRemote: none.
constexpr unsigned kNobodyRemote = 2;
void reset_slot(Slot &s, unsigned remote) noexcept;
/// A free slot of the link, initialised; -1 when all are in use.
int64_t take_slot(LinkMap &l) noexcept;
/// One that was taken and that nobody else has seen.
void give_slot_back(LinkMap &l, uint32_t slot) noexcept;
/// For transports: do as many connections wait to be accepted as the listener wants?
bool queue_full(const LinkMap &l, uint32_t backlog) noexcept;
/// For transports: Transport::offer() where the words of birth are in a memory of this host, `far`.
Offer offer_at(LinkMap &l, uint32_t slot, uint32_t backlog) noexcept;
/// A request that was offered ends, if it was not accepted by now: then the slot is the caller's again,
/// though an entry for it may still be queued. False: it has been accepted. Without slot_lock.
[[nodiscard]] bool take_request_back(const LinkMap &l, uint32_t slot) noexcept;
/// We have closed the connection in it: free again once the server has let go of it, too.
void close_slot(LinkMap &l, uint32_t slot) noexcept;

} // namespace sd
