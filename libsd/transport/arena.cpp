// Mapping the arenas of links as they are used, and giving out pieces of them.
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/transport/arena_claims.hpp"
#include "libsd/transport/link.hpp"
#include <bit>
#include <cerrno>
#include <sys/mman.h>

namespace sd {

std::atomic<uint64_t> mapped_arena_bytes{0};
std::atomic<uint32_t> mapped_arena_parts{0};

namespace {

constexpr uint64_t kFirstPart = kFirstArena; ///< part 0; parts 1 and 2 together are as large as all before

unsigned part_of(uint64_t offset) noexcept {
    return static_cast<unsigned>(std::bit_width(offset / kFirstPart));
}
uint64_t part_begin(unsigned part) noexcept { return part == 0 ? 0 : kFirstPart << (part - 1); }
uint64_t part_bytes(unsigned part) noexcept { return part == 0 ? kFirstPart : kFirstPart << (part - 1); }

/// How much of either side's arena may be mapped.
uint64_t most_of_a_side(const LinkMap &l) noexcept {
    if (l.narrow.load(std::memory_order_relaxed))
        return kMostNarrow;
    return l.foreign.load(std::memory_order_relaxed) ? kMostForeign : kArenaBytes;
}

/// Where a part is mapped; nullptr: no address space. With the lock against other threads that map it, and
/// against the end of the link.
uint8_t *mapped_part(LinkMap &l, unsigned side, unsigned part) noexcept {
    if (part == 0)
        return l.view.base + kFirstArenas + side * kFirstArena;
    auto &place = l.part[side][part];
    if (uint8_t *known = place.load(std::memory_order_acquire))
        return known;
    // Locked: it would be filled with pages, all of it. Confined: the call ends the program.
    if (mappings_are_locked.load(std::memory_order_relaxed) || sandboxed() ||
        part_begin(part) + part_bytes(part) > most_of_a_side(l))
        return nullptr;
    LockGuard g(l.part_lock);
    if (uint8_t *known = place.load(std::memory_order_relaxed))
        return known;
    if (link_by_index(l.index) != &l)
        return nullptr; // whoever looks without a reference: the link has gone
    const size_t bytes = part_bytes(part);
    uint8_t *&former = l.former_part[side][part];
    if (!former && l.foreign.load(std::memory_order_relaxed) &&
        mapped_arena_parts.load(std::memory_order_relaxed) >= kMostForeignParts)
        return nullptr;
    void *p = sys::mmap(former, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE | (former ? MAP_FIXED : 0), l.memfd,
                        l.begins_at + kArenaOffset + side * kArenaBytes + part_begin(part));
    if (!p)
        return nullptr;
    sys::madvise(p, bytes, MADV_DONTDUMP);
    if (!former) {
        mapped_arena_bytes.fetch_add(bytes, std::memory_order_relaxed);
        mapped_arena_parts.fetch_add(1, std::memory_order_relaxed);
    }
    former = nullptr;
    place.store(static_cast<uint8_t *>(p), std::memory_order_release);
    return static_cast<uint8_t *>(p);
}

/// Maps a side's arena from its beginning until `wanted` bytes are, or no more can be; how many are.
uint64_t map_until(LinkMap &l, unsigned side, uint64_t wanted) noexcept {
    uint64_t now = kFirstArena;
    while (now < wanted && now < kArenaBytes && mapped_part(l, side, part_of(now)))
        now += part_bytes(part_of(now));
    return now;
}

/// Where the sender was told to stay within what is mapped here: maps as far as it may want to go now, twice
/// what is used, and one ring of the next size. Without address space its rings stay as large as they are.
void map_ahead(LinkMap &l, uint64_t used, uint32_t size) noexcept {
    auto &open = l.view.header().side[l.side].arena_open;
    uint64_t told = open.load(std::memory_order_relaxed);
    const uint64_t next = uint64_t{size} * 4, wanted = 2 * (used > next ? used : next);
    if (told >= wanted)
        return;
    const uint64_t mapped = map_until(l, 1u - l.side, wanted);
    if (l.foreign.load(std::memory_order_relaxed) && !claim_strangers_arena(l, mapped))
        return;
    while (told < mapped && !open.compare_exchange_weak(told, mapped, std::memory_order_acq_rel)) {
    }
}

/// The link in whose slots the address lies.
LinkMap *link_around(const uint8_t *address) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i); l && address >= l->view.base + kSlotOffset &&
                                           address < l->view.base + kSlotOffset + kLinkSlots * sizeof(Slot))
            return l;
    return nullptr;
}

/// Of a piece that the link's table names; 0 where no honest side could have written it.
bool sound(uint64_t offset, uint32_t size) noexcept {
    return offset % size == 0 && offset + size <= kArenaBytes && part_of(offset) == part_of(offset + size - 1);
}

uint8_t *address_of(LinkMap &l, unsigned side, uint64_t offset) noexcept {
    const unsigned part = part_of(offset);
    uint8_t *base = mapped_part(l, side, part);
    return base ? base + (offset - part_begin(part)) : nullptr;
}

} // namespace

