// What processes that died left half done on connections that others still hold.
//
// Most of it is found by the next thread that takes the token (queue/token.hpp). Two things would not be:
// data or credit that the dead one had published without getting to ring for it, and credit it had not got to
// publish, when the survivors wait for the very peer that waits for it. So the monitor rings for every
// connection that a dead process held and counts the death in the segment; who wakes up from that looks
// whether a token's owner is dead, and takes the token.
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"

namespace sd {

// The caller has the token, hence nobody else works on this direction.
void repair_direction(unsigned seg, uint64_t token_id) noexcept {
    const auto index = static_cast<uint32_t>((token_id - 2) / 2);
    if (index == 0 || index >= kOfds)
        return;
    Ofd &o = segments[seg].view.ofd(index);
    if (o.state.load(std::memory_order_acquire) != static_cast<uint32_t>(OfdState::open))
        return;
    const uint32_t slot = __atomic_load_n(&o.slot, __ATOMIC_RELAXED); // once: another process can write it
    const unsigned side = __atomic_load_n(&o.side, __ATOMIC_RELAXED);
    LinkMap *l = side < 2 && slot < kLinkSlots ? find_link(o.link_id, side) : nullptr;
    if (!l)
        return;
    Slot &s = l->view.slot(slot);
    SlotSide &mine = s.side[side], &peer = s.side[1 - side];
    if (token_id & 1) {
        ring::recover_rx(o.rx.s, mine.credit.consumed);
        notify(*l, slot, peer.control.tx_arm);
        return;
    }
    ring::recover_tx(o.tx.s, {s.ring[side]}, mine.control.back);
    // Announced urgent data that was never sent.
    const uint64_t oob = mine.control.oob.load(std::memory_order_relaxed);
    if ((oob & 1) && oob >> 9 >= o.tx.s.tail)
        mine.control.oob.store(0, std::memory_order_release);
    notify(*l, slot, peer.control.rx_arm);
}

namespace {

constinit std::atomic<uint32_t> deaths_seen[kMaxSegments];

void adopt(File &f) noexcept {
    if (!take_reference(f))
        return;
    if (f.kind == FileKind::stream) {
        const ConnectionSnapshot b(f);
        Ofd &o = *b.ofd;
        if (orphaned(b.seg, o.tx.token))
            Claim tx(b.seg, o.tx.token, b.tx_token_id());
        if (orphaned(b.seg, o.rx.token))
            Claim rx(b.seg, o.rx.token, b.rx_token_id());
    }
    release_file(&f);
}

} // namespace

void look_after_orphans() noexcept {
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i) {
        const uint32_t deaths = segments[i].view.header().deaths.load(std::memory_order_acquire);
        if (deaths_seen[i].load(std::memory_order_relaxed) == deaths ||
            deaths_seen[i].exchange(deaths, std::memory_order_relaxed) == deaths)
            continue;
        for (uint32_t fd = 0, high = fd_high.load(std::memory_order_acquire); fd < high; ++fd)
            if (File *f = file_of(static_cast<int>(fd)); f && f->kind == FileKind::stream && f->seg == i)
                adopt(*f);
    }
}

} // namespace sd
