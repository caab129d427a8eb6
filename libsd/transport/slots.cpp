// Slots of a link that the client side gives to new connections.
#include "libsd/transport/slots.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/cpu/instructions.hpp"
#include <cstddef>

namespace sd {

namespace {

bool slot_released(const LinkMap &l, uint32_t i) noexcept {
    Slot &s = l.view.slot(i);
    // Dead: a relative of ours had it last, and was killed.
    return (s.side[0].control.flags.load(std::memory_order_acquire) & (kFlagReleased | kFlagDead)) &&
           (s.side[1].control.flags.load(std::memory_order_acquire) & (kFlagReleased | kFlagDead));
}

/// The one closed longest ago was probably released by the server too, and its words are at rest. One that
/// was not goes to the end of the queue, so that a connection the server keeps does not stand in the way. -1:
/// none of the first `looks`.
int64_t pop_zombie(LinkMap &l, size_t looks) noexcept {
    for (size_t waiting = l.zombie_slots.size() - l.zombie_first; waiting > 0 && looks > 0; --waiting, --looks) {
        const uint32_t i = l.zombie_slots[l.zombie_first++];
        if (slot_released(l, i))
            return i;
        close_slot(l, i);
    }
    return -1;
}

/// Asks for the lines of the slot that is likely to be the next one. They are at the server's core, and the
/// next connection would wait for each in turn.
void ask_for_next(const LinkMap &l) noexcept {
    if (l.zombie_first >= l.zombie_slots.size())
        return;
    constexpr unsigned kLine = 64;
    const Slot &s = l.view.slot(l.zombie_slots[l.zombie_first]);
    const auto *bytes = reinterpret_cast<const uint8_t *>(&s);
    for (size_t at = 0; at <= offsetof(Slot, ring); at += kLine)
        cpu::ask_to_write(bytes[at]);
    cpu::ask_to_write(s.ring[1]);
}

} // namespace

int64_t take_slot(LinkMap &l) noexcept {
    SD_ASSERT(l.side == 0 && l.slot_high <= kLinkSlots);
    int64_t slot = pop_zombie(l, 4);
    if (slot < 0 && l.idle_slots.size()) {
        slot = l.idle_slots[l.idle_slots.size() - 1];
        l.idle_slots.truncate(l.idle_slots.size() - 1);
    }
    if (slot < 0 && l.slot_high < kLinkSlots)
        slot = l.slot_high++;
    if (slot < 0)
        slot = pop_zombie(l, SIZE_MAX);
    if (slot < 0)
        return -1;
    SD_ASSERT(slot < kLinkSlots); // all three come from this process's own memory
    ask_for_next(l);
    l.transport->recycle(l, static_cast<uint32_t>(slot));
    return slot;
}

void reset_slot(Slot &s, unsigned remote) noexcept {
    for (unsigned side = 0; side < 2; ++side) {
        auto &c = s.side[side].control;
        const uint64_t arm = side == remote ? kAlwaysArmed : 0;
        c.rx_arm.store(arm, std::memory_order_relaxed);
        c.tx_arm.store(arm, std::memory_order_relaxed);
        c.tx_want.store(0, std::memory_order_relaxed);
        c.oob.store(0, std::memory_order_relaxed);
        c.ended_at.store(0, std::memory_order_relaxed);
        c.back.header.store(0, std::memory_order_relaxed);
        s.side[side].credit.consumed.store(0, std::memory_order_relaxed);
        s.side[side].credit.shown.store(0, std::memory_order_relaxed);
        s.side[side].credit.pool.store(0, std::memory_order_relaxed);
        s.side[side].credit.back.store(0, std::memory_order_relaxed);
        s.side[side].credit.path.offer.store(0, std::memory_order_relaxed);
        s.side[side].credit.path.taken.store(0, std::memory_order_relaxed);
        // No record
        reinterpret_cast<std::atomic<uint64_t> *>(s.ring[side])->store(0, std::memory_order_relaxed);
        c.flags.store(0, std::memory_order_release);
    }
    s.identity.state.store(static_cast<uint32_t>(SlotState::free), std::memory_order_release);
}

bool queue_full(const LinkMap &l, uint32_t backlog) noexcept {
    const uint32_t depth = backlog < kSynEntries - 1 ? backlog : kSynEntries - 1;
    // The entry `depth` places back is still there: so many wait already.
    return l.far.syn(l.syn_tail).load(std::memory_order_acquire) != 0 ||
           (depth > 0 && l.far.syn(l.syn_tail - depth).load(std::memory_order_acquire) != 0);
}

Offer offer_at(LinkMap &l, uint32_t slot, uint32_t backlog) noexcept {
    if (queue_full(l, backlog))
        return Offer::full;
    auto &state = l.far.slot(slot).identity.state;
    state.store(static_cast<uint32_t>(SlotState::syn), std::memory_order_release);
    l.far.syn(l.syn_tail).store(slot + 1, std::memory_order_seq_cst);
    ++l.syn_tail;
    // A listener that closes sets the flag, then refuses what it finds: with the fence one of the two sees
    // the other.
    if (l.far.header().side[1].flags.load(std::memory_order_seq_cst) & (kLinkListenerClosed | kLinkServerDead)) {
        uint32_t syn = static_cast<uint32_t>(SlotState::syn);
        if (state.compare_exchange_strong(syn, static_cast<uint32_t>(SlotState::free)) ||
            syn == static_cast<uint32_t>(SlotState::refused))
            return Offer::gone;
    }
    return Offer::made;
}

bool take_request_back(const LinkMap &l, uint32_t slot) noexcept {
    auto syn = static_cast<uint32_t>(SlotState::syn);
    return l.far.slot(slot).identity.state.compare_exchange_strong(syn, static_cast<uint32_t>(SlotState::free),
                                                                   std::memory_order_acq_rel);
}

// Without memory for the list the link has one slot less, here and below.
void give_slot_back(LinkMap &l, uint32_t slot) noexcept {
    SD_ASSERT(slot < l.slot_high);
    (void)l.idle_slots.push(slot);
}

void close_slot(LinkMap &l, uint32_t slot) noexcept {
    auto &z = l.zombie_slots;
    SD_ASSERT(l.side == 0 && slot < kLinkSlots && l.zombie_first <= z.size());
    if (l.zombie_first == z.size()) {
        z.truncate(0);
        l.zombie_first = 0;
    } else if (l.zombie_first > 64 && l.zombie_first > z.size() / 2) {
        for (size_t i = l.zombie_first; i < z.size(); ++i)
            z[i - l.zombie_first] = z[i];
        z.truncate(z.size() - l.zombie_first);
        l.zombie_first = 0;
    }
    (void)z.push(slot);
}

} // namespace sd
