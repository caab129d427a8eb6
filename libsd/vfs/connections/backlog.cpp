// The queue of connections that wait to be accepted, from the client's side.
#include "libsd/vfs/connections/backlog.hpp"

namespace sd {

namespace {

/// Do as many connections wait to be accepted as the listener wants? With slot_lock.
bool queue_full(const LinkMap &l, uint32_t backlog) noexcept {
    const uint32_t depth = backlog < kSynEntries - 1 ? backlog : kSynEntries - 1;
    // The entry `depth` places back is still there: so many wait already.
    return l.view.syn(l.syn_tail).load(std::memory_order_acquire) != 0 ||
           (depth > 0 && l.view.syn(l.syn_tail - depth).load(std::memory_order_acquire) != 0);
}

// A client that is quicker than the server's accept() fills the queue in no time. The kernel drops the
// request then, and sends it again a second later. A short wait gets nearly every such client an accelerated
// connection.
constexpr int64_t kRoomBlockingNs = 100'000'000;
constexpr int64_t kRoomNonblockingNs = 50'000; ///< about what a connection of the kernel's costs
constexpr unsigned kRoomYields = 64;

} // namespace

bool wait_for_backlog(LinkMap &l, uint32_t backlog, Patience &patience) noexcept {
    if (patience.deadline == 0)
        patience.deadline = sys::now_ns() + (patience.nonblocking ? kRoomNonblockingNs : kRoomBlockingNs);
    for (unsigned n = 0;; ++n) {
        if (self.handled != patience.handled || sys::now_ns() >= patience.deadline)
            return false;
        if (l.view.header().side[1].flags.load(std::memory_order_acquire) &
            (kLinkListenerClosed | kLinkServerDead))
            return true;
        {
            QuietGuard g(l.slot_lock);
            if (!queue_full(l, backlog))
                return true;
        }
        if (n < kRoomYields) {
            sys::sched_yield();
        } else {
            timespec nap{0, 100'000};
            sys::call(SYS_nanosleep, sys::arg(&nap), 0);
        }
    }
}

bool push_syn(LinkMap &l, uint32_t slot, uint32_t backlog, Cause *why) noexcept {
    QuietGuard g(l.slot_lock);
    LinkView v = l.view;
    if (queue_full(l, backlog)) {
        *why = Cause::backlog_full;
        return false;
    }
    auto &state = v.slot(slot).identity.state;
    state.store(static_cast<uint32_t>(SlotState::syn), std::memory_order_release);
    v.syn(l.syn_tail).store(slot + 1, std::memory_order_seq_cst);
    ++l.syn_tail;
    // A listener that closes sets the flag, then refuses what it finds: with the fence one of the two sees
    // the other.
    if (v.header().side[1].flags.load(std::memory_order_seq_cst) & (kLinkListenerClosed | kLinkServerDead)) {
        uint32_t syn = static_cast<uint32_t>(SlotState::syn);
        if (state.compare_exchange_strong(syn, static_cast<uint32_t>(SlotState::free)) ||
            syn == static_cast<uint32_t>(SlotState::refused)) {
            *why = Cause::listener_gone;
            return false;
        }
    }
    return true;
}

} // namespace sd
