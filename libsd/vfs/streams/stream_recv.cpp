// Receiving over an accelerated connection.
#include "libsd/vfs/streams/stream_recv.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/cpu/answer.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/answer_hope.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/corrupt_peer.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/back_again.hpp"
#include "libsd/vfs/paths/counts.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/kernel_calls.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/fast_path.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// Where a read can go back to when it finds a bad piece: behind what its sender has been told of, and the
/// last change of ring. The kernel hands over whole segments, and one that does not fit stays.
struct Undo {
    /// `done` bytes were read by then.
    void note(const RxState &s, const std::atomic<uint64_t> &consumed, long done) noexcept {
        state = s;
        told = consumed.load(std::memory_order_relaxed);
        bytes = done;
    }
    /// Goes back there. What is read then, or `error`.
    long back(RxState &s, long error) const noexcept {
        // Killed in between, it has received it: `part` belongs to one head only.
        s.part = state.part;
        ring::in_order();
        s.head = state.head;
        s.bytes = state.bytes;
        return bytes ? bytes : error;
    }
    RxState state{};
    uint64_t told = 0;
    long bytes = 0;
};
constexpr long kWholeSegment = 32741;

/// A handle leads to a pool that this process has not mapped.
constexpr long kPoolMissing = -EREMOTE;

/// With the token: reads of a handle, whose bytes are in a pool of the peer. Bytes read; -EFAULT;
/// kPoolMissing.
[[gnu::cold, gnu::noinline]] long read_handle(const File &f, RxState &s, ring::Record &rec, void *to,
                                              uint64_t n, bool discard, bool captured) noexcept {
    const ring::HandleRecord where = ring::handle_at(s, f.rx_place);
    TakenPool *pool = pool_of_handle(f, where, rec.length);
    if (!pool)
        return kPoolMissing;
    if (pool->end_fd >= 0)
        return read_channel(f, s, rec, *pool, to, n, discard, captured);
    const uint8_t *from = pool->bytes + offset_of(where) + rec.read;
    const uint32_t left = rec.length - rec.read;
    if (!discard && sd_copy(to, from, n < left ? n : left))
        return -EFAULT;
    const long got = ring::skip(s, rec, n);
    if (captured)
        capture_handed(f, from, static_cast<uint32_t>(got));
    if (&s == &f.ofd->rx.s) // and not a look at what comes
        count_released(*pool, buffer_of(where), static_cast<uint64_t>(got));
    return got;
}

/// With the token: reads what is there, up to `want` bytes. Bytes read; 0 when empty; -EFAULT, kPoolMissing,
/// or an error of next_record().
long read_some(File &f, RxState &s, std::atomic<uint64_t> &consumed, IoCursor &to, size_t want, bool discard,
               bool captured) noexcept {
    const ring::Place &place = f.rx_place;
    long done = 0;
    Undo undo;
    while (static_cast<size_t>(done) < want) {
        ring::Record rec;
        int r = ring::next_record(s, place, consumed, &rec);
        if (r == 1 && !place.known(s.cls)) [[unlikely]] // take() has no answer where there is no ring
            r = ring::if_reachable(s, place, r);
        if (r <= 0)
            return done ? done : r;
        if (done == undo.bytes || consumed.load(std::memory_order_relaxed) != undo.told)
            undo.note(s, consumed, done);
        if (r == ring::kUrgentNext) [[unlikely]] {
            const bool mark = urgent_mark(f) == s.head;
            if (mark && done)
                return done; // a read stops before the mark
            if (mark && !is_inline(f)) {
                ring::skip_urgent(s);
                forget_told(f);
                consumed.store(s.head, std::memory_order_release);
                continue;
            }
            rec = ring::urgent_record();
        }
        int more = to.advance();
        if (more < 0)
            return captured && done ? done : undo.back(s, more);
        if (more == 0)
            return done;
        size_t n = want - static_cast<size_t>(done);
        n = n < to.now.iov_len ? n : to.now.iov_len;
        const uint64_t from = s.head - s.base + 8 + rec.read;
        long got = r == ring::kHandleNext ? read_handle(f, s, rec, to.now.iov_base, n, discard, captured)
                   : discard              ? ring::skip(s, rec, n)
                                          : ring::take(s, place, rec, to.now.iov_base, n);
        if (got < 0)
            return (captured || got == kPoolMissing) && done ? done : undo.back(s, got);
        if (captured && r != ring::kHandleNext) [[unlikely]]
            capture_received(f, from, static_cast<uint32_t>(got), r == ring::kUrgentNext);
        to.skip(static_cast<size_t>(got));
        done += got;
        if (r == ring::kHandleNext) // the peer may use the buffer again
            undo.note(s, consumed, done);
        // The sender of a long transfer goes on as soon as there is room again.
        if (got >= 8192 && (to.in_last_piece() || done - undo.bytes >= kWholeSegment)) {
            consumed.store(ring::read_up_to(s), std::memory_order_release);
            undo.note(s, consumed, done);
        }
    }
    return done;
}

