// TCP_CORK and MSG_MORE; see cork.hpp.
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/stream_send.hpp"
#include <linux/tcp.h>

namespace sd {

namespace {

constexpr int64_t kCorkNs =
    /// The kernel's shortest retransmission time, after which it asks for the window with this data
    200'000'000;

/// The mark of ring::CorkPlace::answered: 0 when something that came has not been read.
uint32_t answered(const File &f) noexcept {
    const RxState &s = f.ofd->rx.s;
    return ring::inside(s) || ring::peek_header(s, f.rx_place) != 0 ? 0 : ring::answered_mark(s.head);
}

} // namespace

bool uncork(File &f) noexcept {
    Ofd &o = *f.ofd;
    if (!(o.tx_block.load(std::memory_order_relaxed) & kTxCork))
        return false;
    const bool shown = ring::uncork(o.tx.s, f.tx_place, f.mine->control.back, f.peer->credit);
    if (!o.opt.cork.load(std::memory_order_relaxed))
        o.tx_block.fetch_and(~uint32_t{kTxCork}, std::memory_order_release);
    return shown;
}

bool publish_corked(File &f, uint32_t n, Cork cork) noexcept {
    Ofd &o = *f.ofd;
    TxState &s = o.tx.s;
    Corked &b = f.mine->control.back;
    if (is_captured(o)) [[unlikely]]
        capture_sending(f, n);
    if (cork == Cork::none) {
        ring::commit(s, f.tx_place, n);
        uncork(f);
        return true;
    }
    const bool begins = !ring::is_corked(b, f.peer->credit);
    uint32_t corked = n;
    if (begins) {
        // First: what is written from here on knows of it
        o.tx_block.fetch_or(kTxCork, std::memory_order_release);
        ring::cork(s, f.tx_place, b, f.peer->credit, n, sys::now_ns(), cork == Cork::more ? answered(f) : 0);
    } else {
        ring::commit(s, f.tx_place, n);
        corked = ring::cork_more(b, n, cork == Cork::cork);
    }
    // A ring that cannot grow just now has no room to wait in: who polls for room there would wait for what
    // is held back.
    const bool tight = !ring::may_grow(s) && ring::room(s) < kRingSize[s.cls] / 2;
    if (corked >= ring::kSegment || tight)
        return uncork(f);
    // A peer in another memory shows it by itself one day, and has to have it by then.
    return begins || (f.peer->control.rx_arm.load(std::memory_order_relaxed) & kAlwaysArmed) != 0;
}

void cork_changed(File &f, int name, int value) noexcept {
    const ConnectionSnapshot bound(f);
    Ofd &o = *bound.ofd;
    bool shown = false;
    {
        SendClaim c(bound, f, Claim::patient);
        if (!c)
            return;
        Corked &b = f.mine->control.back;
        if (name == TCP_CORK && value != 0) {
            o.tx_block.fetch_or(kTxCork, std::memory_order_release);
            if (ring::is_corked(b, f.peer->credit))
                ring::cork_more(b, 0, true);
        } else if (name == TCP_CORK || value != 0) {
            shown = uncork(f);
        }
    }
    if (!shown)
        return;
    if (refuses_data(f.peer->control.flags.load(std::memory_order_acquire)))
        answered_by_reset(f);
    else
        notify(*f.link, f.slot, f.peer->control.rx_arm);
}

int64_t corked_until(const File &f) noexcept {
    const Ofd &o = *f.ofd;
    const Corked &b = f.peer->control.back;
    if (!peer_has_corked(f)) [[likely]]
        return INT64_MAX;
    const uint32_t flags =
        f.peer->control.flags.load(std::memory_order_acquire) | o.flags_seen.load(std::memory_order_acquire);
    // A kernel that gets data, or the end of it, looks at its own queue: also before a reset.
    const uint32_t mark = ring::cork_place(b).answered;
    if ((mark & 1) &&
        (mark != ring::answered_mark(o.tx.s.tail) || (o.tx_block.load(std::memory_order_relaxed) & kTxShut)))
        return 0;
    if ((flags & kFlagReset) || (o.tx_block.load(std::memory_order_relaxed) & kTxReset))
        return INT64_MAX;
    if (flags & (kFlagWriteShut | kFlagClosed | kFlagDead))
        return 0;
    const int64_t now = sys::now_ns(), since = static_cast<int64_t>(b.since.load(std::memory_order_relaxed));
    if (since < 0 || since > now) // no honest peer is ahead of the clock
        return now + kCorkNs;
    return now - since >= kCorkNs ? 0 : since + kCorkNs;
}

void take_overdue(File &f) noexcept {
    if (corked_until(f) != 0)
        return;
    const ConnectionSnapshot b(f);
    if (ReceiveClaim c(b, f); c)
        show_to_ourselves(f);
}

} // namespace sd
