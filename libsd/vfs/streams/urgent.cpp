// Urgent data of an accelerated connection; see urgent.hpp.
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/stream_send.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// RxState::urgent_taken for a mark: recv(MSG_OOB) had the byte.
uint32_t taken_name(uint64_t mark) noexcept { return static_cast<uint32_t>(mark >> 3) + 1; }

bool was_reset(const Ofd &o) noexcept { return o.tx_block.load(std::memory_order_acquire) & kTxReset; }

/// One byte with the mark on it. 1, 0 when the ring is full, or what a send returns.
long put_mark(int fd, File &f, unsigned char byte, int flags) noexcept {
    const ConnectionSnapshot b(f);
    Ofd &o = *b.ofd;
    const Recipient reader = peers_reader(f);
    bool blocked, tell = false;
    {
        SendClaim c(b, f);
        if (!c)
            return c.error();
        if (moved(f, o)) [[unlikely]] {
            c.release();
            return follow(f) ? vfs::kPass : 0;
        }
        if (has_other_path(f, o) && !prepare_send(fd, f, &tell) && !was_reset(o)) [[unlikely]] {
            iovec v{&byte, 1};
            IoCursor one{&v, 1};
            (o.opt.*kPathStays).fetch_or(kSentUrgent, std::memory_order_relaxed);
            const long r = send_to_socket(fd, one, flags | MSG_OOB);
            c.release();
            if (tell)
                reader.tell();
            return r == -EAGAIN ? 0 : r;
        }
        blocked = send_refused(f, o);
        if (!blocked) {
            TxState &s = o.tx.s;
            if (!make_room(f, 1, false)) {
                uncork(f);
                return 0;
            }
            // The word first: who finds the record then knows whether it is the latest.
            f.mine->control.oob.store(s.tail << 9 | uint64_t{byte} << 1 | 1, std::memory_order_release);
            if (is_captured(o)) [[unlikely]]
                capture_urgent(f, byte);
            ring::put_urgent(s, f.tx_place, byte);
            uncork(f); // nothing urgent waits, nor what is before it
            ++s.messages;
        }
    }
    if (blocked) { // an ordinary send knows what to answer
        iovec v{&byte, 1};
        IoCursor one{&v, 1};
        return stream_send(fd, f, one, 1, flags);
    }
    notify(*f.link, f.slot, f.peer->control.rx_arm);
    return 1;
}

constexpr long kNotInSocket = INT64_MIN + 1;

/// Over the kernel's socket, if the direction goes over that.
long urgent_to_socket(int fd, File &f, IoCursor &from, int flags) noexcept {
    const ConnectionSnapshot b(f);
    const Recipient reader = peers_reader(f);
    SendClaim c(b, f);
    if (!c)
        return c.error();
    bool tell = false;
    const bool in_ring = (has_other_path(f, *b.ofd) ? prepare_send(fd, f, &tell) : sends_in_ring(*b.ofd)) ||
                         was_reset(*b.ofd); // an ordinary send knows what to answer
    (b.ofd->opt.*kPathStays).fetch_or(kSentUrgent, std::memory_order_relaxed);
    long r = in_ring ? kNotInSocket : send_to_socket(fd, from, flags);
    if (r == -ECONNRESET)
        r = tell_reset(f, r);
    c.release();
    if (tell)
        reader.tell();
    if (r == -EPIPE && !(flags & MSG_NOSIGNAL))
        raise_sigpipe();
    return r;
}

} // namespace

bool at_urgent_mark(const File &f) noexcept {
    if (has_paths(*f.ofd)) [[unlikely]] { // what is next may be on the other path, and nobody have followed
        const int fd = path_socket(f);
        const bool in_ring = next_is_in_ring(fd, f);
        if ((!in_ring || !receives_in_ring(*f.ofd)) && socket_at_mark(fd))
            return true;
        if (!in_ring)
            return false;
    }
    return ring_at_mark(f, f.ofd->rx.s);
}

bool ring_at_mark(const File &f, const RxState &s) noexcept {
    const uint64_t mark = urgent_mark(f);
    if (mark == kNoMark) [[likely]]
        return false;
    RxState copy = s;
    std::atomic<uint64_t> scratch{0};
    ring::Record rec;
    const ring::Place place = f.rx_place; // without the token nothing is remembered in the File's
    return ring::next_record(copy, place, scratch, &rec) == ring::kUrgentNext && copy.head == mark;
}

