// What the kernel socket of a connection with paths does while a direction goes over it.
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/paths/counts.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

namespace sd {

namespace {

constexpr short kAll = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP;

uint32_t socket_events(int fd) noexcept {
    const auto look = [fd]() -> uint32_t {
        pollfd p{fd, kAll, 0};
        timespec zero{0, 0};
        return fd >= 0 && sys::ppoll(&p, 1, &zero, nullptr) > 0 ? static_cast<uint16_t>(p.revents) : 0;
    };
    const uint32_t now = look();
    if ((now & (POLLERR | POLLHUP)) != POLLERR) [[likely]]
        return now;
    // A reset sets the error before the rest, and the peer's ring may have us look in between. It has the
    // socket's lock meanwhile, which this question waits for.
    (void)socket_pending(fd);
    return look();
}

uint32_t events_now(File &f) noexcept {
    Ofd &o = *f.ofd;
    const int fd = path_socket(f);
    rdma::progress();
    if (is_told_home(f)) [[unlikely]]
        answer_call_home(f);
    if (is_reading_stopped(o)) [[unlikely]]
        if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
            follow_sender(fd, f);
    const bool sends_ring = sends_in_ring(o), reads_ring = next_is_in_ring(fd, f);
    const bool to_ring = !reads_ring && sender_is_in_ring(f); // behind what is left in the socket
    const bool any_ring = sends_ring || receives_in_ring(o) || reads_ring || to_ring;
    const uint32_t flags = any_ring ? absorb_flags(f) : 0;
    // An urgent byte may be the last of the socket.
    const bool only_ring = sends_ring && reads_ring && receives_in_ring(o);
    const uint32_t socket = only_ring ? 0 : socket_events(fd);
    const uint32_t block = o.tx_block.load(std::memory_order_acquire);
    const bool reset = block & kTxReset;
    const bool we_shut = reset || (block & kTxShut);
    const bool ring_shut = flags & kFlagWriteShut;
    const bool peer_shut =
        reads_ring ? reset || ring_shut : (socket & POLLRDHUP) || (to_ring && ring_shut && (socket & POLLIN));
    const bool rcv_shut = peer_shut || o.rx_shut.load(std::memory_order_acquire);
    // A reset that the link has told of the socket still has to tell
    uint32_t e = socket & ((reset ? 0u : POLLERR) | POLLPRI | POLLHUP);
    if (reads_ring && any_ring && peer_has_corked(f)) [[unlikely]]
        take_overdue(f);
    if (rcv_shut)
        e |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (!(e & EPOLLIN)) {
        const int32_t low = low_water(o);
        if (receives_in_ring(o) && !is_inline(f) && at_urgent_mark(f)) [[unlikely]] {
            const int32_t more = low + 1; // the urgent byte itself will not be read
            const long behind = sender_is_in_ring(f) ? 0 : socket_pending(fd);
            if (ring::available(o.rx.s, f.rx_place, static_cast<uint64_t>(more)) + behind >= more)
                e |= EPOLLIN | EPOLLRDNORM;
        } else if (low > 1) {
            if (pending_in_both(fd, f, static_cast<uint64_t>(low)) >= low)
                e |= EPOLLIN | EPOLLRDNORM;
        } else if (reads_ring ? rx_pending(f) : socket & POLLIN) {
            e |= EPOLLIN | EPOLLRDNORM;
        }
    }
    if (rcv_shut && we_shut)
        e |= EPOLLHUP;
    if (we_shut || (sends_ring ? (flags & (kFlagClosed | kFlagReset)) || tx_room(f) : socket & POLLOUT))
        e |= EPOLLOUT | EPOLLWRNORM;
    if (urgent_unread(f)) [[unlikely]]
        e |= EPOLLPRI;
    if (o.so_error.load(std::memory_order_acquire) || completions_pending(o))
        e |= EPOLLERR;
    return e;
}

} // namespace

uint32_t path_events(File &f) noexcept {
    constexpr unsigned kLooksAgain = 64;
    for (unsigned n = 0;; ++n) {
        const ReadingPlace before = reading_place(f);
        const uint32_t e = events_now(f);
        if ((e & EPOLLIN) || reading_place(f) == before || n == kLooksAgain)
            return e;
    }
}

namespace {

constexpr size_t kPieces = 16; // one call for them, so that the kernel sees what belongs together

/// The next pieces of a list, of at most `want` bytes; what they are together. `*error`: a bad list.
size_t gather(const IoCursor &from, iovec *pieces, size_t most, size_t want, msghdr *m, long *error) noexcept {
    size_t bytes = 0;
    m->msg_iov = pieces;
    *error = 0;
    for (IoCursor ahead = from; m->msg_iovlen < most && bytes < want;) {
        if (const int more = ahead.advance(); more <= 0) {
            *error = more;
            break;
        }
        iovec &piece = pieces[m->msg_iovlen++];
        piece = ahead.now;
        piece.iov_len = piece.iov_len < want - bytes ? piece.iov_len : want - bytes;
        bytes += piece.iov_len;
        ahead.skip(ahead.now.iov_len);
    }
    return bytes;
}

void skip(IoCursor &in, size_t bytes) noexcept {
    while (bytes != 0 && in.advance() > 0) {
        const size_t n = bytes < in.now.iov_len ? bytes : in.now.iov_len;
        in.skip(n);
        bytes -= n;
    }
}

} // namespace

long send_to_socket(int fd, IoCursor &from, int flags) noexcept {
    // In a sandbox only calls without an address are allowed, and no messages
    // (libsd/api/processes/sandbox.cpp)
    const size_t most = sandboxed() ? 1 : kPieces;
    long done = 0;
    for (;;) {
        iovec pieces[kPieces];
        msghdr m{};
        long error;
        const size_t asked = gather(from, pieces, most, SIZE_MAX, &m, &error);
        if (asked == 0 && (error != 0 || done != 0))
            return done ? done : error;
        if (asked == 0) // it says what is wrong with the connection
            pieces[0] = from.now;
        // What comes in one call is one piece for TCP, too, of which the last byte may be urgent.
        IoCursor behind = from;
        skip(behind, asked);
        const int how = asked != 0 && behind.advance() > 0 ? (flags & ~MSG_OOB) | MSG_MORE : flags;
        const long r =
            m.msg_iovlen <= 1
                ? sys::call(SYS_sendto, fd, sys::arg(pieces[0].iov_base),
                            static_cast<long>(pieces[0].iov_len), how | MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0)
                : sys::call(SYS_sendmsg, fd, sys::arg(&m), how | MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r < 0)
            return done ? done : r;
        skip(from, static_cast<size_t>(r));
        done += r;
        if (static_cast<size_t>(r) < asked || asked == 0)
            return done;
    }
}

long receive_from_socket(int fd, IoCursor &to, size_t want, int flags) noexcept {
    const size_t most = sandboxed() ? 1 : kPieces;
    const int how = (flags & ~MSG_WAITALL) | MSG_DONTWAIT;
    long done = 0;
    while (static_cast<size_t>(done) < want) {
        iovec pieces[kPieces];
        msghdr m{};
        long error;
        const size_t asked = gather(to, pieces, most, want - static_cast<size_t>(done), &m, &error);
        if (asked == 0)
            return done ? done : error;
        const long r = m.msg_iovlen == 1 ? sys::call(SYS_recvfrom, fd, sys::arg(pieces[0].iov_base),
                                                     static_cast<long>(pieces[0].iov_len), how, 0, 0)
                                         : sys::call(SYS_recvmsg, fd, sys::arg(&m), how);
        if (r <= 0)
            return done ? done : r;
        skip(to, static_cast<size_t>(r));
        done += r;
        // Another peek would begin at the front again. Another read could begin at an urgent byte, or take an
        // error away.
        if (static_cast<size_t>(r) < asked || (flags & MSG_PEEK) || socket_pending(fd) <= 0 || socket_at_mark(fd))
            return done;
    }
    return done;
}

// In this order: the first byte of a read may be urgent, and one that comes between the question and the read
// would be that. A byte that was seen before the question is the one that is asked about.
long receive_more_from_socket(int fd, IoCursor &to, size_t want, int flags, bool *ends) noexcept {
    char byte;
    const long seen = sys::call(SYS_recvfrom, fd, sys::arg(&byte), 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
    if (seen == 0 || (seen < 0 && seen != -EAGAIN))
        return seen;
    *ends = socket_at_mark(fd);
    return *ends || seen < 0 ? -EAGAIN : receive_from_socket(fd, to, want, flags);
}

bool socket_at_mark(int fd) noexcept {
    int at = 0;
    return sys::ioctl(fd, SIOCATMARK, &at) == 0 && at != 0;
}

bool is_urgent_in_socket(int fd) noexcept { return socket_events(fd) & POLLPRI; }

// TCP_INQ has the kernel tell with a read how much was left, whatever mark lies there. Nobody sees it
// switched on: reads are made with the receive token in hand, and so is the question whether it is on
// (stream_get).
long pending_behind_mark(int fd) noexcept {
    const auto set = [fd](int on) { return sys::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on); };
    int was_on = 0;
    socklen_t n = sizeof was_on;
    if (sandboxed() || sys::getsockopt(fd, IPPROTO_TCP, TCP_INQ, &was_on, &n) < 0 || (!was_on && set(1) < 0))
        return -1;
    char byte;
    alignas(cmsghdr) char notes[256]; // with time stamps, and what else the program has asked for
    iovec piece{&byte, 1};
    msghdr m{};
    m.msg_iov = &piece;
    m.msg_iovlen = 1;
    m.msg_control = notes;
    m.msg_controllen = sizeof notes;
    const bool peeked = sys::call(SYS_recvmsg, fd, sys::arg(&m), MSG_PEEK | MSG_DONTWAIT) == 1;
    if (!was_on)
        (void)set(0);
    int waiting = -1;
    for (cmsghdr *c = peeked ? CMSG_FIRSTHDR(&m) : nullptr; c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ)
            memcpy(&waiting, CMSG_DATA(c), sizeof waiting);
    return waiting;
}

// What ends a peek may as well be that no more had come. So a mark counts that was there before the peek, or
// one that ends what the kernel counts, as long as that is what was seen.
bool peek_met_mark(int fd, long peeked, bool in_line, bool was_urgent) noexcept {
    if (socket_at_mark(fd)) // which it has passed
        return false;
    if (in_line || sandboxed())
        return was_urgent;
    // One that recv(MSG_OOB) has taken ends a read, too. A FIN counts as well, and ends the call in any case.
    return socket_pending(fd) == peeked && pending_behind_mark(fd) > peeked && socket_pending(fd) == peeked;
}

bool socket_has_ended(int fd) noexcept { return socket_events(fd) & (POLLRDHUP | POLLHUP | POLLERR); }

bool socket_was_reset(int fd) noexcept {
    constexpr uint32_t kReset = POLLHUP | POLLERR; // one alone: both have ended; something in the error queue
    return (socket_events(fd) & kReset) == kReset;
}

short socket_wait(int fd, File &f, uint32_t events) noexcept {
    short wanted = 0;
    if ((events & (EPOLLIN | EPOLLRDHUP)) && !next_is_in_ring(fd, f)) {
        const bool shut = f.peer->control.flags.load(std::memory_order_acquire) & kFlagWriteShut;
        wanted |= (events & EPOLLIN || (shut && sender_is_in_ring(f)) ? POLLIN : 0) | POLLRDHUP;
    }
    if ((events & EPOLLPRI) && !receives_in_ring(*f.ofd))
        wanted |= POLLPRI;
    if ((events & EPOLLOUT) && !sends_in_ring(*f.ofd))
        wanted |= POLLOUT;
    return wanted;
}

bool left_in_socket(File &f) noexcept {
    return !receives_in_ring(*f.ofd) && socket_pending(path_socket(f)) > 0;
}

void reset_socket(const File &f) noexcept {
    if (((f.ofd->opt.*kPathStays).load(std::memory_order_relaxed) & kStaysPinned) || sandboxed())
        return; // others may have it, or a filter may end us for the call
    const linger now{1, 0};
    sys::setsockopt(path_socket(f), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

long shut_socket(int fd, File &f, int how) noexcept {
    // What lies in the ring comes before the FIN: the flag in the slot says so there, and the socket's own
    // comes when it is closed.
    if (how != SHUT_RD && sends_in_ring(*f.ofd))
        how = how == SHUT_RDWR ? SHUT_RD : -1;
    return how < 0 ? 0 : sys::call(SYS_shutdown, fd, how);
}

long tell_reset(File &f, long error) noexcept {
    Ofd &o = *f.ofd;
    const bool by_link = o.tx_block.load(std::memory_order_acquire) & kTxReset;
    absorb_flags(f); // for what else they say
    const int waiting = take_error(o);
    if (by_link)
        return -waiting;
    o.flags_seen.fetch_or(kFlagReset, std::memory_order_acq_rel);
    o.tx_block.fetch_or(kTxReset, std::memory_order_release);
    return error;
}

void learn_of_end(File &f) noexcept {
    // Who ends its direction, or closes, says so in the slot before the FIN goes out.
    constexpr uint32_t kSaid = kFlagWriteShut | kFlagClosed | kFlagReset | kFlagDead;
    Ofd &o = *f.ofd;
    const bool said = f.peer->control.flags.load(std::memory_order_acquire) & kSaid;
    absorb_flags(f);
    if (said || !sends_in_ring(o) || ring::all_uncorked_taken(o.tx.s, f.mine->control.back, f.peer->credit))
        return;
    if (o.flags_seen.fetch_or(kFlagReset, std::memory_order_acq_rel) & kFlagReset)
        return;
    o.so_error.store(ECONNRESET, std::memory_order_release);
    o.tx_block.fetch_or(kTxReset, std::memory_order_release);
}

bool death_was_reset(const File &f) noexcept {
    // The monitor may hear of a death before the kernel has closed all sockets of the dead.
    timespec patience{0, 20'000'000};
    const int fd = path_socket(f);
    if (fd < 0 || !sender_is_in_ring(f))
        return false;
    const uint64_t written = f.peer->credit.path.from.load(std::memory_order_relaxed);
    for (bool waited = rdma::is_remote(*f.link);; waited = true) {
        tcp_info info{};
        if (!ask_info(fd, &info) || info.tcpi_bytes_received > written)
            return false;
        if (info.tcpi_state == kTcpClose || waited)
            return info.tcpi_state == kTcpClose;
        pollfd end{fd, POLLRDHUP, 0};
        sys::ppoll(&end, 1, &patience, nullptr);
    }
}

int take_path_error(int fd, File &f) noexcept {
    Ofd &o = *f.ofd;
    const bool by_link = o.tx_block.load(std::memory_order_acquire) & kTxReset;
    int kernels = 0;
    socklen_t n = sizeof kernels;
    (void)sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &kernels, &n); // fails where there is no socket any more
    const int ours = take_error(o);
    if (by_link)
        return ours;
    if (kernels == ECONNRESET && (f.peer->control.flags.load(std::memory_order_acquire) & kFlagWriteShut))
        kernels = EPIPE; // of an end that came by the ring the kernel does not know
    if (kernels == ECONNRESET || kernels == EPIPE)
        kernels = static_cast<int>(-tell_reset(f, -kernels));
    return ours ? ours : kernels;
}

} // namespace sd
