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
    // Less than this is not worth a record, unless it is all that is wanted.
    uint64_t least = 8 + (want < 256 ? ring::pad8(want) : 256);
    const uint32_t freely = freely_up_to(*f.ofd);
    if (ring::room(s) >= (s.cls < freely ? 8 + ring::pad8(want) : least))
        return true;
    uint64_t before = s.credit;
    if (!ring::refresh_credit(s, f.peer->credit.consumed)) [[unlikely]]
        return false; // not an honest value: the caller sees no room, the receive side finds the rest
    if (s.credit != before)
        s.stalls = 0;
    // A ring that keeps being full grows quickly to a size in which both copies overlap.
    if (s.cls < freely && ring::room(s) < 8 + ring::pad8(want)) {
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
    if (may_grow_far && s.stalls == 0 && s.cls < most_class(*f.ofd)) {
        ring::change_class(s, f.tx_place, s.cls + 1);
        stats().ring_switches.fetch_add(1, std::memory_order_relaxed);
        note_grown(f);
        return true;
    }
    return false;
}

namespace {
constexpr uint32_t kPeerStops = kFlagClosed | kFlagReset | kFlagDead;
} // namespace

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
    // The peer's kernel would answer the next segment with RST. Every flag that stops a sender has to end here, in whatever mixture: a hostile
    // peer may set one without the others.
    if (seen & kPeerStops)
        return 1;
    return 0;
}

namespace {

/// With the token: writes as much as fits. Bytes written, or -EFAULT when nothing could be read.
long write_some(File &f, IoCursor &from, bool grow_far) noexcept {
    TxState &s = f.ofd->tx.s;
    long done = 0;
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
                return done ? done : -ENOBUFS;
            if (f.kind != Kind::stream)
                return done ? done : -EBADF;
            blocked = o.tx_block.load(std::memory_order_acquire) ||
                      (f.peer->control.flags.load(std::memory_order_acquire) & kPeerStops);
            if (!blocked) {
                long r = total ? write_some(f, from, grow_far) : 0;
                if (r < 0 && done == 0)
                    return r;
                if (r > 0)
                    done += r;
                answered = r < 0 || static_cast<size_t>(done) >= total;
                if (!answered && is_nonblocking(f, flags))
                    ++o.tx.s.stalls; // the program has been told that it is full: it stays full until the peer reads
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
                // Accepted as by a kernel whose peer has closed; the reset that answers it ends the connection.
                if (!(o.flags_seen.fetch_or(kFlagReset) & kFlagReset)) {
                    o.so_error.store(EPIPE);
                    o.tx_block.fetch_or(kTxReset);
                }
                return static_cast<long>(total);
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
        if (o.tx.s.stalls == 0 && o.tx.s.cls < most_class(o))
            continue;
        pin.hold(f);
        long w = wait_stream(f, EPOLLOUT, deadline);
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
        int r = ring::next_record(s, place, consumed);
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
            ring::accept_urgent(s);
        }
        int more = to.advance();
        if (more < 0)
            return done ? done : more;
        if (more == 0)
            return done;
        size_t n = want - static_cast<size_t>(done);
        n = n < to.now.iov_len ? n : to.now.iov_len;
        long got = discard ? ring::skip(s, n) : ring::take(s, place, to.now.iov_base, n);
        if (got < 0)
            return done ? done : got;
        to.skip(static_cast<size_t>(got));
        done += got;
        // The sender of a long transfer goes on as soon as there is room again.
        if (got >= 8192)
            consumed.store(s.head, std::memory_order_release);
    }
    return done;
}

} // namespace

long stream_recv(int fd, File &f, IoCursor &to, size_t total, int flags) noexcept {
    Ofd &o = *f.ofd;
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
                return done ? done : -ENOBUFS;
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
                    f.mine->credit.consumed.store(o.rx.s.head, std::memory_order_release);
                    ++o.rx.s.messages;
                }
            }
            if (r == 0)
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
        if (static_cast<size_t>(done) >= target)
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
            if (deadline != INT64_MAX && sys::now_ns() >= deadline)
                return done;
            continue;
        }
        pin.hold(f);
        long w = wait_stream(f, EPOLLIN | EPOLLRDHUP, deadline);
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
                !(f->peer->control.flags.load(std::memory_order_acquire) & kPeerStops)) [[likely]] {
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

long recv(int fd, File *f, void *p, size_t n, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? -ENOTCONN : kPass;
    // The common case: one whole record that fits.
    if (n != 0 && (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) == 0) [[likely]] {
        Ofd &o = *f->ofd;
        Claim c(f->seg, o.rx.token, f->rx_name());
        if (c && f->kind == Kind::stream && o.rcvlowat.load(std::memory_order_relaxed) <= 1) [[likely]] {
            RxState &s = o.rx.s;
            long done = 0;
            while (static_cast<size_t>(done) < n &&
                   ring::next_record(s, f->rx_place, f->mine->credit.consumed) == 1) {
                long r =
                    ring::take(s, f->rx_place, static_cast<char *>(p) + done, n - static_cast<size_t>(done));
                if (r < 0) {
                    if (done == 0)
                        return r;
                    break;
                }
                done += r;
                if (r >= 8192)
                    f->mine->credit.consumed.store(s.head, std::memory_order_release);
            }
            if (done) {
                f->mine->credit.consumed.store(s.head, std::memory_order_release);
                ++s.messages;
                c.release();
                notify_room(*f);
                return done;
            }
        }
    }
    iovec v{p, n > 0x7ffff000 ? 0x7ffff000 : n};
    IoCursor cur{&v, 1};
    return stream_recv(fd, *f, cur, v.iov_len, flags);
}

long recvv(int fd, File *f, const iovec *iov, int count, int flags) noexcept {
    if (f->kind != Kind::stream)
        return f->kind == Kind::fresh && !f->real_socket ? -ENOTCONN : kPass;
    long total = iov_total(iov, count);
    if (total < 0)
        return total;
    IoCursor cur{iov, count};
    return stream_recv(fd, *f, cur, static_cast<size_t>(total), flags);
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