/// The same of a connection with paths: what they have, one after the other. `has_some`: the call has bytes
/// of earlier turns. `*end`: there will be no more. `*mark`: a peek has ended at an urgent byte; only known
/// where it may have to wait for more.
long read_paths(int fd, File &f, IoCursor &to, size_t want, int flags, bool has_some, bool *end,
                bool *mark) noexcept {
    Ofd &o = *f.ofd;
    const bool peek = flags & MSG_PEEK;
    if (rdma::is_remote(*f.link)) [[unlikely]] {
        if (rx_pending(f))
            rdma::progress_if_due(); // there may be more for this call
        else
            rdma::progress();
        if (rdma::refusals.load(std::memory_order_relaxed) != 0) [[unlikely]]
            count_refusals();
    }
    const int to_socket = flags & (MSG_PEEK | MSG_TRUNC);
    const bool minds_mark = peek && ((flags & MSG_WAITALL) || low_water(o) > 1);
    long done = 0;
    for (unsigned pieces = 0; pieces < 6; ++pieces) { // more than can lie behind each other
        const size_t left = want - static_cast<size_t>(done);
        if (receives_in_ring(o)) {
            const uint32_t seen = absorb_flags(f); // before the ring, as below
            uncork_overdue(f);
            RxState copy = o.rx.s;
            std::atomic<uint64_t> scratch{0};
            const long r = read_some(f, peek ? copy : o.rx.s, peek ? scratch : f.mine->credit.consumed, to,
                                     left, flags & MSG_TRUNC, !peek && is_receive_captured(o));
            if (r < 0)
                return done ? done : r;
            if (r > 0 && !peek)
                f.mine->credit.consumed.store(ring::read_up_to(o.rx.s), std::memory_order_release);
            done += r;
            if (static_cast<size_t>(done) == want)
                return done;
            if (peek && r > 0 && ring_at_mark(f, copy)) {
                *mark = true;
                return done;
            }
            // A peek that has seen nothing follows like a read.
            if (!(peek && r != 0) && follow_sender(fd, f)) {
                if (done != 0 && at_urgent_mark(f))
                    return done;
                continue;
            }
            if (peek && ring_ends_at(f, copy)) {
                // In this order: a mark that comes to an empty socket is not taken for data.
                const bool is_some = socket_pending(fd) > 0;
                *mark = done != 0 && socket_at_mark(fd);
                if (*mark)
                    return done;
                const bool urgent = minds_mark && is_urgent_in_socket(fd), looks = is_some || done == 0;
                const long more =
                    looks ? receive_from_socket(fd, to, want - static_cast<size_t>(done), to_socket) : 0;
                *mark = more > 0 && minds_mark && peek_met_mark(fd, more, is_inline(f), urgent);
                *end = socket_has_ended(fd);
                return more > 0 ? done + more : done;
            }
            *end = (seen & kFlagWriteShut) || (o.tx_block.load(std::memory_order_acquire) & kTxReset);
            return done;
        }
        if (follow_sender(fd, f)) {
            if (done != 0 && at_urgent_mark(f))
                return done;
            continue;
        }
        if (done == 0 && socket_has_too_much(fd, f)) [[unlikely]]
            return -EPROTO;
        const bool urgent = minds_mark && is_urgent_in_socket(fd);
        bool ends_here = false;
        const long r = !peek && (has_some || done != 0)
                           ? receive_more_from_socket(fd, to, left, to_socket, &ends_here)
                           : receive_from_socket(fd, to, left, to_socket);
        if (ends_here)
            return done;
        done += r > 0 ? r : 0;
        if (r > 0 && !peek)
            o.rx.s.bytes += static_cast<uint64_t>(r);
        if (static_cast<size_t>(done) == want || (r > 0 && !peek && socket_at_mark(fd)))
            return done;
        const bool ends = peek && socket_ends_after(fd, f, r > 0 ? r : 0);
        if (r > 0 && (minds_mark || ends)) {
            *mark = peek_met_mark(fd, r, is_inline(f), ends ? is_urgent_in_socket(fd) : urgent) ||
                    (ends && ring_at_mark(f, o.rx.s));
            if (*mark)
                return done;
        }
        if (ends) {
            const uint32_t seen = absorb_flags(f);
            RxState copy = o.rx.s;
            std::atomic<uint64_t> scratch{0};
            *end = (seen & kFlagWriteShut) || (o.tx_block.load(std::memory_order_acquire) & kTxReset);
            const long more =
                read_some(f, copy, scratch, to, want - static_cast<size_t>(done), flags & MSG_TRUNC, false);
            if (more > 0 && done != 0 && ring_at_mark(f, o.rx.s)) { // it has come meanwhile
                *mark = true;
                return done;
            }
            *mark = more > 0 && ring_at_mark(f, copy);
            return more > 0 ? done + more : done;
        }
        if (!peek && follow_sender(fd, f)) {
            if (done != 0 && at_urgent_mark(f))
                return done;
            continue;
        }
        if (r > 0 && !peek && sender_is_in_ring(f))
            continue;                          // what is left in the socket, and then what is in the ring
        if (r == 0 && is_reading_stopped(o)) { // by the socket has come what can; the end is in the ring
            if (follow_sender(fd, f))
                continue;
            return done;
        }
        if (r == 0 && o.rx_shut.load(std::memory_order_acquire) && is_open_at_peer(fd)) {
            *end = true; // our own shutdown() ends it, for now
            return done;
        }
        if (r == 0 && rdma::is_remote(*f.link)) [[unlikely]] {
            hear_of_end(f);
            if (follow_sender(fd, f))
                continue;
        }
        if (r == 0)
            learn_of_end(f);
        if (r == 0 || (r > 0 && peek && socket_has_ended(fd)))
            *end = true;
        else if (r < 0 && r != -EAGAIN) {
            const long told = r == -ECONNRESET || r == -EPIPE ? tell_reset(f, r) : r;
            if (told == 0) {
                *end = true;
                return done;
            }
            (void)take_error(o); // it is told now
            if (done)
                o.so_error.store(static_cast<int32_t>(-told), std::memory_order_release);
            return done ? done : told;
        }
        return done;
    }
    return done;
}

