// TCP_CORK and MSG_MORE; see cork.hpp.
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/descriptors/bound.hpp"
#include "libsd/vfs/streams/stream_send.hpp"
#include <netinet/tcp.h>

namespace sd {

namespace {

constexpr int64_t kHoldNs =
    /// The kernel's shortest retransmission time, after which it asks for the window with this data
    200'000'000;

/// The mark of ring::HoldPlace::answered: 0 when something that came has not been read.
uint32_t answered(const File &f) noexcept {
    const RxState &s = f.ofd->rx.s;
    return ring::inside(s) || ring::peek_header(s, f.rx_place) != 0 ? 0 : ring::answered_mark(s.head);
}

} // namespace

bool show_held_back(File &f) noexcept {
    Ofd &o = *f.ofd;
    if (!(o.tx_block.load(std::memory_order_relaxed) & kTxCork))
        return false;
    const bool shown = ring::show(o.tx.s, f.tx_place, f.mine->control.back, f.peer->credit);
    if (!o.opt.cork.load(std::memory_order_relaxed))
        o.tx_block.fetch_and(~uint32_t{kTxCork}, std::memory_order_release);
    return shown;
}

bool publish_held(File &f, uint32_t n, Hold hold) noexcept {
    Ofd &o = *f.ofd;
    TxState &s = o.tx.s;
    HeldBack &b = f.mine->control.back;
    if (hold == Hold::none) {
        ring::commit(s, f.tx_place, n);
        show_held_back(f);
        return true;
    }
    const bool begins = !ring::holding(b, f.peer->credit);
    uint32_t held = n;
    if (begins) {
        // First: what is written from here on knows of it
        o.tx_block.fetch_or(kTxCork, std::memory_order_release);
        ring::hold(s, f.tx_place, b, f.peer->credit, n, sys::now_ns(), hold == Hold::more ? answered(f) : 0);
    } else {
        ring::commit(s, f.tx_place, n);
        held = ring::hold_more(b, n, hold == Hold::cork);
    }
    // A ring that cannot grow just now has no room to wait in: who polls for room there would wait for what
    // is held back.
    const bool tight = !ring::may_grow(s) && ring::room(s) < kRingSize[s.cls] / 2;
    if (held >= ring::kSegment || tight)
        return show_held_back(f);
    // A peer in another memory shows it by itself one day, and has to have it by then.
    return begins || (f.peer->control.rx_arm.load(std::memory_order_relaxed) & kAlwaysArmed) != 0;
}

void cork_changed(File &f, int name, int value) noexcept {
    const Bound bound(f);
    Ofd &o = *bound.ofd;
    bool shown = false;
    {
        SendClaim c(bound, f, Claim::patient);
        if (!c)
            return;
        HeldBack &b = f.mine->control.back;
        if (name == TCP_CORK && value != 0) {
            o.tx_block.fetch_or(kTxCork, std::memory_order_release);
            if (ring::holding(b, f.peer->credit))
                ring::hold_more(b, 0, true);
        } else if (name == TCP_CORK || value != 0) {
            shown = show_held_back(f);
        }
    }
    if (!shown)
        return;
    if (refuses_data(f.peer->control.flags.load(std::memory_order_acquire)))
        answered_by_reset(f);
    else
        notify(*f.link, f.slot, f.peer->control.rx_arm);
}

int64_t held_until(const File &f) noexcept {
    const Ofd &o = *f.ofd;
    const HeldBack &b = f.peer->control.back;
    if (!peer_holds_back(f)) [[likely]]
        return INT64_MAX;
    const uint32_t flags =
        f.peer->control.flags.load(std::memory_order_acquire) | o.flags_seen.load(std::memory_order_acquire);
    // A kernel that gets data, or the end of it, looks at its own queue: also before a reset.
    const uint32_t mark = ring::hold_place(b).answered;
    if ((mark & 1) &&
        (mark != ring::answered_mark(o.tx.s.tail) || (o.tx_block.load(std::memory_order_relaxed) & kTxShut)))
        return 0;
    if ((flags & kFlagReset) || (o.tx_block.load(std::memory_order_relaxed) & kTxReset))
        return INT64_MAX;
    if (flags & (kFlagWriteShut | kFlagClosed | kFlagDead))
        return 0;
    const int64_t now = sys::now_ns(), since = static_cast<int64_t>(b.since.load(std::memory_order_relaxed));
    if (since < 0 || since > now) // no honest peer is ahead of the clock
        return now + kHoldNs;
    return now - since >= kHoldNs ? 0 : since + kHoldNs;
}

void take_overdue(File &f) noexcept {
    if (held_until(f) != 0)
        return;
    const Bound b(f);
    if (ReceiveClaim c(b, f); c)
        show_to_ourselves(f);
}

} // namespace sd
