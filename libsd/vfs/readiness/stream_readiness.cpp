// Readiness of an accelerated connection, arming for a wake-up, and blocking until something changes.
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/control/client.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/readiness/sleep.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/streams/stream.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

constexpr unsigned kLooksAgain = 64; ///< at what other threads are just changing

bool data_seen(const File &f) noexcept {
    if (ring::inside(f.ofd->rx.s))
        return true;
    uint64_t h = ring::peek_header(f.ofd->rx.s, f.rx_place);
    // A change of ring is not data: look at the first word of the ring it leads to.
    for (unsigned i = 0; h != 0 && ring::header_kind(h) == ring::RecordKind::change && i < kRingClasses; ++i) {
        uint32_t cls = ring::header_length(h);
        if (cls >= kRingClasses)
            return true; // rubbish: the reader will find out
        h = ring::word_at(f.rx_place, cls, 0).load(std::memory_order_acquire);
    }
    return h != 0;
}

/// Of one with paths: its socket is slept on as well. How many entries.
size_t watch_socket(File &f, uint32_t events, pollfd *entry, Sleep &sleep) noexcept {
    constexpr int64_t kLookAgain = 1'000'000;
    const int fd = path_socket(f);
    const short wanted = fd < 0 ? short{0} : socket_wait(fd, f, events);
    if ((wanted & POLLIN) && low_water(*f.ofd) > 1) { // the kernel would tell of less
        sleep.not_after(sys::now_ns() + kLookAgain);
        return 0;
    }
    *entry = {fd, wanted, 0};
    return wanted != 0;
}

} // namespace

bool rx_pending(const File &f) noexcept {
    const RxState &s = f.ofd->rx.s;
    for (unsigned n = 0; n < kLooksAgain; ++n) {
        const uint64_t head = ring::head_now(s);
        ring::in_order();
        if (data_seen(f))
            return true;
        // Nothing, where a reader was that has just gone on: what it leaves behind would be told to nobody.
        if (!ring::moved(s, head)) [[likely]]
            return false;
    }
    return true; // it was interrupted, or killed, in the middle
}

bool tx_room(File &f) noexcept {
    if (rdma::is_remote(*f.link) && !rdma::may_send(*f.link, f.slot)) [[unlikely]]
        return false;
    if (may_use_channels() && channel_is_full(f)) [[unlikely]]
        return false;
    const uint32_t cls = f.ofd->tx.s.cls;
    const bool grows = cls < freely_up_to(*f.ofd) && ring_to_be_had(*f.link, f.slot, cls + 1);
    if (grows && ring::may_grow(f.ofd->tx.s)) // without a look at the peer's line
        return true;
    for (unsigned n = 0; n < kLooksAgain; ++n) {
        TxState s = f.ofd->tx.s; // a hint: the sender itself checks with the token
        uint64_t c = f.peer->credit.consumed.load(std::memory_order_acquire);
        if (c > s.tail && ring::tail_now(f.ofd->tx.s) != s.tail) [[unlikely]]
            continue; // more was sent, and has been read, since the first line
        if (c > s.credit && c <= s.tail)
            s.credit = c;
        const bool is_room = (grows && ring::may_grow(s)) || ring::room(s) >= kRingSize[s.cls] / 4;
        if (is_room)
            note_room_told(f, s.credit);
        return is_room;
    }
    return true;
}

namespace {

/// What link and ring say.
uint32_t ring_events(File &f) noexcept {
    Ofd &o = *f.ofd;
    uint32_t flags = absorb_flags(f), e = 0;
    uint32_t block = o.tx_block.load(std::memory_order_acquire);
    bool reset = block & kTxReset;
    if (peer_has_corked(f)) [[unlikely]]
        take_overdue(f);
    bool rcv_shut = reset || (flags & kFlagWriteShut) || o.rx_shut.load(std::memory_order_acquire);
    bool snd_shut = reset || (block & kTxShut);
    if (rcv_shut && snd_shut)
        e |= EPOLLHUP;
    if (rcv_shut)
        e |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    else if (rx_pending(f)) {
        int32_t low = low_water(o);
        if (!is_inline(f) && at_urgent_mark(f)) [[unlikely]]
            ++low; // the urgent byte itself will not be read
        if (low <= 1 || ring::available(o.rx.s, f.rx_place, static_cast<uint64_t>(low)) >= low)
            e |= EPOLLIN | EPOLLRDNORM;
    }
    if (snd_shut || (flags & (kFlagClosed | kFlagReset)) || tx_room(f))
        e |= EPOLLOUT | EPOLLWRNORM;
    if (urgent_unread(f)) [[unlikely]]
        e |= EPOLLPRI;
    if (o.so_error.load(std::memory_order_acquire) || completions_pending(o))
        e |= EPOLLERR;
    return e;
}

/// Can nothing come by the socket, as far as is known now?
bool is_in_ring(const File &f) noexcept {
    return is_settled_in_ring(f) && !is_told_home(f) && !rdma::is_remote(*f.link);
}

} // namespace

