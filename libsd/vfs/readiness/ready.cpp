// Readiness of an accelerated connection, arming for a wake-up, and blocking until something changes.
#include "libsd/vfs/readiness/ready.hpp"
#include "libsd/control/client.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/readiness/poll_by_select.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/streams/rings.hpp"
#include "libsd/vfs/streams/stream.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/vfs.hpp"
#include <pthread.h>

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
        h = ring::word(f.rx_place.at(cls), 0).load(std::memory_order_acquire);
    }
    return h != 0;
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
    const bool grows = f.ofd->tx.s.cls < freely_up_to(*f.ofd);
    if (grows && ring::may_grow(f.ofd->tx.s)) // without a look at the peer's line
        return true;
    for (unsigned n = 0; n < kLooksAgain; ++n) {
        TxState s = f.ofd->tx.s; // a hint: the sender itself checks with the token
        uint64_t c = f.peer->credit.consumed.load(std::memory_order_acquire);
        if (c > s.tail && ring::tail_now(f.ofd->tx.s) != s.tail) [[unlikely]]
            continue; // more was sent, and has been read, since the first line
        if (c > s.credit && c <= s.tail)
            s.credit = c;
        return (grows && ring::may_grow(s)) || ring::room(s) >= kRingSize[s.cls] / 4;
    }
    return true;
}

uint32_t stream_events(File &f) noexcept {
    Ofd &o = *f.ofd;
    uint32_t flags = absorb_flags(f), e = 0;
    uint32_t block = o.tx_block.load(std::memory_order_acquire);
    bool reset = block & kTxReset;
    if (peer_holds_back(f)) [[unlikely]]
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

void arm_stream(File &f, unsigned id, bool rx, bool tx) noexcept {
    uint64_t bit = uint64_t{1} << id;
    auto &c = f.mine->control;
    if (tx) {
        // Worth a wake-up: when a quarter of the ring is free (as tx_room sees it).
        const TxState &s = f.ofd->tx.s;
        const uint64_t full_at = s.tail + 8 + kRingSize[s.cls] / 4;
        uint64_t want = full_at > kRingSize[s.cls] ? full_at - kRingSize[s.cls] : 0;
        if (s.base < want && !ring::may_grow(s))
            want = s.base; // from there on the ring may grow
        c.tx_want.store(want, std::memory_order_relaxed);
        c.tx_arm.fetch_or(bit, std::memory_order_seq_cst);
    }
    if (rx)
        c.rx_arm.fetch_or(bit, std::memory_order_seq_cst);
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

namespace {

void wait_cancelled(void *) noexcept {
    self.asleep = false;
    outer_mask = nullptr;
    Held::give_back_all();
}

/// A thread cancelled in here gives back what it held; its doorbell goes with it.
long cancellable_wait(pollfd *p, size_t n, const timespec *t, const uint64_t *mask) noexcept {
    return with_cleanup(wait_cancelled, nullptr, [=] {
        long r = sys::ppoll(p, n, t, mask);
        // RLIMIT_NOFILE bounds the list as well: then without the monitor's channel, which is last
        if (r == -EINVAL && n > 1)
            r = sys::ppoll(p, n - 1, t, mask);
        return r == -EINVAL ? poll_by_select(p, n, t, mask) : r;
    });
}

} // namespace

long sleep_on(Bell &bell, pollfd *extra, unsigned extra_count, int64_t deadline, bool blind,
              uint64_t handled) noexcept {
    pollfd p[5];
    unsigned n = 0;
    for (; n < extra_count && n < 2; ++n)
        p[n] = extra[n];
    const unsigned bell_at = n;
    p[n++] = {bell.efd, POLLIN, 0};
    const int foreign = bell.foreign.set.load(std::memory_order_acquire);
    if (foreign >= 0) [[unlikely]]
        p[n++] = {foreign, POLLIN, 0};
    const unsigned channel_at = n;
    int channel = control::channel();
    if (channel >= 0)
        p[n++] = {channel, 0, 0};
    int64_t now = sys::now_ns();
    int64_t until = deadline;
    if (blind && (until == INT64_MAX || until > now + kBlindSleepNs))
        until = now + kBlindSleepNs;
    timespec t{}, *tp = nullptr;
    if (until != INT64_MAX) {
        int64_t left = until > now ? until - now : 0;
        t = {left / 1'000'000'000, left % 1'000'000'000};
        tp = &t;
    }
    // No window between looking at the handler count and sleeping: signals wait until the kernel swaps the
    // mask.
    WholeMask mask{};
    sys::block_signals(&mask.kernels);
    mask.pretended = pretended_mask;
    const uint64_t asleep = mask.kernels | mask.pretended; // nothing is copied meanwhile
    outer_mask = &mask;
    // A cancellation point, as the C library makes one: asynchronous for as long as the thread sleeps, and
    // only there can the signal get in.
    int cancel_type;
    // NOLINTNEXTLINE(concurrency-thread-canceltype-asynchronous): around one system call only, see above
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &cancel_type);
    self.asleep = cancel_type == PTHREAD_CANCEL_DEFERRED;
    long r = -ECANCELED;
    if (self.handled == handled)
        r = cancellable_wait(p, n, tp, &asleep);
    self.asleep = false;
    pthread_setcanceltype(cancel_type, nullptr);
    outer_mask = nullptr;
    pretended_mask = mask.pretended;
    sys::restore_signals(&mask.kernels);
    stats().sleeps.fetch_add(1, std::memory_order_relaxed);
    bool rung = r > 0 && (p[bell_at].revents || (foreign >= 0 && p[bell_at + 1].revents));
    if (rung)
        drain(bell);
    Spinner::slept(bell, sys::now_ns() - now, rung);
    look_after_orphans();
    if (r > 0 && channel >= 0 && p[channel_at].revents)
        control::maintain();
    for (unsigned i = 0; i < extra_count && i < 2; ++i)
        extra[i].revents = r > 0 ? p[i].revents : 0;
    return r == -EINTR || r == -ECANCELED ? r : 0;
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
        const int64_t shrink_at = shrink_idle_rings();
        const int64_t until = deadline < shrink_at ? deadline : shrink_at;
        unsigned id = bell_id(*bell, l);
        bool blind = id == 0 || !control::connected();
        auto &asleep = l.view.header().side[l.side].sleep_mask;
        if (id) {
            // In this order: a peer that takes the arm has to ring, also where a sharer of the socket takes
            // the data before we look.
            asleep.fetch_or(uint64_t{1} << id, std::memory_order_seq_cst);
            arm_stream(f, id, events & EPOLLIN, events & EPOLLOUT);
            heavy_barrier();
        }
        uint64_t before = self.handled;
        bool now = changed();
        const int64_t held = held_until(f); // which we are rung for when it begins
        const long slept =
            now || interrupted() ? 0 : sleep_on(*bell, nullptr, 0, held < until ? held : until, blind, before);
        if (id)
            asleep.fetch_and(~(uint64_t{1} << id), std::memory_order_relaxed);
        // The signal came first; what its handler did to this connection, the call does not see any more.
        if (slept == -EINTR && interrupted())
            return -EINTR;
        if (now || changed())
            return undone() ? -EPIPE : 0;
        if (interrupted())
            return -EINTR;
        if (deadline != INT64_MAX && sys::now_ns() >= deadline)
            return -ETIMEDOUT;
        if (blind)
            control::maintain();
    }
}

} // namespace sd
