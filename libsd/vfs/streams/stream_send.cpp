// Sending over an accelerated connection.
#include "libsd/vfs/streams/stream_send.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/back_again.hpp"
#include "libsd/vfs/paths/kernel_calls.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/ring_shrink.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// With the token: moves to a larger ring, of class `cls` or, where that cannot be had, of the largest below
/// it. False: none.
bool grow(File &f, uint32_t cls) noexcept {
    TxState &s = f.ofd->tx.s;
    for (; cls > s.cls; --cls)
        if (f.link->transport->settle(*f.link, f.slot, cls) && ring::change_class(s, f.tx_place, cls)) {
            stats().ring_switches.fetch_add(1, std::memory_order_relaxed);
            note_grown(f);
            return true;
        }
    return false;
}

} // namespace

bool may_grow_on(const File &f) noexcept {
    const TxState &s = f.ofd->tx.s;
    return s.stalls == 0 && ring::may_grow(s) && s.cls < most_class(*f.ofd) &&
           ring_to_be_had(*f.link, f.slot, s.cls + 1);
}

bool make_room(File &f, size_t want, bool may_grow_far) noexcept {
    TxState &s = f.ofd->tx.s;
    if (rdma::is_remote(*f.link) && !rdma::may_send(*f.link, f.slot)) [[unlikely]]
        return false; // accepted is only what goes out
    // Less than this is not worth a record, unless it is all that is wanted. What is small goes in whole or
    // waits, so that it is never mixed with what another thread writes; the rings that cannot grow any more
    // have room for it when they count as writable. A ring that may not grow just now takes what fits, or a
    // write larger than it would wait for the reader for ever.
    const bool grows = ring::may_grow(s) && (s.cls != 0 || ring_to_be_had(*f.link, f.slot, 1));
    const bool whole = want <= kWhole && (grows || 16 + ring::pad8(want) <= kRingSize[0] / 4);
    const uint64_t enough = grows ? 256 : 64;
    uint64_t least = 8 + (whole || want < enough ? ring::pad8(want) : enough);
    const uint32_t freely = freely_up_to(*f.ofd);
    if (ring::room(s) >= (s.cls < freely ? 8 + ring::pad8(want) : least))
        return true;
    uint64_t before = s.credit;
    // Not an honest value changes nothing: what is decided here has to agree with tx_room().
    (void)ring::refresh_credit(s, f.peer->credit.consumed);
    take_room_told(f, s);
    if (s.credit != before)
        s.stalls = 0;
    // A ring that keeps being full grows quickly to a size in which both copies overlap.
    if (s.cls < freely && ring::may_grow(s) && ring::room(s) < 8 + ring::pad8(want)) {
        uint32_t cls = s.cls + 1;
        while (cls < freely && kRingSize[cls] < 4 * want)
            ++cls;
        if (grow(f, cls))
            return true;
    }
    return ring::room(s) >= least || (may_grow_far && may_grow_on(f) && grow(f, s.cls + 1));
}