uint32_t stream_events(File &f) noexcept {
    if (!has_paths(*f.ofd)) [[likely]]
        return ring_events(f);
    if (!is_in_ring(f))
        return path_events(f);
    const uint32_t e = ring_events(f);
    return (e & EPOLLIN) || is_in_ring(f) ? e : path_events(f); // it may have moved meanwhile
}

bool is_taken_back(const File &f) noexcept {
    const Ofd &o = *f.ofd;
    return f.stream.told.load(std::memory_order_relaxed) > ring::bytes_now(o.rx.s) &&
           (!has_paths(o) || is_in_ring(f));
}

bool arm_stream(File &f, unsigned id, bool rx, bool tx) noexcept {
    auto &c = f.mine->control;
    if (tx) {
        // Worth a wake-up: when a quarter of the ring is free (as tx_room sees it).
        const TxState &s = f.ofd->tx.s;
        const uint64_t full_at = s.tail + 8 + kRingSize[s.cls] / 4;
        uint64_t want = full_at > kRingSize[s.cls] ? full_at - kRingSize[s.cls] : 0;
        if (s.base < want && !ring::may_grow(s))
            want = s.base; // from there on the ring may grow
        if (may_use_channels() && channel_is_full(f)) [[unlikely]]
            want = 0; // whatever is read
        c.tx_want.store(want, std::memory_order_relaxed);
        (void)Sleeper::arm(c.tx_arm, id);
    }
    return (rx && Sleeper::arm(c.rx_arm, id)) || tx;
}

void notify_own(File &f) noexcept {
    auto &c = f.mine->control;
    uint64_t ids = 0;
    if (c.rx_arm.load(std::memory_order_seq_cst))
        ids |= c.rx_arm.exchange(0, std::memory_order_seq_cst);
    if (c.tx_arm.load(std::memory_order_seq_cst))
        ids |= c.tx_arm.exchange(0, std::memory_order_seq_cst);
    ring_own(*f.link, f.slot, ids);
}

long wait_stream(File &f, uint32_t events, int64_t deadline, uint64_t interrupts) noexcept {
    events |= EPOLLERR | EPOLLHUP;
    const uint32_t generation = f.generation.load(std::memory_order_acquire);
    const uint64_t handled = self.handled;
    auto undone = [&] {
        return f.generation.load(std::memory_order_acquire) != generation || f.kind != FileKind::stream;
    };
    auto changed = [&] { return (stream_events(f) & events) || undone() || moved(f); };
    auto interrupted = [&] {
        return self.interrupts != interrupts || (deadline != INT64_MAX && self.handled != handled);
    };
    Bell *bell = looking_bell();
    if (!bell)
        return -EMFILE;
    for (Spinner spin(*bell);;) {
        if (changed()) {
            spin.paid();
            return undone() ? -EPIPE : 0;
        }
        if (interrupted())
            return -EINTR;
        if (!spin.again())
            break;
    }
    LinkMap &l = *f.link;
    for (;;) {
        if (!bell->id[l.index]) {
            bool now;
            {
                // As in the sleep: what comes before a signal is seen, and what its handler does is not.
                const PutOff put_off;
                bell_id(*bell, l);
                now = changed(); // asking took longer than a look does, and a barrier is dear
            }
            if (now)
                return undone() ? -EPIPE : 0;
            if (interrupted())
                return -EINTR;
        }
        Sleep sleep(*bell, deadline);
        if (!control::connected())
            sleep.nobody_rings();
        const uint64_t before = self.handled;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (const unsigned id = sleep.announce(l); id && arm_stream(f, id, events & EPOLLIN, events & EPOLLOUT)) {
            sleep.barrier();
            if (self.handled == before)
                Sleeper::settle(l, l.view.slot(f.slot).side[l.side].control.rx_arm, id);
        }
        const bool now = changed();
        sleep.not_after(corked_until(f)); // which we are rung for when it begins
        pollfd wakers[1 + kWakers];
        size_t sockets = 0;
        if (!now && has_paths(*f.ofd)) [[unlikely]]
            sockets = watch_socket(f, events, wakers, sleep);
        const long slept = now || interrupted() ? 0 : sleep.in_poll(wakers, sockets, nullptr, before);
        sleep.withdraw(l);
        // The signal came first; what its handler did to this connection, the call does not see any more.
        if (slept == -EINTR && interrupted())
            return -EINTR;
        if (now || changed())
            return undone() ? -EPIPE : 0;
        if (interrupted())
            return -EINTR;
        if (deadline != INT64_MAX && sys::now_ns() >= deadline)
            return -ETIMEDOUT;
    }
}

} // namespace sd