// A receiver at the heels of its sender takes every cache line away while the sender still has it in its
// innermost cache, which makes both several times slower. In a long transfer one way it is worth falling
// behind a little whenever the ring is found empty; then lines are fetched from the sender's second-level
// cache, and the ring grows to a size in which that goes on.
constexpr uint64_t kLongTransfer = 2u << 20; ///< ring bytes without a message the other way
constexpr uint64_t kTicksPerByte = 8;        ///< slower than this, nobody is in anybody's way
constexpr uint64_t kFallBehindTicks = 10'000;

struct Chase {
    const Ofd *ofd;
    uint64_t head, since, sent, when;
};
constinit thread_local Chase chase{};

void fall_behind(const Ofd &o) noexcept {
    const uint64_t now = cpu::cycles(), head = o.rx.s.head, sent = o.tx.s.messages;
    const bool fast = chase.ofd == &o && chase.sent == sent && head > chase.head &&
                      now - chase.when < (head - chase.head) * kTicksPerByte;
    chase = {&o, head, fast ? chase.since : head, sent, now};
    if (!fast || head - chase.since < kLongTransfer || core_is_shared())
        return;
    while (cpu::cycles() - now < kFallBehindTicks)
        cpu::pause();
}

/// How often a blocking call looks for what a stranger has shown before it counts as taken back.
constexpr unsigned kLooksInVain = 16;
constexpr int64_t kNapInVainNs = 1'000'000;

