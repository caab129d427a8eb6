// Destinations whose connections end before they are worth what is done for them.
//
// To mark a socket for discovery costs a tenth of a short connection through the kernel. Where a program
// opens one after the other to a destination, and none lives long enough to be offered, only some of them are
// marked. The first that lasts has all marked again. Connections that come seldom are marked always, so that
// an idle program's probes tell nothing about the connection that it then keeps.
//
// In the same manner for accelerated connections to a server that forks a child for each: what the fork then
// costs more (a channel for the child, pages that it writes) is gained back by some ten requests. Where none
// of many in a row made as many, the kernel has the next ones, but for a few.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include <atomic>
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

/// Is an accelerated connection there worth what it costs a server that forks for each? Any thread.
bool is_worth_forking(const SlotAddress &to) noexcept;
/// An accelerated connection has ended here, after so many sends and bytes both ways. `forks`: its server
/// forks for each (kLinkForks).
void note_forking(const SlotAddress &to, bool forks, uint64_t sends, uint64_t bytes) noexcept;
extern std::atomic<bool> any_forks; ///< one does; else neither address nor table need be looked at
inline void note_forked(const SlotAddress &to, bool forks, uint64_t sends, uint64_t bytes) noexcept {
    if (forks || any_forks.load(std::memory_order_relaxed)) [[unlikely]]
        note_forking(to, forks, sends, bytes);
}

} // namespace sd
