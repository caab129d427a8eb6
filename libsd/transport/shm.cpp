// Shared memory as a transport: what one side has written, the other side has.
#include "libsd/cpu/instructions.hpp"
#include "libsd/transport/slots.hpp"

namespace sd {

namespace shm {
namespace {

bool open(LinkMap &) noexcept { return true; }
void close(LinkMap &) noexcept {}

Offer offer(LinkMap &l, uint32_t slot, uint32_t backlog) noexcept { return offer_at(l, slot, backlog); }

/// Asks for the lines of the slot that `entry` of the queue leads to. They are at the client's core, and the
/// connection would wait for each in turn.
void ask_for_request(const LinkMap &l, uint32_t entry) noexcept {
    if (entry == 0 || entry > kLinkSlots)
        return;
    const Slot &s = l.view.slot(entry - 1);
    cpu::ask_to_write(s.identity);
    cpu::ask_to_write(s.side[1].control);
    cpu::ask_to_write(s.side[1].credit);
    cpu::ask_to_write(s.ring[1]);
    __builtin_prefetch(s.ring[0]);
    __builtin_prefetch(&s.side[0].control);
}

int64_t take(LinkMap &l, std::atomic<uint32_t> &head, uint32_t at, uint32_t entry) noexcept {
    ask_for_request(l, l.view.syn(at + 1).load(std::memory_order_relaxed)); // the next one's
    // Acceptors in other processes compete here; who moves the head owns the entry.
    if (!head.compare_exchange_strong(at, at + 1, std::memory_order_acq_rel))
        return kOtherWasFaster;
    l.view.syn(at).store(0, std::memory_order_release);
    const uint32_t slot = entry - 1;
    uint32_t syn = static_cast<uint32_t>(SlotState::syn);
    if (slot >= kLinkSlots || !l.view.slot(slot).identity.state.compare_exchange_strong(
                                  syn, static_cast<uint32_t>(SlotState::accepted)))
        return kNoRequest; // taken back by the client, or rubbish
    return slot;
}

void announce(LinkMap &l, unsigned id) noexcept {
    l.view.header().side[l.side].sleep_mask.fetch_or(uint64_t{1} << id, std::memory_order_seq_cst);
}
void withdraw(LinkMap &l, unsigned id) noexcept {
    l.view.header().side[l.side].sleep_mask.fetch_and(~(uint64_t{1} << id), std::memory_order_relaxed);
}

void recycle(LinkMap &l, uint32_t slot) noexcept { reset_slot(l.view.slot(slot), kNobodyRemote); }

void release(LinkMap &l, uint32_t slot) noexcept {
    l.view.slot(slot).side[l.side].control.flags.fetch_or(kFlagReleased, std::memory_order_seq_cst);
}

int sleep_on(LinkMap &) noexcept { return -1; }

} // namespace
} // namespace shm

const Transport shm_transport = {shm::open,    shm::close,   shm::offer,    shm::take,
                                 wake_armed,   provide_ring, shm::announce, shm::withdraw,
                                 shm::recycle, shm::release, shm::sleep_on};

} // namespace sd
