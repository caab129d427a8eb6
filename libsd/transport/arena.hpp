// The arenas of a link: where the rings that are larger than those in the slots lie (layout/link_layout.hpp).
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd {

struct LinkMap;

/// Where the ring of class `cls` (not 0) lies whose direction has the inline ring at `inline_ring`, in a
/// link of this process; its part of the arena is mapped if it is not yet. A receiver also maps ahead of
/// what its sender may use next. nullptr: not there, and `*error`, where it is not null, says why: -ENOMEM,
/// no address space is left; -EPROTO, nobody has made that ring. Any thread, async-signal-safe; linear in
/// the number of links, for slow paths only.
uint8_t *larger_ring(const uint8_t *inline_ring, uint32_t cls, long *error) noexcept;

/// Makes sure that the ring of class `cls` in which our side sends over `slot` can be had. False: the
/// receiver has not opened that much, or this process cannot map it. With the send token.
[[nodiscard]] bool provide_ring(LinkMap &l, uint32_t slot, unsigned cls) noexcept;
/// Whether provide_ring() would succeed; a hint, without the token.
[[nodiscard]] bool ring_to_be_had(LinkMap &l, uint32_t slot, unsigned cls) noexcept;

/// The parts of an arena beyond kFirstArena: part k (from 1 on) has the bytes from 2^(k-1) to 2^k MiB, so
/// that a piece, which lies at a multiple of its size, is in one part, and the parts are few.
constexpr unsigned kArenaParts = 16;
static_assert(kFirstArena << (kArenaParts - 1) == kArenaBytes);

/// For a process whose address space is limited, and links of strangers: of the other side's arena this much
/// is mapped at once, room for one connection that takes all that the kernel would buffer.
constexpr uint64_t kNarrowArena = 8u << 20;
/// Never more than this of either side's, whatever a peer writes: it has no say in how much of a limited
/// address space it takes.
constexpr uint64_t kMostNarrow = 64u << 20;
/// Of a stranger's links: of either side's arena in each, and parts in all of them together, a quarter of the
/// mappings that the kernel allows a process.
constexpr uint64_t kMostForeign = 256u << 20;
constexpr uint32_t kMostForeignParts = 16384;
/// Maps kNarrowArena, if it can, and has the other side's senders stay within what is mapped. What they use
/// already they go on using: a receive fails with ENOMEM, and loses nothing, while it cannot be mapped.
/// With a reference to the link, or while it is made.
void hold_senders_to_mapped(LinkMap &l) noexcept;
/// The same, and kMostNarrow holds from now on.
void narrow_arena(LinkMap &l) noexcept;
/// The same for all links. `for_good`: nothing can be mapped any more after this (a sandbox), so that much
/// of our side's arenas is mapped as well.
void narrow_arenas(bool for_good = false) noexcept;

/// What this process has mapped of arenas beyond that: bytes, and how many mappings. Empty memory in the
/// place of a former link's counts.
extern std::atomic<uint64_t> mapped_arena_bytes;
extern std::atomic<uint32_t> mapped_arena_parts;
/// The link is about to be unmapped: the same for its arenas. `keep`: empty memory takes their place, see
/// link.cpp.
void unmap_arenas(LinkMap &l, bool keep) noexcept;

} // namespace sd
