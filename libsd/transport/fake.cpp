// The fake transport: each side has a memory of its own, as between two hosts, and whoever publishes carries
// what it has written over. So all that has to be carried, and nothing else, reaches the other side; what a
// real device does late, or never, a fault does here (FakeState). For tests: it needs no device and no second
// host, and costs two copies and the address space of both memories.
//
// Birth, waiters and doorbells work as in shared memory, on the other side's memory (LinkMap::far).
#include "libsd/transport/fake_copier.hpp"
#include "libsd/transport/slots.hpp"
#include <sys/mman.h>

namespace sd {

namespace fake {
namespace {

Memory memory_of(const LinkMap &l) noexcept { return {l.far.base - fake_half(1u - l.side)}; }

bool open(LinkMap &l) noexcept {
    auto *base = static_cast<uint8_t *>(
        sys::mmap(nullptr, kFakeBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, l.memfd, 0));
    if (!base)
        return false;
    sys::madvise(base, kFakeBytes, MADV_DONTDUMP);
    l.far.base = base + fake_half(1u - l.side);
    return true;
}

void close(LinkMap &l) noexcept {
    if (l.far.base != l.view.base)
        sys::munmap(memory_of(l).base, kFakeBytes);
    l.far = l.view;
}

/// Signals are blocked: a handler that sends would wait for its own thread.
void carry(LinkMap &l, uint32_t slot) noexcept {
    const Memory m = memory_of(l);
    FakeDirection &d = m.state().direction[slot][l.side];
    uint64_t mask;
    sys::block_signals(&mask);
    fake::lock(d, static_cast<uint32_t>(sys::getpid()), [] { sys::sched_yield(); });
    fake::carry_header(m, l.side);
    fake::carry_slot(m, slot, l.side, d);
    fake::unlock(d);
    sys::restore_signals(&mask);
}

/// A number that nobody chose.
uint32_t draw(FakeState &s) noexcept {
    uint32_t n = s.draws.fetch_add(1, std::memory_order_relaxed) * 2654435761u;
    n ^= n >> 15;
    return n * 2246822519u >> 8;
}

/// What a connection that began here has when its device fails: nothing to go back to. Whoever waits for it,
/// on either side and in whatever thread, is woken by the monitor, as for what stayed behind.
void cut(LinkMap &l, uint32_t slot) noexcept {
    const Memory m = memory_of(l);
    for (unsigned side = 0; side < 2; ++side)
        for (unsigned half = 0; half < 2; ++half)
            m.half(half).slot(slot).side[side].control.flags.fetch_or(kFlagReset | kFlagClosed,
                                                                      std::memory_order_seq_cst);
    for (auto &side : m.state().behind)
        side[slot / 64].fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
}

void publish(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    FakeState &s = memory_of(l).state();
    if (const uint32_t late = s.late.load(std::memory_order_relaxed); late && draw(s) % 1000 < late) {
        s.behind[l.side][slot / 64].fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
        return;
    }
    if (const uint32_t cuts = s.cuts.load(std::memory_order_relaxed); cuts && draw(s) % 1'000'000 < cuts)
        cut(l, slot);
    carry(l, slot);
    const unsigned peer = 1u - l.side;
    auto &theirs = l.far.slot(slot).side[peer].control;
    if (&arm == &l.view.slot(slot).side[peer].control.rx_arm)
        wake_armed(l, slot, theirs.rx_arm);
    // What the caller has compared before is here the other side's alone to say.
    else if (l.view.slot(slot).side[l.side].credit.consumed.load(std::memory_order_relaxed) >=
                 theirs.tx_want.load(std::memory_order_relaxed) ||
             l.view.slot(slot).side[l.side].control.flags.load(std::memory_order_relaxed) != 0)
        wake_armed(l, slot, theirs.tx_arm);
}

Offer offer(LinkMap &l, uint32_t slot, uint32_t backlog) noexcept {
    const Slot &mine = l.view.slot(slot);
    Slot &theirs = l.far.slot(slot);
    theirs.identity.client = mine.identity.client;
    theirs.identity.server = mine.identity.server;
    theirs.identity.client_tos = mine.identity.client_tos;
    theirs.identity.client_ttl = mine.identity.client_ttl;
    theirs.identity.connected_ns = mine.identity.connected_ns;
    theirs.identity.arrival = mine.identity.arrival;
    l.view.slot(slot).identity.state.store(static_cast<uint32_t>(SlotState::syn), std::memory_order_release);
    return offer_at(l, slot, backlog);
}

int64_t take(LinkMap &l, std::atomic<uint32_t> &head, uint32_t at, uint32_t entry) noexcept {
    const int64_t slot = shm_transport.take(l, head, at, entry);
    if (slot >= 0)
        l.far.slot(static_cast<uint32_t>(slot))
            .identity.state.store(static_cast<uint32_t>(SlotState::accepted), std::memory_order_release);
    return slot;
}

void recycle(LinkMap &l, uint32_t slot) noexcept {
    FakeState &s = memory_of(l).state();
    uint64_t mask;
    sys::block_signals(&mask);
    for (unsigned side = 0; side < 2; ++side) {
        FakeDirection &d = s.direction[slot][side];
        fake::lock(d, static_cast<uint32_t>(sys::getpid()), [] { sys::sched_yield(); });
        s.behind[side][slot / 64].fetch_and(~(uint64_t{1} << slot % 64), std::memory_order_seq_cst);
        d.cls = 0;
        d.position = d.base = d.corked = 0;
    }
    reset_slot(l.far.slot(slot), l.side);
    reset_slot(l.view.slot(slot), 1u - l.side);
    for (auto &d : s.direction[slot])
        fake::unlock(d);
    sys::restore_signals(&mask);
}

void release(LinkMap &l, uint32_t slot) noexcept {
    shm_transport.release(l, slot);
    carry(l, slot);
}

void announce(LinkMap &l, unsigned id) noexcept { shm_transport.announce(l, id); }
void withdraw(LinkMap &l, unsigned id) noexcept { shm_transport.withdraw(l, id); }

int sleep_on(LinkMap &) noexcept { return -1; }

} // namespace
} // namespace fake

const Transport fake_transport = {fake::open,    fake::close,   fake::offer,    fake::take,
                                  fake::publish, provide_ring,  fake::announce, fake::withdraw,
                                  fake::recycle, fake::release, fake::sleep_on};

} // namespace sd
