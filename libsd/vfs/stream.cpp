// Moving bytes over an accelerated connection.
#include "libsd/vfs/stream.hpp"
#include "libsd/vfs/ancillary.hpp"
#include "libsd/vfs/epoll.hpp"
#include "libsd/vfs/urgent.hpp"
#include "libsd/vfs/vfs.hpp"
#include <climits>
#include <csignal>

namespace sd {

int IoCursor::advance() noexcept {
    while (now.iov_len == 0) {
        if (next >= count)
            return 0;
        if (sd_copy(&now, iov + next, sizeof now))
            return -EFAULT;
        ++next;
    }
    return 1;
}

long iov_total(const iovec *iov, int count) noexcept {
    if (count < 0 || count > IOV_MAX)
        return -EINVAL;
    size_t sum = 0;
    for (int i = 0; i < count; ++i) {
        iovec v;
        if (sd_copy(&v, iov + i, sizeof v))
            return -EFAULT;
        if (static_cast<ssize_t>(v.iov_len) < 0)
            return -EINVAL;
        // The kernel cuts a transfer at MAX_RW_COUNT.
        sum += v.iov_len;
        if (sum > 0x7ffff000)
            sum = 0x7ffff000;
    }
    return static_cast<long>(sum);
}

int64_t deadline_after(int64_t timeout_ns) noexcept {
    return timeout_ns > 0 ? sys::now_ns() + timeout_ns : INT64_MAX;
}

void raise_sigpipe() noexcept {
    sys::tgkill(static_cast<int>(sys::getpid()), static_cast<int>(sys::gettid()), SIGPIPE);
}

bool make_room(File &f, size_t want, bool may_grow_far) noexcept {
    TxState &s = f.ofd->tx.s;
    // Less than this is not worth a record, unless it is all that is wanted. What is small goes in whole or waits, so that it is never mixed
    // with what another thread writes; the rings that cannot grow any more have room for it when they count as writable.
    // A ring that may not grow just now takes what fits, or a write larger than it would wait for the reader for ever.
    const bool whole = want <= kWhole && (ring::may_grow(s) || 16 + ring::pad8(want) <= kRingSize[0] / 4);
    const uint64_t enough = ring::may_grow(s) ? 256 : 64;
    uint64_t least = 8 + (whole || want < enough ? ring::pad8(want) : enough);
    const uint32_t freely = freely_up_to(*f.ofd);
    if (ring::room(s) >= (s.cls < freely ? 8 + ring::pad8(want) : least))
        return true;
    uint64_t before = s.credit;
    if (!ring::refresh_credit(s, f.peer->credit.consumed)) [[unlikely]]
        return false; // not an honest value: the caller sees no room, the receive side finds the rest
    if (s.credit != before)
        s.stalls = 0;
    // A ring that keeps being full grows quickly to a size in which both copies overlap.
    if (s.cls < freely && ring::may_grow(s) && ring::room(s) < 8 + ring::pad8(want)) {
        uint32_t cls = s.cls + 1;
        while (cls < freely && kRingSize[cls] < 4 * want)
            ++cls;
        ring::change_class(s, f.tx_place, cls);
        stats().ring_switches.fetch_add(1, std::memory_order_relaxed);
        note_grown(f);
        return true;
    }
    if (ring::room(s) >= least)
        return true;
    if (may_grow_far && s.stalls == 0 && ring::may_grow(s) && s.cls < most_class(*f.ofd)) {
        ring::change_class(s, f.tx_place, s.cls + 1);
        stats().ring_switches.fetch_add(1, std::memory_order_relaxed);
        note_grown(f);
        return true;
    }
    return false;
}

long send_blocked(File &f, int flags) noexcept {
    Ofd &o = *f.ofd;
    uint32_t seen = absorb_flags(f);
    if (o.tx_block.load(std::memory_order_acquire)) {
        int e = take_error(o);
        if (e == 0)
            e = EPIPE;
        if (e == EPIPE && !(flags & MSG_NOSIGNAL))
            raise_sigpipe();
        return -e;
    }
    return refuses_data(seen);
}

namespace {

/// With the token: writes as much as fits. Bytes written, or -EFAULT when nothing could be read. `whole`: everything or nothing, if it is small.
long write_some(File &f, IoCursor &from, bool grow_far, size_t whole) noexcept {
    TxState &s = f.ofd->tx.s;
    long done = 0;
    const size_t pieces = static_cast<size_t>(from.count - from.next) + 1;
    if (whole != 0 && whole + 16 * pieces <= kWhole && !make_room(f, whole + 16 * pieces, grow_far))
        return 0;
    for (;;) {
        int more = from.advance();
        if (more < 0)
            return done ? done : more;
        if (more == 0)
            return done;
        if (!make_room(f, from.now.iov_len, grow_far))
            return done;
        uint64_t fits = (ring::room(s) - 8) & ~uint64_t{7};
        uint64_t cap = s.cls == 0 ? fits : kRingSize[s.cls] / 4;
        uint64_t n = from.now.iov_len;
        n = n < fits ? n : fits;
        n = n < cap ? n : cap;
        n = n < ring::kMaxRecord ? n : ring::kMaxRecord;
        long r = ring::put(s, f.tx_place, from.now.iov_base, static_cast<uint32_t>(n));
        if (r < 0)
            return done ? done : r;
        from.skip(n);
        done += static_cast<long>(n);
        // Large transfers: let the receiver start on the first part while the next is copied.
        if (n >= 8192)
            notify(*f.link, f.slot, f.peer->control.rx_arm);
    }
}

} // namespace

namespace {

/// A call that has moved something ends with any signal, SA_RESTART or not: as one with a deadline does.
int64_t unrestartable(int64_t deadline) noexcept { return deadline < INT64_MAX ? deadline : INT64_MAX - 1; }

} // namespace

long stream_send(int, File &f, IoCursor &from, size_t total, int flags) noexcept {
    Ofd &o = *f.ofd;
    Pin pin;
    long done = 0;
    int64_t deadline = 0;
    bool grow_far = false;
    for (;;) {
        bool blocked, answered = false;
        {
            Claim c(f.seg, o.tx.token, f.tx_name());
            if (!c)
                return done ? done : c.error();
            if (f.kind != Kind::stream)
                return done ? done : -EBADF;
            blocked = o.tx_block.load(std::memory_order_acquire) ||
                      refuses_data(f.peer->control.flags.load(std::memory_order_acquire));
            if (!blocked) {
                long r = total ? write_some(f, from, grow_far, done == 0 ? total : 0) : 0;
                if (r < 0 && done == 0)
                    return r;
                if (r > 0)
                    done += r;
                answered = r < 0 || static_cast<size_t>(done) >= total;
                if (!answered && is_nonblocking(f, flags))
                    o.tx.s.stalls =
                        1; // the program has been told that it is full: it stays full until the peer reads
                if (answered)
                    ++o.tx.s.messages;
            }
        }
        if (blocked) {
            if (done) // what went before counts; the next call is told why it stopped
                return done;
            long r = send_blocked(f, flags);
            if (r < 0)
                return r;
            if (r > 0) {
                // Accepted as by a kernel whose peer has closed; the reset that answers it ends the connection, for a peer that only shut both
                // directions too. Nothing to send, nothing to answer.
                char byte;
                if (total != 0 && (from.advance() < 0 || sd_copy(&byte, from.now.iov_base, 1)))
                    return -EFAULT;
                if (total != 0 && !(flags & MSG_MORE) && !(o.flags_seen.fetch_or(kFlagReset) & kFlagReset)) {
                    o.so_error.store(EPIPE);
                    o.tx_block.fetch_or(kTxReset);
                    f.mine->control.flags.fetch_or(kFlagReset, std::memory_order_seq_cst);
                    notify(*f.link, f.slot, f.peer->control.rx_arm);
                    notify(*f.link, f.slot, f.peer->control.tx_arm);
                    notify_own(f);
                    epoll_touch(f);
                }
                // No more than a buffer holds: the rest is for the call that is told of the reset.
                const size_t most = kRingSize[freely_up_to(o)];
                return static_cast<long>(total < most ? total : most);
            }
            continue;
        }
        notify(*f.link, f.slot, f.peer->control.rx_arm);
        if (answered)
            return done;
        if (is_nonblocking(f, flags)) {
            epoll_touch(f); // edge-triggered sets watch for room from here on
            return done ? done : -EAGAIN;
        }
        if (deadline == 0)
            deadline = deadline_after(o.sndtimeo_ns.load(std::memory_order_relaxed));
        // Look for room for about as long as a wake-up costs; a sender that would sleep instead may buffer more, as the kernel does.
        if (!grow_far) {
            grow_far = true;
            if (Bell *b = thread_bell()) {
                Spinner spin(*b);
                bool room = false;
                while (!(room = stream_events(f) & (EPOLLOUT | EPOLLERR)) && spin.again()) {
                }
                if (room) {
                    spin.paid();
                    grow_far = false;
                }
            }
            continue;
        }
        if (o.tx.s.stalls == 0 && ring::may_grow(o.tx.s) && o.tx.s.cls < most_class(o))
            continue;
        pin.hold(f);
        long w = wait_stream(f, EPOLLOUT, done ? unrestartable(deadline) : deadline);
        if (w < 0)
            return done ? done : w == -ETIMEDOUT ? -EAGAIN : w;
    }
}

namespace {

/// With the token: reads what is there, up to `want` bytes. Bytes read; 0 when empty; -EFAULT, -EPROTO.
long read_some(const File &f, RxState &s, std::atomic<uint64_t> &consumed, IoCursor &to, size_t want,
               bool discard) noexcept {
    const ring::Place &place = f.rx_place;
    long done = 0;
    while (static_cast<size_t>(done) < want) {
        ring::Record rec;
        int r = ring::next_record(s, place, consumed, &rec);
        if (r <= 0)
            return done ? done : r;
        if (r == ring::kUrgentNext) [[unlikely]] {
            const bool mark = urgent_mark(f) == s.head;
            if (mark && done)
                return done; // a read stops before the mark
            if (mark && !is_inline(f)) {
                ring::skip_urgent(s);
                consumed.store(s.head, std::memory_order_release);
                continue;
            }
            rec = ring::urgent_record();
        }
        int more = to.advance();
        if (more < 0)
            return done ? done : more;
        if (more == 0)
            return done;
        size_t n = want - static_cast<size_t>(done);
        n = n < to.now.iov_len ? n : to.now.iov_len;
        long got = discard ? ring::skip(s, rec, n) : ring::take(s, place, rec, to.now.iov_base, n);
        if (got < 0)
            return done ? done : got;
        to.skip(static_cast<size_t>(got));
        done += got;
        // The sender of a long transfer goes on as soon as there is room again.
        if (got >= 8192)
            consumed.store(ring::read_up_to(s), std::memory_order_release);
    }
    return done;
}

} // namespace

namespace {

// A receiver at the heels of its sender takes every cache line away while the sender still has it in its innermost cache, which makes both
// several times slower. In a long transfer one way it is worth falling behind a little whenever the ring is found empty; then lines are
// fetched from the sender's second-level cache, and the ring grows to a size in which that goes on.
constexpr uint64_t kLongTransfer = 2u << 20; ///< ring bytes without a message the other way
constexpr uint64_t kTicksPerByte = 8;        ///< slower than this, nobody is in anybody's way
constexpr uint64_t kFallBehindTicks = 10'000;

struct Chase {
    const Ofd *ofd;
    uint64_t head, since, sent, when;
};
constinit thread_local Chase chase{};

void fall_behind(const Ofd &o) noexcept {
    const uint64_t now = __builtin_ia32_rdtsc(), head = o.rx.s.head, sent = o.tx.s.messages;
    const bool fast = chase.ofd == &o && chase.sent == sent && head > chase.head &&
                      now - chase.when < (head - chase.head) * kTicksPerByte;
    chase = {&o, head, fast ? chase.since : head, sent, now};
    if (!fast || head - chase.since < kLongTransfer || core_is_shared())
        return;
    while (__builtin_ia32_rdtsc() - now < kFallBehindTicks)
        __builtin_ia32_pause();
}

} // namespace

long stream_recv(int fd, File &f, IoCursor &to, size_t total, int flags) noexcept {
    Ofd &o = *f.ofd;
    const uint64_t handled = self.handled;
    if (flags & MSG_OOB)
        return recv_urgent(f, to, total, flags);
    if (flags & MSG_ERRQUEUE)
        return read_error_queue(f, nullptr, nullptr);
    if (total == 0) { // waits for data like any other, and takes none
        char byte;
        iovec v{&byte, 1};
        IoCursor one{&v, 1};
        long r = stream_recv(fd, f, one, 1, (flags & (MSG_DONTWAIT | MSG_NOSIGNAL)) | MSG_PEEK);
        return r > 0 ? 0 : r;
    }
    Pin pin;
    long done = 0;
    int64_t deadline = 0;
    int32_t low = o.rcvlowat.load(std::memory_order_relaxed);
    size_t target = flags & MSG_WAITALL                ? total
                    : static_cast<size_t>(low) < total ? static_cast<size_t>(low)
                                                       : total;
    for (;;) {
        long r;
        bool end = false;
        {
            Claim c(f.seg, o.rx.token, f.rx_name());
            if (!c)
                return done ? done : c.error();
            if (f.kind != Kind::stream)
                return done ? done : -EBADF;
            // Flags before the ring: data published before a FIN is then seen.
            uint32_t seen = absorb_flags(f);
            if (flags & MSG_PEEK) {
                RxState copy = o.rx.s;
                std::atomic<uint64_t> scratch{0};
                IoCursor again = to;
                r = read_some(f, copy, scratch, again, total, flags & MSG_TRUNC);
                done = 0;
            } else {
                r = read_some(f, o.rx.s, f.mine->credit.consumed, to, total - static_cast<size_t>(done),
                              flags & MSG_TRUNC);
                if (r > 0) {
                    f.mine->credit.consumed.store(ring::read_up_to(o.rx.s), std::memory_order_release);
                    ++o.rx.s.messages;
                }
            }
            if (r == 0 || (flags & MSG_PEEK))
                end = (seen & kFlagWriteShut) || o.rx_shut.load(std::memory_order_acquire) ||
                      (o.tx_block.load(std::memory_order_acquire) & kTxReset);
        }
        if (r == -EPROTO) {
            condemn(f);
            r = 0;
            end = true;
        }
        if (r < 0)
            return done ? done : r;
        if (r > 0) {
            done += r;
            if (!(flags & MSG_PEEK))
                notify_room(f);
        }
        if (static_cast<size_t>(done) >= target || (done && at_urgent_mark(f)))
            return done;
        if (end) {
            if (done)
                return done;
            // A FIN that came in order is the end of the data whatever happened later; else the error is told once.
            uint32_t seen = o.flags_seen.load(std::memory_order_acquire);
            int e = o.so_error.load(std::memory_order_relaxed);
            if (e == ECONNRESET || !(seen & kFlagWriteShut))
                e = take_error(o);
            else
                e = 0;
            return -e;
        }
        if (is_nonblocking(f, flags))
            return done ? done : -EAGAIN;
        if (deadline == 0)
            deadline = deadline_after(o.rcvtimeo_ns.load(std::memory_order_relaxed));
        // A peek or a low-water mark that is not met yet: what is there does not end the wait, so look again from time to time.
        if (r > 0 && (flags & MSG_PEEK)) {
            timespec nap{0, 200'000};
            sys::call(SYS_nanosleep, sys::arg(&nap), 0);
            if (self.handled != handled)
                return done;
            if (deadline != INT64_MAX && sys::now_ns() >= deadline)
                return done;
            continue;
        }
        if (r == 0)
            fall_behind(o);
        pin.hold(f);
        long w = wait_stream(f, EPOLLIN | EPOLLRDHUP, done ? unrestartable(deadline) : deadline);
        if (w < 0)
            return done ? done : w == -ETIMEDOUT ? -EAGAIN : w;
    }
}

namespace vfs {

long send(int fd, File *f, const void *p, size_t n, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? unconnected_send(*f, flags) : kPass;
    // The common case: a small message, no flags that matter, room in the ring, nothing to tell first.
    if (n - 1 < 8192 && (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) == 0) [[likely]] {
        Ofd &o = *f->ofd;
        Claim c(f->seg, o.tx.token, f->tx_name());
        if (c && f->kind == Kind::stream) [[likely]] {
            TxState &s = o.tx.s;
            if (ring::room(s) >= 8 + ring::pad8(n) && !o.tx_block.load(std::memory_order_relaxed) &&
                !(f->peer->control.flags.load(std::memory_order_acquire) & kMayRefuse)) [[likely]] {
                if (ring::put(s, f->tx_place, p, static_cast<uint32_t>(n)) < 0)
                    return -EFAULT;
                ++s.messages;
                auto *link = f->link;
                auto *arm = &f->peer->control.rx_arm;
                uint32_t slot = f->slot;
                c.release();
                notify(*link, slot, *arm);
                return static_cast<long>(n);
            }
        }
    }
    iovec v{const_cast<void *>(p), n > 0x7ffff000 ? 0x7ffff000 : n};
    IoCursor cur{&v, 1};
    if (flags & MSG_OOB) [[unlikely]]
        return send_urgent(fd, *f, cur, v.iov_len, flags);
    long r = stream_send(fd, *f, cur, v.iov_len, flags);
    if (flags & MSG_ZEROCOPY) [[unlikely]]
        note_zerocopy(*f, r);
    return r;
}

long sendv(int fd, File *f, const iovec *iov, int count, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? unconnected_send(*f, flags) : kPass;
    long total = iov_total(iov, count);
    if (total < 0)
        return total;
    IoCursor cur{iov, count};
    if (flags & MSG_OOB) [[unlikely]]
        return send_urgent(fd, *f, cur, static_cast<size_t>(total), flags);
    long r = stream_send(fd, *f, cur, static_cast<size_t>(total), flags);
    if (flags & MSG_ZEROCOPY) [[unlikely]]
        note_zerocopy(*f, r);
    return r;
}

namespace {

struct Asked {
    const Ofd *ofd;
    uint64_t sent;
};
constinit thread_local Asked asked{};
constexpr unsigned kBriefLooks = 64; ///< about a microsecond

/// With the token: the ring is empty. After a message was sent, the answer to it may be there in less time than it takes to prepare for waiting: looks
/// that long, once for each message, so that who only receives falls behind as above. Not while others want this core.
bool answer_came(const File &f, int flags) noexcept {
    const Ofd &o = *f.ofd;
    if (asked.ofd == &o && asked.sent == o.tx.s.messages)
        return false;
    asked = {&o, o.tx.s.messages};
    if (is_nonblocking(f, flags) || core_is_shared())
        return false;
    for (unsigned n = 0; n < kBriefLooks; ++n) {
        if (ring::peek_header(o.rx.s, f.rx_place) != 0)
            return true;
        __builtin_ia32_pause();
    }
    return false;
}

} // namespace

long recv(int fd, File *f, void *p, size_t n, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? unconnected_recv(*f, flags) : kPass;
    // The common case: whole records that fit.
    if (n != 0 && (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) == 0) [[likely]] {
        Ofd &o = *f->ofd;
        Claim c(f->seg, o.rx.token, f->rx_name());
        if (c && f->kind == Kind::stream && o.rcvlowat.load(std::memory_order_relaxed) <= 1) [[likely]] {
            RxState &s = o.rx.s;
            long done = 0;
            ring::Record rec;
            do {
                while (static_cast<size_t>(done) < n &&
                       ring::next_record(s, f->rx_place, f->mine->credit.consumed, &rec) == 1) {
                    long r = ring::take(s, f->rx_place, rec, static_cast<char *>(p) + done,
                                        n - static_cast<size_t>(done));
                    if (r < 0) {
                        if (done == 0)
                            return r;
                        break;
                    }
                    done += r;
                    if (r >= 8192)
                        f->mine->credit.consumed.store(ring::read_up_to(s), std::memory_order_release);
                }
                if (done) {
                    f->mine->credit.consumed.store(ring::read_up_to(s), std::memory_order_release);
                    ++s.messages;
                    c.release();
                    notify_room(*f);
                    return done;
                }
            } while (answer_came(*f, flags));
        }
    }
    iovec v{p, n > 0x7ffff000 ? 0x7ffff000 : n};
    IoCursor cur{&v, 1};
    return stream_recv(fd, *f, cur, v.iov_len, flags);
}

long recvv(int fd, File *f, const iovec *iov, int count, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? unconnected_recv(*f, flags) : kPass;
    long total = iov_total(iov, count);
    if (total < 0)
        return total;
    IoCursor cur{iov, count};
    return stream_recv(fd, *f, cur, static_cast<size_t>(total), flags);
}

long unconnected_recv(File &f, int flags) noexcept {
    // tcp_recvmsg on a socket in state CLOSE
    if (flags & MSG_ERRQUEUE)
        return -EAGAIN;
    if (flags & MSG_OOB)
        return -EINVAL;
    if (int e = f.fresh_error.exchange(0, std::memory_order_relaxed))
        return -e;
    return -ENOTCONN;
}

long unconnected_send(File &f, int flags) noexcept {
    // tcp_sendmsg on a socket in state CLOSE
    if (int e = f.fresh_error.exchange(0, std::memory_order_relaxed))
        return -e;
    if (!(flags & MSG_NOSIGNAL))
        raise_sigpipe();
    return -EPIPE;
}

} // namespace vfs

} // namespace sd
