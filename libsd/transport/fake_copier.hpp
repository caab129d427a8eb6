// The fake transport's copier: carries what one side of a slot has written over to the other side's memory,
// in the order in which a device that writes there would be used: payload, then headers, then what is said
// about them. Runs in the process that publishes, and in the monitor for what stayed behind or was left by
// the dead.
//
// One at a time for each direction, by a lock that is taken from the dead; a process that is stopped with it
// holds the direction up, as a device would that is not served. What it does may be done twice, and
// `position` moves last: who takes over from a killed one repeats what that had under way. The sender does
// not use the place again before the other side has consumed it, and nobody else writes there.
#pragma once
#include "libsd/layout/fake_layout.hpp"
#include "libsd/layout/record.hpp"
#include <cstring>

namespace sd::fake {

/// Both memories and the state, mapped in one piece.
struct Memory {
    uint8_t *base = nullptr;
    LinkView half(unsigned side) const { return {base + fake_half(side)}; }
    FakeState &state() const { return *reinterpret_cast<FakeState *>(base + kFakeState); }
};

/// The ring of `sender` as half `h` has it; null where its sender has written nothing that makes sense.
inline uint8_t *ring_in(LinkView h, uint32_t slot, unsigned sender, uint32_t cls) noexcept {
    if (cls == 0)
        return h.slot(slot).ring[sender];
    if (cls >= kRingClasses)
        return nullptr;
    const uint32_t units = h.piece(slot, sender, cls).load(std::memory_order_acquire);
    const uint64_t offset = (uint64_t{units} - 1) * kPieceUnit;
    if (units == 0 || offset % kRingSize[cls] != 0 || offset + kRingSize[cls] > kArenaBytes)
        return nullptr;
    return offset < kFirstArena ? h.base + kFirstArenas + sender * kFirstArena + offset
                                : h.base + kArenaOffset + sender * kArenaBytes + offset;
}

inline void copy_piece(uint8_t *to, const uint8_t *from, uint32_t size, uint32_t at, uint32_t n) noexcept {
    const uint32_t first = n < size - at ? n : size - at;
    memcpy(to + at, from + at, first);
    memcpy(to, from, n - first);
}

/// More than all rings of a direction hold: one who writes as fast as this reads does not keep it busy.
constexpr uint64_t kMostCarried = 8u << 20;
static_assert(kMostCarried > 512 + (16u << 10) + (64u << 10) + (256u << 10) + (1u << 20) + (4u << 20));

/// The records from where the last carrying ended.
inline void carry_records(Memory m, uint32_t slot, unsigned sender, FakeDirection &d) noexcept {
    using namespace ring;
    const LinkView near = m.half(sender), far = m.half(1 - sender);
    const Corked &back = near.slot(slot).side[sender].control.back;
    if (d.corked != 0 && back.header.load(std::memory_order_acquire) != d.corked) { // its sender has shown it
        uint8_t *from = ring_in(near, slot, sender, d.corked_cls),
                *to = ring_in(far, slot, sender, d.corked_cls);
        if (from && to && ring::word(to, d.corked_offset).load(std::memory_order_relaxed) == 0)
            ring::word(to, d.corked_offset)
                .store(ring::word(from, d.corked_offset).load(std::memory_order_acquire),
                       std::memory_order_release);
        d.corked = 0;
    }
    for (const uint64_t start = d.position; d.position - start < kMostCarried;) {
        if (d.cls >= kRingClasses)
            return;
        for (uint32_t cls = 1; cls < kRingClasses; ++cls)
            far.piece(slot, sender, cls)
                .store(near.piece(slot, sender, cls).load(std::memory_order_acquire), std::memory_order_release);
        const uint32_t size = kRingSize[d.cls], mask = size - 1;
        const auto at = static_cast<uint32_t>(d.position - d.base) & mask;
        uint8_t *from = ring_in(near, slot, sender, d.cls), *to = ring_in(far, slot, sender, d.cls);
        if (!from || !to)
            return;
        const uint64_t corked = back.header.load(std::memory_order_acquire);
        uint64_t h = ring::word(from, at).load(std::memory_order_acquire);
        const bool hidden = h == 0 && corked != 0 && header_valid(corked, d.position) && d.corked == 0;
        if (hidden)
            h = corked;
        if (h == 0)
            return;
        const uint32_t n = header_length(h);
        if (header_kind(h) == RecordKind::change && header_valid(h, d.position) && n < kRingClasses &&
            n != d.cls) {
            uint8_t *next = ring_in(far, slot, sender, n);
            if (!next)
                return;
            ring::word(next, 0).store(0, std::memory_order_relaxed);
            ring::word(to, at).store(h, std::memory_order_release);
            d.base = d.position + 8;
            d.cls = n;
            d.position = d.base;
            continue;
        }
        if (!header_valid(h, d.position) || n > kMaxRecord || 16 + pad8(n) > size) {
            ring::word(to, at).store(h, std::memory_order_release); // rubbish: the receiver is to see it
            return;
        }
        copy_piece(to, from, size, (at + 8) & mask, static_cast<uint32_t>(pad8(n)));
        ring::word(to, (at + 8 + pad8(n)) & mask).store(0, std::memory_order_relaxed);
        if (hidden) {
            d.corked_cls = d.cls;
            d.corked_offset = at;
            d.corked = h;
        } else {
            ring::word(to, at).store(h, std::memory_order_release);
        }
        d.position += 8 + pad8(n);
    }
}

/// All that side `side` has written about a slot, which has come as far as `d` says. With its lock.
inline void carry_slot(Memory m, uint32_t slot, unsigned side, FakeDirection &d) noexcept {
    SlotSide &from = m.half(side).slot(slot).side[side], &to = m.half(1 - side).slot(slot).side[side];
    const auto put = [](std::atomic<uint64_t> &target, uint64_t now) {
        if (target.load(std::memory_order_relaxed) != now)
            target.store(now, std::memory_order_release);
    };
    const auto carry = [put](std::atomic<uint64_t> &target, const std::atomic<uint64_t> &source) {
        put(target, source.load(std::memory_order_acquire));
    };
    // Before the records, flags above all: what they say was so before them is read first.
    const uint32_t flags = from.control.flags.load(std::memory_order_acquire);
    const uint32_t ended = from.control.ended_at.load(std::memory_order_acquire);
    carry(to.control.oob, from.control.oob);
    carry_records(m, slot, side, d);
    carry(to.control.back.since, from.control.back.since);
    carry(to.control.back.where, from.control.back.where);
    carry(to.control.back.header, from.control.back.header);
    carry(to.credit.shown, from.credit.shown);
    carry(to.credit.consumed, from.credit.consumed);
    const uint64_t offer = from.credit.path.offer.load(std::memory_order_acquire); // says that `from` holds
    carry(to.credit.path.from, from.credit.path.from);
    put(to.credit.path.offer, offer);
    carry(to.credit.path.taken, from.credit.path.taken);
    to.control.ended_at.store(ended, std::memory_order_relaxed);
    if (flags & ~to.control.flags.load(std::memory_order_relaxed))
        to.control.flags.fetch_or(flags, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst); // before the other side's arms are looked at
}

/// Words of the whole link that `side` writes.
inline void carry_header(Memory m, unsigned side) noexcept {
    auto &from = m.half(side).header().side[side], &to = m.half(1 - side).header().side[side];
    to.arena_used.store(from.arena_used.load(std::memory_order_acquire), std::memory_order_release);
    to.arena_open.store(from.arena_open.load(std::memory_order_acquire), std::memory_order_release);
}

/// One direction's lock, as `pid`. The monitor takes it from a process that has died
/// (monitor/records/link.cpp).
template <class Wait> void lock(FakeDirection &d, uint32_t pid, Wait wait) noexcept {
    for (uint32_t nobody = 0; !d.lock.compare_exchange_strong(nobody, pid, std::memory_order_acq_rel); nobody = 0)
        wait();
}
inline void unlock(FakeDirection &d) noexcept { d.lock.store(0, std::memory_order_release); }

} // namespace sd::fake