long send_blocked(File &f, int flags) noexcept {
    Ofd &o = *f.ofd;
    uint32_t seen = absorb_flags(f);
    if (o.tx_block.load(std::memory_order_acquire) & kTxEnded) {
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

/// With the token: writes as much as fits. Bytes written, or -EFAULT when nothing could be read. `whole`:
/// everything or nothing, if it is small. `*tell` becomes true when the receiver has to be told of it.
long write_some(File &f, IoCursor &from, bool grow_far, size_t whole, Cork cork, bool *tell) noexcept {
    TxState &s = f.ofd->tx.s;
    long done = 0;
    uint64_t gathered = 0;
    const size_t pieces = static_cast<size_t>(from.count - from.next) + 1;
    const bool plain = is_plain(*f.ofd, cork);
    const bool by_handle = may_use_channels() && channel_of(f);
    auto has_room = [&](size_t want) {
        if (make_room(f, want, grow_far)) [[likely]]
            return true;
        *tell |= uncork(f); // nothing waits for more that there is no room for
        return false;
    };
    if (whole != 0 && whole + 16 * pieces <= kWhole && !has_room(whole + 16 * pieces))
        return 0;
    for (;;) {
        int more = from.advance();
        if (more < 0)
            return done ? done : more;
        if (more == 0)
            return done;
        Handed handed{.copy = from.now.iov_len};
        if (by_handle && from.now.iov_len >= kLeastGiven) [[unlikely]] {
            handed = hand_pages(f, from.now, plain, grow_far);
            if (handed.given != 0) {
                from.skip(handed.given);
                done += static_cast<long>(handed.given);
                *tell = true;
                notify(*f.link, f.slot, f.peer->control.rx_arm);
                continue;
            }
            if (handed.full)
                return done;
        }
        if (!has_room(handed.copy))
            return done;
        const uint64_t n = record_length(f, handed.copy, plain, cork);
        long r = plain ? ring::put(s, f.tx_place, from.now.iov_base, static_cast<uint32_t>(n))
                       : ring::copy_in(s, f.tx_place, from.now.iov_base, static_cast<uint32_t>(n));
        if (r < 0)
            return done ? done : r;
        *tell |= plain || publish_corked(f, static_cast<uint32_t>(n), cork);
        if (by_handle && from.now.iov_len >= kLeastGiven) [[unlikely]]
            count_copied(f, handed.why, n);
        from.skip(n);
        done += static_cast<long>(n);
        // Large transfers: let the receiver start on the first part while the next is copied. To another host
        // no more is gathered than may_send() has seen room for.
        gathered += n;
        if ((n >= 8192 || (gathered >= 8192 && rdma::is_remote(*f.link))) && *tell) {
            notify(*f.link, f.slot, f.peer->control.rx_arm);
            gathered = 0;
        }
    }
}

/// The connection has moved to the kernel in the middle of a write, of which `done` bytes are on their way.
long send_rest(int fd, IoCursor &from, size_t done, int flags) noexcept {
    while (from.advance() > 0) {
        const size_t n = from.now.iov_len;
        const long r = sys::call(SYS_sendto, fd, sys::arg(from.now.iov_base), static_cast<long>(n),
                                 flags | MSG_NOSIGNAL, 0, 0); // the next call is told why it stopped
        if (r <= 0)
            break;
        from.skip(static_cast<size_t>(r));
        done += static_cast<size_t>(r);
        if (static_cast<size_t>(r) < n)
            break;
    }
    return static_cast<long>(done);
}

} // namespace

void answered_by_reset(File &f) noexcept {
    Ofd &o = *f.ofd;
    if (o.flags_seen.fetch_or(kFlagReset) & kFlagReset)
        return;
    o.so_error.store(EPIPE);
    o.tx_block.fetch_or(kTxReset);
    if (is_captured(o)) [[unlikely]]
        capture_end(f, false, CaptureKind::reset);
    set_ended(*f.mine, kFlagReset);
    notify(*f.link, f.slot, f.peer->control.rx_arm);
    notify(*f.link, f.slot, f.peer->control.tx_arm);
    notify_own(f);
    epoll_touch(f);
}

long stream_send(int fd, File &f, IoCursor &from, size_t total, int flags) noexcept {
    const ConnectionSnapshot b(f);
    Ofd &o = *b.ofd;
    Pin pin;
    RoomWait room;
    // As the call found it, whoever changes O_NONBLOCK meanwhile
    const bool nonblocking = is_nonblocking(f, flags);
    long done = 0;
    for (;;) {
        bool blocked, answered = false, tell = false, gone;
        long failed = 0;
        Recipient reader;
        {
            SendClaim c(b, f);
            if (!c)
                return done ? done : c.error();
            reader = peers_reader(f);
            gone = moved(f, o);
            bool in_socket = false;
            if (!gone && has_other_path(f, o)) [[unlikely]]
                in_socket = !prepare_send(fd, f, &tell);
            if (in_socket && (o.tx_block.load(std::memory_order_acquire) & kTxEnded)) [[unlikely]] {
                absorb_flags(f); // a reset that the link tells counts, and not the socket's
                in_socket = !(o.tx_block.load(std::memory_order_acquire) & kTxReset);
            }
            // A peer that has ended both its directions, the one in the ring: its socket does not know of it.
            if (in_socket && receives_in_ring(o) && sender_is_in_ring(f) &&
                refuses_data(f.peer->control.flags.load(std::memory_order_acquire)))
                in_socket = false;
            blocked = gone || (!in_socket && send_refused(f, o));
            if (in_socket) [[unlikely]] {
                // An error that was told by the socket beside what was received
                const int waiting = done == 0 ? take_error(o) : 0;
                long r = waiting ? -waiting : send_to_socket(fd, from, flags);
                const bool shut = o.tx_block.load(std::memory_order_acquire) & kTxShut;
                if (!waiting && (r == -ECONNRESET || (r == -EPIPE && !shut)))
                    r = tell_reset(f, r);
                if (r > 0) {
                    done += r;
                    o.tx.s.bytes += static_cast<uint64_t>(r);
                    o.tx.s.stalls = 0;
                    note_more(o, flags & MSG_MORE);
                }
                answered = (r < 0 && r != -EAGAIN) || static_cast<size_t>(done) >= total;
                if (r < 0 && r != -EAGAIN) {
                    if (done == 0)
                        failed = r;
                    else if (r != -EFAULT)
                        o.so_error.store(static_cast<int32_t>(-r), std::memory_order_release);
                } else if (!answered && nonblocking) {
                    o.tx.s.stalls = 1;
                } else if (answered) {
                    ++o.tx.s.messages;
                }
            } else if (!blocked) {
                const Cork cork = cork_of(o, flags & MSG_MORE);
                long r = total ? write_some(f, from, room.grow_far, done == 0 ? total : 0, cork, &tell) : 0;
                if (r < 0 && done == 0)
                    return r;
                if (r > 0)
                    done += r;
                answered = r < 0 || static_cast<size_t>(done) >= total;
                if (!answered && nonblocking)
                    o.tx.s.stalls =
                        1; // the program has been told that it is full: it stays full until the peer reads
                if (answered) {
                    ++o.tx.s.messages;
                    SD_PROBE2(send, fd, done);
                }
            }
        }
        if (gone) [[unlikely]] {
            if (follow(f))
                return done == 0 ? vfs::kPass : send_rest(fd, from, static_cast<size_t>(done), flags);
            continue;
        }
        if (blocked) {
            if (done) // what went before counts; the next call is told why it stopped
                return done;
            if (!pin.acquire(f, fd))
                return -EBADF;
            long r = send_blocked(f, flags);
            if (r < 0)
                return r;
            if (r > 0) {
                // Accepted as by a kernel whose peer has closed; the reset that answers it ends the
                // connection, for a peer that only shut both directions too. Nothing to send, nothing to
                // answer.
                char byte;
                if (total != 0 && (from.advance() < 0 || sd_copy(&byte, from.now.iov_base, 1)))
                    return -EFAULT;
                if (total != 0 && !(flags & MSG_MORE))
                    answered_by_reset(f);
                // No more than a buffer holds: the rest is for the call that is told of the reset.
                const size_t most = kRingSize[freely_up_to(o)];
                return static_cast<long>(total < most ? total : most);
            }
            continue;
        }
        if (tell)
            reader.tell();
        leave_pages_if_told();
        if (failed) [[unlikely]] {
            if (failed == -EPIPE && !(flags & MSG_NOSIGNAL))
                raise_sigpipe();
            return failed;
        }
        if (answered)
            return done;
        if (const long w = room.wait(fd, f, pin, nonblocking, flags, done != 0); w < 0)
            return done ? done : w;
    }
}

long RoomWait::wait(int fd, File &f, Pin &pin, bool nonblocking, int flags, bool started) noexcept {
    if (!pin.acquire(f, fd))
        return -EBADF;
    if (nonblocking) {
        epoll_touch(f); // edge-triggered sets watch for room from here on
        return -EAGAIN;
    }
    // A peer that says again and again that there is room does not put the end off; an honest one says so
    // once, or twice where the ring may grow.
    constexpr unsigned kMostInVain = 3;
    if (deadline_ == 0)
        deadline_ = deadline_after(f.ofd->sndtimeo_ns.load(std::memory_order_relaxed));
    else if (++waits_ > kMostInVain && is_over(deadline_)) [[unlikely]]
        return -EAGAIN;
    // Look for room for about as long as a wake-up costs; a sender that would sleep instead may buffer more,
    // as the kernel does.
    if (!grow_far) {
        grow_far = true;
        if (Bell *b = looking_bell()) {
            Spinner spin(*b);
            bool room = false;
            while (!(room = stream_events(f) & (EPOLLOUT | EPOLLERR)) && spin.again()) {
            }
            if (room) {
                spin.paid();
                grow_far = false;
            }
        }
        return 0;
    }
    if ((!has_paths(*f.ofd) || sends_in_ring(*f.ofd)) && may_grow_on(f) &&
        !(may_use_channels() && channel_is_full(f)))
        return 0;
    const long w = wait_stream(f, EPOLLOUT, started ? unrestartable(deadline_) : deadline_, interrupts_);
    if (w == -EPIPE && !started) // undone by another thread: connect(AF_UNSPEC)
        return vfs::unconnected_send(f, flags);
    return w == -ETIMEDOUT ? -EAGAIN : w;
}

namespace {

/// On a socket that is the kernel's, not connected, or a stream by the time that this has looked.
[[gnu::cold, gnu::noinline]] long send_not_stream(int fd, File *f, const iovec *iov, int count,
                                                  int flags) noexcept {
    if (joins_now(fd, *f))
        return vfs::sendv(fd, f, iov, count, flags);
    if (may_be_joined(*f))
        return in_kernel(*f, [&] {
            msghdr m{};
            m.msg_iov = const_cast<iovec *>(iov);
            m.msg_iovlen = static_cast<size_t>(count);
            return sys::call(SYS_sendmsg, fd, sys::arg(&m), flags);
        });
    return f->kind == FileKind::fresh && !f->real_socket ? vfs::unconnected_send(*f, flags) : vfs::kPass;
}

} // namespace

namespace vfs {

long send(int fd, File *f, const void *p, size_t n, int flags) noexcept {
    if (rdma::lost_links.load(std::memory_order_relaxed) != 0) [[unlikely]]
        offer_anew(fd, *f);
    if (f->kind != FileKind::stream) {
        const iovec one{const_cast<void *>(p), clamp_transfer(n)};
        return send_not_stream(fd, f, &one, 1, flags);
    }
    iovec v{const_cast<void *>(p), clamp_transfer(n)};
    IoCursor cur{&v, 1};
    if (flags & MSG_OOB) [[unlikely]]
        return send_urgent(fd, *f, cur, v.iov_len, flags);
    if (n >= kLeastGiven && may_use_channels()) [[unlikely]]
        prepare_channel(fd, *f);
    long r = stream_send(fd, *f, cur, v.iov_len, flags);
    if (flags & MSG_ZEROCOPY) [[unlikely]]
        note_zerocopy(*f, r);
    return r;
}

long sendv(int fd, File *f, const iovec *iov, int count, int flags) noexcept {
    if (f->kind != FileKind::stream)
        return send_not_stream(fd, f, iov, count, flags);
    long total = iov_total(iov, count);
    if (total < 0)
        return total;
    IoCursor cur{iov, count};
    if (flags & MSG_OOB) [[unlikely]]
        return send_urgent(fd, *f, cur, static_cast<size_t>(total), flags);
    if (static_cast<size_t>(total) >= kLeastGiven && may_use_channels()) [[unlikely]]
        prepare_channel(fd, *f);
    long r = stream_send(fd, *f, cur, static_cast<size_t>(total), flags);
    if (flags & MSG_ZEROCOPY) [[unlikely]]
        note_zerocopy(*f, r);
    return r;
}

} // namespace vfs

} // namespace sd
