// The life of an accelerated connection in this process.
#include "libsd/vfs/connection.hpp"

#include "libsd/control/client.hpp"

namespace sd {

namespace {

// Where a recycled File points: an Ofd nobody can own and an empty slot.
Ofd grave_ofd;
Slot grave_slot;

} // namespace

void bury(File &f) noexcept {
    f.ofd = &grave_ofd;
    f.mine = &grave_slot.side[0];
    f.peer = &grave_slot.side[1];
    f.tx_place = {grave_slot.ring[0], grave_slot.ring[0]};
    f.rx_place = {grave_slot.ring[1], grave_slot.ring[1]};
}

bool bind_stream(File &f, LinkMap &l, uint32_t slot, unsigned family) noexcept {
    uint32_t index;
    if (!own_segment()) // a forked child makes its own with its first connection
        return false;
    Ofd *o = allocate_ofd(l.id, slot, l.side, &index);
    if (!o)
        return false;
    o->family = static_cast<uint8_t>(family);
    o->status.store(f.status.load(std::memory_order_relaxed), std::memory_order_relaxed);
    Slot &s = l.view.slot(slot);
    const unsigned side = l.side;
    f.seg = static_cast<uint8_t>(own_segment_index.load(std::memory_order_relaxed));
    f.side = static_cast<uint8_t>(side);
    f.link = &l;
    f.slot = slot;
    f.ofd = o;
    f.ofd_index = index;
    f.family = static_cast<uint8_t>(family);
    f.mine = &s.side[side];
    f.peer = &s.side[1 - side];
    f.tx_place = {s.ring[side], l.view.region(slot, side)};
    f.rx_place = {s.ring[1 - side], l.view.region(slot, 1 - side)};
    l.users.fetch_add(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_release);
    f.kind = Kind::stream;
    return true;
}

int take_error(Ofd &o) noexcept {
    return o.so_error.load(std::memory_order_relaxed) ? o.so_error.exchange(0, std::memory_order_acq_rel) : 0;
}

uint32_t absorb_flags(File &f) noexcept {
    uint32_t flags = f.peer->control.flags.load(std::memory_order_acquire);
    Ofd &o = *f.ofd;
    uint32_t seen = o.flags_seen.load(std::memory_order_acquire);
    if ((flags & ~seen) == 0) [[likely]]
        return seen;
    // A kernel closing a killed process's socket sends RST instead of FIN when data was left unread there.
    if ((flags & kFlagDead) && f.peer->credit.consumed.load(std::memory_order_acquire) != o.tx.s.tail)
        flags |= kFlagReset;
    uint32_t before = o.flags_seen.fetch_or(flags, std::memory_order_acq_rel);
    if ((flags & kFlagReset) && !(before & kFlagReset)) {
        o.so_error.store((before & kFlagWriteShut) ? EPIPE : ECONNRESET, std::memory_order_release);
        o.tx_block.fetch_or(kTxReset, std::memory_order_release);
    }
    return before | flags;
}

void condemn(File &f) noexcept {
    f.mine->control.flags.fetch_or(kFlagReset | kFlagWriteShut, std::memory_order_seq_cst);
    notify(*f.link, f.slot, f.peer->control.rx_arm);
    notify(*f.link, f.slot, f.peer->control.tx_arm);
    if (!(f.ofd->flags_seen.fetch_or(kFlagReset | kFlagWriteShut) & kFlagReset)) {
        f.ofd->so_error.store(ECONNRESET);
        f.ofd->tx_block.fetch_or(kTxReset);
        count_fallback(Cause::corrupt_peer, nullptr);
        wire::Log log{1, static_cast<uint16_t>(Cause::corrupt_peer), "invalid data in a ring: connection reset"};
        control::request(wire::Op::log, &log, sizeof log);
    }
}

int64_t take_slot(LinkMap &l) noexcept {
    QuietGuard g(l.slot_lock);
    int64_t slot = -1;
    auto released = [&](uint32_t i) {
        Slot &s = l.view.slot(i);
        return (s.side[0].control.flags.load(std::memory_order_acquire) & kFlagReleased) &&
               (s.side[1].control.flags.load(std::memory_order_acquire) & (kFlagReleased | kFlagDead));
    };
    for (size_t i = l.zombie_slots.size(), looked = 0; i-- > 0 && looked < 8; ++looked)
        if (released(l.zombie_slots[i])) {
            slot = l.zombie_slots[i];
            l.zombie_slots.remove_unordered(i);
            break;
        }
    if (slot < 0 && l.idle_slots.size()) {
        slot = l.idle_slots[l.idle_slots.size() - 1];
        l.idle_slots.truncate(l.idle_slots.size() - 1);
    }
    if (slot < 0 && l.slot_high < kLinkSlots)
        slot = l.slot_high++;
    for (size_t i = 0; slot < 0 && i < l.zombie_slots.size(); ++i)
        if (released(l.zombie_slots[i])) {
            slot = l.zombie_slots[i];
            l.zombie_slots.remove_unordered(i);
        }
    if (slot < 0)
        return -1;
    Slot &s = l.view.slot(static_cast<uint32_t>(slot));
    for (unsigned side = 0; side < 2; ++side) {
        auto &c = s.side[side].control;
        c.rx_arm.store(0, std::memory_order_relaxed);
        c.tx_arm.store(0, std::memory_order_relaxed);
        c.tx_want.store(0, std::memory_order_relaxed);
        c.oob.store(0, std::memory_order_relaxed);
        s.side[side].credit.consumed.store(0, std::memory_order_relaxed);
        ring::word(s.ring[side], 0).store(0, std::memory_order_relaxed);
        c.flags.store(0, std::memory_order_release);
    }
    s.identity.state.store(static_cast<uint32_t>(SlotState::free), std::memory_order_release);
    return slot;
}

void give_slot_back(LinkMap &l, uint32_t slot) noexcept {
    QuietGuard g(l.slot_lock);
    l.idle_slots.push(slot);
}

void link_unuse(LinkMap &l) noexcept {
    if (l.users.fetch_sub(1, std::memory_order_acq_rel) != 1)
        return;
    forget_link(l);
    wire::LinkRef ref{l.id, l.side, 0};
    unmap_link(&l);
    control::request(wire::Op::drop_link, &ref, sizeof ref);
}

void close_stream(File &f, bool reset) noexcept {
    LinkMap &l = *f.link;
    Ofd &o = *f.ofd;
    const unsigned seg = f.seg;
    const uint32_t index = f.ofd_index, slot = f.slot;
    SlotSide *mine = f.mine, *peer = f.peer;
    bool last;
    {
        // Both tokens: after this no thread of ours is inside an operation on the connection.
        Claim tx(seg, o.tx.token, f.tx_name());
        Claim rx(seg, o.rx.token, f.rx_name());
        last = drop_ofd(seg, index);
        if (last) {
            uint32_t flags = kFlagClosed | kFlagWriteShut;
            bool unread = o.rx.s.left > 0 || rx_pending(f);
            if (reset || unread ||
                (o.opt.linger_on.load(std::memory_order_relaxed) &&
                 o.opt.linger_s.load(std::memory_order_relaxed) == 0))
                flags |= kFlagReset;
            // Order as with data: flags, fence (the locked instruction), then the peer's arm words.
            mine->control.flags.fetch_or(flags, std::memory_order_seq_cst);
        }
        f.kind = Kind::free;
        bury(f);
    }
    if (last) {
        notify(l, slot, peer->control.rx_arm);
        notify(l, slot, peer->control.tx_arm);
        free_ofd(seg, index);
        mine->control.flags.fetch_or(kFlagReleased, std::memory_order_seq_cst);
        if (l.side == 0) {
            QuietGuard g(l.slot_lock);
            l.zombie_slots.push(slot);
        }
    }
    link_unuse(l);
}

} // namespace sd