/// The connection has moved to the kernel in the middle of a read that wants it all: `done` of `total` bytes
/// are there.
long recv_rest(int fd, IoCursor &to, size_t done, size_t total, int flags) noexcept {
    while ((flags & MSG_WAITALL) && done < total && to.advance() > 0) {
        const size_t left = total - done, n = to.now.iov_len < left ? to.now.iov_len : left;
        const long r = sys::call(SYS_recvfrom, fd, sys::arg(to.now.iov_base), static_cast<long>(n), flags, 0, 0);
        if (r <= 0)
            break;
        to.skip(static_cast<size_t>(r));
        done += static_cast<size_t>(r);
        if (static_cast<size_t>(r) < n) // ended by a signal
            break;
    }
    return static_cast<long>(done);
}

} // namespace

long stream_recv(int fd, File &f, IoCursor &to, size_t total, int flags, uint64_t interrupts) noexcept {
    const ConnectionSnapshot b(f);
    Ofd &o = *b.ofd;
    const uint64_t handled = self.handled;
    Pin pin;
    if (flags & (MSG_OOB | MSG_ERRQUEUE)) {
        if (!pin.acquire(f, fd))
            return -EBADF;
        return flags & MSG_OOB ? recv_urgent(f, to, total, flags) : read_error_queue(f, nullptr, nullptr);
    }
    if (total == 0) { // waits for data like any other, and takes none
        char byte;
        iovec v{&byte, 1};
        IoCursor one{&v, 1};
        long r = stream_recv(fd, f, one, 1, (flags & (MSG_DONTWAIT | MSG_NOSIGNAL)) | MSG_PEEK, interrupts);
        return r > 0 ? 0 : r;
    }
    // As the call found it, whoever changes O_NONBLOCK meanwhile
    const bool nonblocking = is_nonblocking(f, flags);
    long done = 0;
    uint32_t events = 0;
    int64_t deadline = 0;
    unsigned in_vain = 0;
    int32_t low = low_water(o);
    size_t target = flags & MSG_WAITALL                ? total
                    : static_cast<size_t>(low) < total ? static_cast<size_t>(low)
                                                       : total;
    for (;;) {
        long r;
        bool end = false, peeked_to_mark = false, stood_at_mark = false;
        Recipient writer;
        {
            ReceiveClaim c(b, f);
            if (!c)
                return done ? done : c.error();
            if (moved(f, o)) [[unlikely]] {
                c.release();
                if (follow(f))
                    return done == 0 ? vfs::kPass : recv_rest(fd, to, static_cast<size_t>(done), total, flags);
                continue;
            }
            writer = peers_writer(f);
            const bool paths = has_paths(o);
            // Flags before the ring: data published before a FIN is then seen.
            uint32_t seen = paths ? 0 : absorb_flags(f);
            bool path_end = false;
            uncork_overdue(f);
            if (events & EPOLLPRI) [[unlikely]]
                stood_at_mark = ring_at_mark(f, o.rx.s);
            if (paths) [[unlikely]] {
                IoCursor again = to;
                const bool peek = flags & MSG_PEEK;
                done = peek ? 0 : done;
                r = done != 0 && at_urgent_mark(f)
                        ? 0
                        : read_paths(fd, f, peek ? again : to, total - static_cast<size_t>(done), flags,
                                     done != 0, &path_end, &peeked_to_mark);
                if (r > 0 && !peek)
                    ++o.rx.s.messages;
                if (r > 0)
                    note_peeked(o, peek);
            } else if (flags & MSG_PEEK) {
                RxState copy = o.rx.s;
                std::atomic<uint64_t> scratch{0};
                IoCursor again = to;
                r = read_some(f, copy, scratch, again, total, flags & MSG_TRUNC, false);
                peeked_to_mark = r > 0 && ring_at_mark(f, copy);
                done = 0;
            } else if (done != 0 && at_urgent_mark(f)) [[unlikely]] {
                r = 0; // it has come meanwhile
            } else {
                r = read_some(f, o.rx.s, f.mine->credit.consumed, to, total - static_cast<size_t>(done),
                              flags & MSG_TRUNC, is_receive_captured(o));
                if (r > 0) {
                    f.mine->credit.consumed.store(ring::read_up_to(o.rx.s), std::memory_order_release);
                    ++o.rx.s.messages;
                    SD_PROBE2(recv, fd, r);
                }
            }
            if (r > 0 && (flags & MSG_PEEK))
                note_told(f, o.rx.s.bytes + static_cast<uint64_t>(r));
            if (r == 0 || (flags & MSG_PEEK))
                end = (seen & kFlagWriteShut) || path_end || o.rx_shut.load(std::memory_order_acquire) ||
                      (!paths && (o.tx_block.load(std::memory_order_acquire) & kTxReset));
            if (end && (seen & kFlagWriteShut) && r == 0 && is_captured(o)) [[unlikely]]
                capture_end(f, true, CaptureKind::fin);
        }
        // From here on without the token, so that the File may become another's.
        leave_pages_if_told();
        if (r == 0 && done == 0 && !end && nonblocking)
            return -EAGAIN;
        if ((r <= 0 || static_cast<size_t>(done) + static_cast<size_t>(r) < target) && !pin.acquire(f, fd)) {
            if (r <= 0)
                return done ? done : -EBADF;
            writer.tell();
            return done + r;
        }
        if (r == kPoolMissing) [[unlikely]] {
            r = take_pool_of_next(f);
            if (r == 0)
                continue;
        }
        if (r == 0 && !end && !nonblocking && is_taken_back(f)) [[unlikely]] {
            if (in_vain++ < kLooksInVain) { // its path may be about to change
                sys::nap(kNapInVainNs);
                if (self.interrupts != interrupts)
                    return done ? done : -EINTR;
                continue;
            }
            r = -EPROTO;
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
                notify_room(f); // of whatever it is by now: one wake-up too many at worst
        }
        if ((flags & kUpToMark) && at_urgent_mark(f)) [[unlikely]] {
            if (!end)
                return nonblocking ? -EAGAIN : 0;
            done = 0; // what was seen lies behind it
        }
        if (static_cast<size_t>(done) >= target || peeked_to_mark ||
            (done && !(flags & MSG_PEEK) && at_urgent_mark(f)))
            return done;
        if (end) {
            if (done)
                return done;
            // A FIN that came in order is the end of the data whatever happened later; else the error is told
            // once.
            uint32_t seen = o.flags_seen.load(std::memory_order_acquire);
            int e = o.so_error.load(std::memory_order_relaxed);
            if (e == ECONNRESET || !(seen & kFlagWriteShut))
                e = take_error(o);
            else
                e = 0;
            return -e;
        }
        if (nonblocking)
            return done ? done : -EAGAIN;
        // A peer that says again and again that there is something does not put the end off.
        if (deadline == 0)
            deadline = deadline_after(o.rcvtimeo_ns.load(std::memory_order_relaxed));
        else if (is_over(deadline)) [[unlikely]]
            return done ? done : -EAGAIN;
        // A peek or a low-water mark that is not met yet: what is there does not end the wait, so look again
        // from time to time.
        if (r > 0 && (flags & MSG_PEEK)) {
            sys::nap(200'000);
            if (self.handled != handled)
                return done;
            if (deadline != INT64_MAX && sys::now_ns() >= deadline)
                return done;
            continue;
        }
        if (r == 0)
            fall_behind(o);
        // A mark ends the call, or is passed, as soon as it is next, however little is there. The sender
        // announces it first: who is told of one that does not lie there yet looks again.
        if (r == 0 && (events & EPOLLPRI) && !stood_at_mark && urgent_unread(f)) [[unlikely]] {
            sys::nap(50'000);
        }
        const bool told_in_vain = r == 0 && stood_at_mark && urgent_unread(f);
        events = EPOLLIN | EPOLLRDHUP | (told_in_vain ? 0u : EPOLLPRI);
        long w = wait_stream(f, events, done ? unrestartable(deadline) : deadline, interrupts);
        if (w < 0)
            return done ? done : w == -ETIMEDOUT ? -EAGAIN : w;
    }
}

namespace vfs {

namespace {

struct Asked {
    const Ofd *ofd;
    uint64_t sent;
    AnswerHope hope;
};
constinit thread_local Asked asked{};

/// Has nothing been sent since this was last asked of the connection? The first to ask after each message may
/// wait for the answer in a short way.
bool nothing_asked(const Ofd &o) noexcept {
    if (asked.ofd == &o && asked.sent == o.tx.s.messages)
        return true;
    asked.ofd = &o;
    asked.sent = o.tx.s.messages;
    asked.hope.begin();
    return false;
}

/// With the token: the ring is empty. After a message was sent, the answer to it may be there in less time
/// than it takes to prepare for waiting: looks that long, once for each message, so that who only receives
/// falls behind as above.
bool answer_came(const File &f) noexcept {
    if (rdma::is_remote(*f.link)) [[unlikely]] {
        for (unsigned looks = 0; looks < AnswerHope::kWhole / 8; ++looks) {
            rdma::progress();
            if (ring::peek_header(f.ofd->rx.s, f.rx_place) != 0)
                return true;
        }
        return false;
    }
    if (sd_await_word(&ring::next_header(f.ofd->rx.s, f.rx_place), asked.hope.looks()) != 0)
        return true;
    asked.hope.in_vain();
    return false;
}

enum class Brief { no, looked, shared_core };

/// What is there, whole records that fit: bytes, -errno, or 0. `*brief`: in, whether to look for an answer;
/// out, what came of it. `*interrupts`, where it returns 0: handlers that come after the thread had this many
/// end the call, also one that does not sleep yet.
long recv_plain(File &f, void *p, size_t n, int flags, Brief *brief, uint64_t *interrupts) noexcept {
    const ConnectionSnapshot b(f);
    Ofd &o = *b.ofd;
    Claim c(b.seg, o.rx.token, b.rx_token_id());
    if (!c || f.kind != FileKind::stream || o.rcvlowat.load(std::memory_order_relaxed) > 1 || !b.is_of(f))
        [[unlikely]]
        return 0;
    RxState &s = o.rx.s;
    if (f.rx_place.settle(s.cls) < 0) [[unlikely]]
        return 0;
    long done = 0;
    ring::Record rec;
    do {
        if (const uint32_t whole = take_message(f, o, p, n)) {
            c.release();
            notify_room(f);
            return whole;
        }
        while (static_cast<size_t>(done) < n &&
               ring::next_record(s, f.rx_place, f.mine->credit.consumed, &rec) == 1) {
            long r =
                ring::take(s, f.rx_place, rec, static_cast<char *>(p) + done, n - static_cast<size_t>(done));
            if (r < 0) {
                if (done == 0)
                    return r;
                break;
            }
            done += r;
            if (r >= 8192)
                f.mine->credit.consumed.store(ring::read_up_to(s), std::memory_order_release);
        }
        if (done) {
            f.mine->credit.consumed.store(ring::read_up_to(s), std::memory_order_release);
            ++s.messages;
            c.release();
            notify_room(f);
            return done;
        }
        *interrupts = self.interrupts; // with the token, so before any handler that comes during the call
        if (*brief != Brief::looked || is_nonblocking(f, flags) || nothing_asked(o)) {
            *brief = Brief::no;
        } else if (core_is_shared()) { // looking would keep others from it
            *brief = Brief::shared_core;
        }
    } while (*brief == Brief::looked && answer_came(f));
    return 0;
}

/// On a socket that is the kernel's, not connected, or a stream by the time that this has looked.
[[gnu::cold, gnu::noinline]] long recv_not_stream(int fd, File *f, const iovec *iov, int count,
                                                  int flags) noexcept {
    if (joins_now(fd, *f))
        return vfs::recvv(fd, f, iov, count, flags);
    if (may_be_joined(*f))
        return in_kernel(*f, [&] {
            msghdr m{};
            m.msg_iov = const_cast<iovec *>(iov);
            m.msg_iovlen = static_cast<size_t>(count);
            return sys::call(SYS_recvmsg, fd, sys::arg(&m), flags);
        });
    return f->kind == FileKind::fresh && !f->real_socket ? unconnected_recv(*f, flags) : vfs::kPass;
}

} // namespace

long recv(int fd, File *f, void *p, size_t n, int flags) noexcept {
    if (rdma::lost_links.load(std::memory_order_relaxed) != 0) [[unlikely]]
        offer_anew(fd, *f);
    if (f->kind != FileKind::stream) {
        const iovec one{p, clamp_transfer(n)};
        return recv_not_stream(fd, f, &one, 1, flags);
    }
    if (n >= kLeastMapped && may_use_channels()) [[unlikely]]
        prepare_to_map(fd, *f, p, n);
    uint64_t interrupts = self.interrupts;
    // The common case: whole records that fit.
    if (n != 0 && (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) == 0) [[likely]] {
        Brief brief = Brief::looked;
        if (const long r = recv_plain(*f, p, n, flags, &brief, &interrupts)) {
            SD_PROBE2(recv, fd, r);
            return r;
        }
        // Where others want the core, whoever answers is probably one of them, and done when it is our turn
        // again. In a program of one thread only a handler can do anything to the socket meanwhile.
        if (brief == Brief::shared_core && one_thread() &&
            f->ofd->rcvtimeo_ns.load(std::memory_order_relaxed) == 0) {
            const uint64_t handled = self.handled;
            if (give_core_away() && (self.handled == handled || file_of(fd) == f)) {
                uint64_t now;
                if (const long r = recv_plain(*f, p, n, flags, &brief, &now)) {
                    SD_PROBE2(recv, fd, r);
                    return r;
                }
                if (self.interrupts != interrupts)
                    return -EINTR;
            }
        }
    }
    iovec v{p, clamp_transfer(n)};
    IoCursor cur{&v, 1};
    return stream_recv(fd, *f, cur, v.iov_len, flags & ~kUpToMark, interrupts);
}

long recvv(int fd, File *f, const iovec *iov, int count, int flags) noexcept {
    if (f->kind != FileKind::stream)
        return recv_not_stream(fd, f, iov, count, flags);
    long total = iov_total(iov, count);
    if (total < 0)
        return total;
    IoCursor cur{iov, count};
    if (static_cast<size_t>(total) >= kLeastMapped && may_use_channels()) [[unlikely]] {
        IoCursor first = cur;
        if (first.advance() > 0)
            prepare_to_map(fd, *f, first.now.iov_base, first.now.iov_len);
    }
    return stream_recv(fd, *f, cur, static_cast<size_t>(total), flags & ~kUpToMark);
}

} // namespace vfs

} // namespace sd