uint8_t *larger_ring(const uint8_t *inline_ring, uint32_t cls, long *error) noexcept {
    long ignored;
    long &e = error ? *error : ignored;
    e = -EPROTO;
    LinkMap *l = cls < kRingClasses ? link_around(inline_ring) : nullptr;
    if (!l)
        return nullptr;
    const size_t at = static_cast<size_t>(inline_ring - (l->view.base + kSlotOffset));
    const auto slot = static_cast<uint32_t>(at / sizeof(Slot));
    const unsigned sender = inline_ring == l->view.slot(slot).ring[0] ? 0 : 1;
    const uint32_t units = l->view.piece(slot, sender, cls).load(std::memory_order_acquire);
    const uint64_t offset = (uint64_t{units} - 1) * kPieceUnit;
    if (units == 0 || !sound(offset, kRingSize[cls]))
        return nullptr;
    const uint64_t end = offset + kRingSize[cls];
    if (sender != l->side && l->foreign.load(std::memory_order_relaxed) && !claim_strangers_arena(*l, end)) {
        e = -ENOMEM;
        return nullptr;
    }
    uint8_t *ring = address_of(*l, sender, offset);
    e = ring ? 0 : -ENOMEM;
    if (ring && sender != l->side)
        map_ahead(*l, end, kRingSize[cls]);
    return ring;
}

namespace {

/// Where the next piece of that size would lie; it ends behind the arena where there is none.
uint64_t next_piece(uint64_t used, uint32_t size) noexcept {
    const uint64_t offset = align_up(used < kArenaBytes ? used : kArenaBytes, size);
    return offset == 0 && size > kFirstArena ? size : offset; // not across the end of part 0
}

/// Can this side send from the piece that the table names?
bool is_usable(LinkMap &l, uint32_t units, uint32_t size) noexcept {
    const uint64_t offset = (uint64_t{units} - 1) * kPieceUnit;
    return sound(offset, size) && address_of(l, l.side, offset);
}

uint64_t open_to_us(const LinkMap &l) noexcept {
    const uint64_t open = l.view.header().side[1 - l.side].arena_open.load(std::memory_order_acquire);
    return open < kArenaBytes ? open : kArenaBytes;
}

} // namespace

bool ring_to_be_had(LinkMap &l, uint32_t slot, unsigned cls) noexcept {
    const uint32_t size = kRingSize[cls];
    // As provide_ring() decides, or a send would be told of room that it never gets: the peer writes the
    // table.
    if (const uint32_t units = l.view.piece(slot, l.side, cls).load(std::memory_order_relaxed))
        return is_usable(l, units, size);
    const uint64_t used = l.view.header().side[l.side].arena_used.load(std::memory_order_relaxed);
    const uint64_t offset = next_piece(used, size);
    return offset + size <= open_to_us(l) && arena_to_be_claimed(size) && address_of(l, l.side, offset);
}

bool provide_ring(LinkMap &l, uint32_t slot, unsigned cls) noexcept {
    const uint32_t size = kRingSize[cls];
    auto &piece = l.view.piece(slot, l.side, cls);
    if (const uint32_t units = piece.load(std::memory_order_relaxed))
        return is_usable(l, units, size);
    if (!claim_arena(l, size))
        return false;
    auto &mark = l.view.header().side[l.side].arena_used;
    uint64_t used = mark.load(std::memory_order_relaxed), offset;
    do {
        offset = next_piece(used, size);
        // Mapped before it is taken: what is taken is never given back.
        if (offset + size > open_to_us(l) || !address_of(l, l.side, offset)) {
            unclaim_arena(l, size);
            return false;
        }
    } while (!mark.compare_exchange_weak(used, offset + size, std::memory_order_acq_rel));
    piece.store(static_cast<uint32_t>(offset / kPieceUnit) + 1, std::memory_order_release);
    return true;
}

namespace {

/// What of a side's arena is to be mapped beforehand.
uint64_t beforehand(const LinkMap &l, unsigned side) noexcept {
    const uint64_t used = l.view.header().side[side].arena_used.load(std::memory_order_relaxed);
    return used > kNarrowArena ? used : kNarrowArena;
}

} // namespace

void narrow_arena(LinkMap &l) noexcept {
    l.narrow.store(true, std::memory_order_relaxed);
    hold_senders_to_mapped(l);
}

void hold_senders_to_mapped(LinkMap &l) noexcept {
    const unsigned sender = 1u - l.side;
    uint64_t mapped = map_until(l, sender, beforehand(l, sender));
    if (l.foreign.load(std::memory_order_relaxed)) {
        mapped = opened_at_first(mapped);
        if (!claim_strangers_arena(l, mapped))
            mapped = kLeastOpened;
    }
    auto &open = l.view.header().side[l.side].arena_open;
    uint64_t told = open.load(std::memory_order_relaxed);
    while (told > mapped && !open.compare_exchange_weak(told, mapped, std::memory_order_acq_rel)) {
    }
}

void narrow_arenas(bool for_good) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i)) {
            narrow_arena(*l);
            if (for_good)
                map_until(*l, l->side, beforehand(*l, l->side));
        }
}

void unmap_arenas(LinkMap &l, bool keep) noexcept {
    LockGuard g(l.part_lock);
    for (unsigned side = 0; side < 2; ++side)
        for (unsigned k = 1; k < kArenaParts; ++k) {
            const size_t bytes = part_bytes(k);
            uint8_t *p = l.part[side][k].exchange(nullptr, std::memory_order_acq_rel);
            if (p && keep && put_empty_memory(p, bytes)) {
                l.former_part[side][k] = p;
            } else if (p) {
                sys::munmap(p, bytes);
                mapped_arena_bytes.fetch_sub(bytes, std::memory_order_relaxed);
                mapped_arena_parts.fetch_sub(1, std::memory_order_relaxed);
            }
        }
}

} // namespace sd
