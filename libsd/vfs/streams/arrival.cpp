// Arrival: see arrival.hpp. In shared memory everything is there at once; what counts as arrived is what a
// kernel's receive buffer would have room for.
#include "libsd/vfs/streams/arrival.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/queue/cork.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/half_close.hpp"

namespace sd {

namespace {

/// How much of what the peer has not read has arrived, as the kernel counts: a new connection's receive
/// buffer takes about this much. The other half of the ring stands for the sender's own buffer.
uint64_t receive_buffer(const Ofd &o) noexcept {
    constexpr uint64_t kFirstWindow = 64 << 10;
    const uint64_t half = kRingSize[freely_up_to(o)] / 2;
    return half < kFirstWindow ? half : kFirstWindow;
}

/// A close that makes a reset of the connection does not wait, nor does one of many holders, or one in a
/// sandbox, whose filter may not know sleep.
bool has_to_wait(File &f) noexcept {
    const Ofd &o = *f.ofd;
    if (sandboxed() || has_paths(o) || moved(f) || held_elsewhere(f.seg, f.ofd_index))
        return false;
    absorb_flags(f);
    return !(o.tx_block.load(std::memory_order_acquire) & kTxReset) && !rx_pending(f) && bytes_not_arrived(f) > 0;
}

/// With a reference. A waiter for room would be woken for each record that is read; this one looks from time
/// to time, since it is rare that it has to wait at all.
void wait_for_arrival(File &f) noexcept {
    constexpr int64_t kFirstNap = 100'000, kLongNap = 5'000'000;
    const auto seconds = static_cast<uint32_t>(f.ofd->opt.linger_s.load(std::memory_order_relaxed));
    const int64_t end = sys::now_ns() + int64_t{seconds} * 1'000'000'000;
    const uint64_t handled = self.handled;
    for (int64_t nap = kFirstNap; self.handled == handled; nap = nap < kLongNap ? nap * 2 : kLongNap) {
        const int64_t left = end - sys::now_ns();
        if (left <= 0)
            return;
        sys::nap(nap < left ? nap : left);
        if ((absorb_flags(f) & (kFlagReset | kFlagClosed | kFlagDead)) || bytes_not_arrived(f) <= 0)
            return;
    }
}

} // namespace

// Headers and padding are in between, so this is in proportion; exact when all has arrived.
long bytes_not_arrived(File &f) noexcept {
    SendClaim c(ConnectionSnapshot(f), f);
    if (!c)
        return c.error();
    const TxState &s = f.ofd->tx.s;
    const uint64_t consumed = f.peer->credit.consumed.load(std::memory_order_acquire);
    const Corked &back = f.mine->control.back;
    const long corked = ring::is_corked(back, f.peer->credit) ? ring::cork_place(back).payload : 0;
    if (ring::all_uncorked_taken(s, back, f.peer->credit))
        return corked;
    uint64_t behind = s.tail - consumed;
    if (behind > 2 * uint64_t{kRingSize[kRingClasses - 1]})
        behind = 2 * uint64_t{kRingSize[kRingClasses - 1]}; // no honest peer is further behind
    const auto share = static_cast<uint64_t>(static_cast<double>(behind) * static_cast<double>(s.bytes) /
                                             static_cast<double>(s.tail));
    const uint64_t arrived = receive_buffer(*f.ofd) + static_cast<uint64_t>(corked);
    return corked + static_cast<long>(share > arrived ? share - arrived : 0);
}

void linger_and_release(File &f) noexcept {
    // Noted like what a blocked call holds: a child that another thread forks meanwhile has no part in it,
    // and a handler may jump away.
    const unsigned mark = CleanupStack::mark();
    if (pin(f)) {
        if (f.refs.load(std::memory_order_relaxed) == 2 && CleanupStack::push(unpin, &f, 0, &mark)) {
            release_file(&f);
            if (has_to_wait(f)) {
                epoll_file_closed(f); // the sets hear of nothing any more
                end_sending(f, 0);
                wait_for_arrival(f);
            }
            CleanupStack::give_back_to(mark);
            return;
        }
        unpin(&f, 0);
    }
    release_file(&f);
}

} // namespace sd
