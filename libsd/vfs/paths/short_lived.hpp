// Destinations whose connections end before they are worth joining.
//
// To mark a socket for discovery costs a tenth of a short connection through the kernel. Where a program
// opens one after the other to a destination, and none lives long enough to be offered, only some of them are
// marked. The first that lasts has all marked again. Connections that come seldom are marked always, so that
// an idle program's probes tell nothing about the connection that it then keeps.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include <cstdint>

namespace sd {

/// A name for an address and port, as File keeps it; never 0. Two may have the same.
uint32_t destination_of(const SlotAddress &to) noexcept;

/// Is a socket that is about to connect there to be marked? Any thread. The table is a hint: what threads
/// write at once is lost.
bool is_worth_marking(uint32_t destination) noexcept;
/// A marked connection that this process opened has ended without being offered, or has been offered. 0:
/// none.
void note_short_lived(uint32_t destination) noexcept;
void note_lasting(uint32_t destination) noexcept;

} // namespace sd
