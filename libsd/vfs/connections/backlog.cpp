// The queue of connections that wait to be accepted, from the client's side.
#include "libsd/vfs/connections/backlog.hpp"
#include "libsd/transport/slots.hpp"

namespace sd {

namespace {

// A client that is quicker than the server's accept() fills the queue in no time. The kernel drops the
// request then, and sends it again a second later. A short wait gets nearly every such client an accelerated
// connection.
constexpr int64_t kRoomBlockingNs = 100'000'000;
constexpr int64_t kRoomNonblockingNs = 50'000; ///< about what a connection of the kernel's costs
/// Of a time that the program has set: the kernel's wait begins anew afterwards, with all of it.
constexpr int64_t kRoomShare = 16;
constexpr unsigned kRoomYields = 64;

} // namespace

bool wait_for_backlog(LinkMap &l, uint32_t backlog, Patience &patience) noexcept {
    if (patience.deadline == 0) {
        int64_t most = patience.nonblocking ? kRoomNonblockingNs : kRoomBlockingNs;
        if (patience.timeout != 0 && patience.timeout / kRoomShare < most)
            most = patience.timeout / kRoomShare; // none, where connect() is not to wait at all
        patience.deadline = sys::now_ns() + most;
    }
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
            sys::nap(100'000);
        }
    }
}

bool push_syn(LinkMap &l, uint32_t slot, uint32_t backlog, Cause *why) noexcept {
    QuietGuard g(l.slot_lock);
    const Offer made = l.transport->offer(l, slot, backlog);
    *why = made == Offer::full ? Cause::backlog_full : Cause::listener_gone;
    return made == Offer::made;
}

} // namespace sd