bool urgent_unread(const File &f) noexcept {
    const uint64_t mark = urgent_mark(f);
    return mark != kNoMark && f.ofd->rx.s.urgent_taken != taken_name(mark);
}

long send_urgent(int fd, File &f, IoCursor &from, size_t total, int flags) noexcept {
    const int plain = flags & ~MSG_OOB;
    Pin pin;
    if (!pin.acquire(f, fd))
        return -EBADF;
    if (has_paths(*f.ofd)) [[unlikely]] {
        const bool nonblocking = is_nonblocking(f, plain);
        RoomWait room;
        size_t sent = 0;
        for (long r; (r = urgent_to_socket(fd, f, from, flags)) != kNotInSocket;) {
            sent += r > 0 ? static_cast<size_t>(r) : 0;
            if (sent >= total || (r < 0 && r != -EAGAIN))
                return sent ? static_cast<long>(sent) : r;
            if (const long w = room.wait(fd, f, pin, nonblocking, plain, sent != 0); w < 0)
                return sent ? static_cast<long>(sent) : w;
        }
        if (sent != 0) { // it has moved to the ring meanwhile
            const long rest = send_urgent(fd, f, from, total - sent, flags);
            return static_cast<long>(sent) + (rest > 0 ? rest : 0);
        }
    }
    if (total == 0 || refuses_data(f.peer->control.flags.load(std::memory_order_acquire)))
        return stream_send(fd, f, from, total, plain);
    long done = 0;
    while (static_cast<size_t>(done) < total - 1) { // all but the last byte the ordinary way
        if (int more = from.advance(); more <= 0)
            return done ? done : -EFAULT;
        const size_t left = total - 1 - static_cast<size_t>(done);
        iovec v{from.now.iov_base, from.now.iov_len < left ? from.now.iov_len : left};
        IoCursor part{&v, 1};
        long r = stream_send(fd, f, part, v.iov_len, plain);
        if (r <= 0)
            return done ? done : r;
        done += r;
        from.skip(static_cast<size_t>(r));
        if (static_cast<size_t>(r) < v.iov_len)
            return done;
    }
    unsigned char byte;
    int more = from.advance();
    if (more <= 0 || sd_copy(&byte, from.now.iov_base, 1))
        return done ? done : -EFAULT;
    RoomWait room;
    for (;;) {
        long r = put_mark(fd, f, byte, plain);
        if (r == 0)
            r = room.wait(fd, f, pin, is_nonblocking(f, plain), plain, done != 0);
        else if (r > 0)
            return done + 1;
        if (r < 0)
            return done ? done : r;
    }
}

long recv_urgent(File &f, IoCursor &to, size_t total, int flags) noexcept {
    if (has_paths(*f.ofd)) [[unlikely]] {
        // The latest counts, wherever what is before it is read.
        const bool ring_first = sender_is_in_ring(f);
        if (!ring_first || is_inline(f) || !urgent_unread(f)) {
            const long r =
                receive_from_socket(path_socket(f), to, total, flags & (MSG_OOB | MSG_PEEK | MSG_TRUNC));
            if (r != -EINVAL || ring_first)
                return r;
        }
    }
    const uint64_t word = f.peer->control.oob.load(std::memory_order_acquire);
    if (is_inline(f) || !urgent_unread(f))
        return -EINVAL;
    // After a reset that no FIN went before, the kernel does not know the connection any more.
    if ((absorb_flags(f) & kFlagWriteShut) == 0 && (f.ofd->tx_block.load(std::memory_order_acquire) & kTxReset))
        return -ENOTCONN;
    const char byte = static_cast<char>(word >> 1);
    if (!(flags & MSG_PEEK)) {
        const ConnectionSnapshot b(f);
        ReceiveClaim c(b, f);
        if (!c)
            return c.error();
        b.ofd->rx.s.urgent_taken = taken_name(word >> 9);
    }
    if (total == 0 || (flags & MSG_TRUNC))
        return total != 0;
    if (int more = to.advance(); more <= 0)
        return more;
    return sd_copy(to.now.iov_base, &byte, 1) ? -EFAULT : 1;
}

} // namespace sd
