// Packets to and from the monitor.
#include "libsd/control/packets.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sys.hpp"
#include <cstring>

namespace sd::control {

namespace {
SD_FORK_STATE uint32_t sequence = 0;
} // namespace

uint32_t next_sequence() noexcept {
    if (++sequence == wire::kNoAnswer)
        ++sequence;
    return sequence;
}

wire::Header make_header(wire::Op op, uint32_t number, size_t length, unsigned nfds) noexcept {
    wire::Header h{};
    h.magic = wire::kMagic;
    h.version = wire::kVersion;
    h.op = static_cast<uint16_t>(op);
    h.sequence = number;
    h.length = static_cast<uint16_t>(length);
    h.fds = nfds;
    return h;
}

long send_packet(int fd, const wire::Header &h, const void *body, const int *fds, int flags) noexcept {
    iovec iov[2] = {{const_cast<wire::Header *>(&h), sizeof h}, {const_cast<void *>(body), h.length}};
    alignas(cmsghdr) char ctl[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
    msghdr m{};
    m.msg_iov = iov;
    m.msg_iovlen = h.length ? 2 : 1;
    if (h.fds) {
        m.msg_control = ctl;
        m.msg_controllen = CMSG_LEN(sizeof(int) * h.fds); // not the padding behind it, which is not written
        cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * h.fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * h.fds);
    }
    long n;
    while ((n = sys::sendmsg(fd, &m, flags | MSG_NOSIGNAL)) == -EINTR) {
    }
    return n;
}

int receive_answer(int fd, uint32_t number, Reply *r) noexcept {
    for (;;) {
        wire::Header rh;
        iovec riov[2] = {{&rh, sizeof rh}, {r->body, sizeof r->body}};
        alignas(cmsghdr) char ctl[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
        msghdr rm{};
        rm.msg_iov = riov;
        rm.msg_iovlen = 2;
        rm.msg_control = ctl;
        rm.msg_controllen = sizeof ctl;
        long n;
        while ((n = sys::recvmsg(fd, &rm, MSG_CMSG_CLOEXEC)) == -EINTR) {
        }
        r->fds = 0;
        if (n >= 0)
            for (cmsghdr *c = CMSG_FIRSTHDR(&rm); c; c = CMSG_NXTHDR(&rm, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                    r->fds = static_cast<unsigned>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                    memcpy(r->fd, CMSG_DATA(c), r->fds * sizeof(int));
                }
        bool sane = n >= static_cast<long>(sizeof rh) && rh.magic == wire::kMagic &&
                    static_cast<size_t>(n) == sizeof rh + rh.length && !(rm.msg_flags & MSG_TRUNC);
        if (sane && rh.sequence == number) {
            if (rh.version != wire::kVersion) {
                r->status = -EPROTO;
                r->cause = Cause::monitor_version;
                return -1;
            }
            r->status = rh.status;
            r->cause = static_cast<Cause>(rh.cause);
            r->length = rh.length;
            if (rm.msg_flags & MSG_CTRUNC) { // no number was left for a descriptor
                close_received(*r);
                r->status = -EMFILE;
            }
            return 0;
        }
        close_received(*r);
        if (n <= 0 || !sane) { // closed, timed out, or not our protocol
            r->status = n < 0 ? n : -ECONNRESET;
            if (n > 0)
                r->cause = Cause::monitor_version;
            return -1;
        }
    }
}

namespace {

/// A packet that could not be sent for the descriptors in it, one that another thread has closed just now for
/// instance, says nothing against the channel.
bool is_about_descriptors(long error, int channel) noexcept {
    return error == -ETOOMANYREFS || (error == -EBADF && sys::fcntl(channel, F_GETFD) >= 0);
}

} // namespace

int exchange(int fd, wire::Op op, const void *body, size_t length, const int *fds, unsigned nfds,
             Reply *r) noexcept {
    const wire::Header h = make_header(op, next_sequence(), length, nfds);
    if (const long n = send_packet(fd, h, body, fds); n < 0) {
        r->status = n;
        return is_about_descriptors(n, fd) ? 0 : -1;
    }
    return receive_answer(fd, h.sequence, r);
}

SD_FORK_CODE long PlainPacket::send(int fd, wire::Op op, uint32_t number, const void *from,
                                    size_t length) noexcept {
    header = make_header(op, number, length, 0);
    if (length)
        memcpy(body, from, length);
    long n;
    while ((n = sys::write(fd, this, sizeof header + length)) == -EINTR) {
    }
    return n;
}

int exchange_sandboxed(int fd, wire::Op op, const void *body, size_t length, Reply *r) noexcept {
    PlainPacket packet{};
    r->status = -EPERM;
    if (length > sizeof packet.body)
        return 0;
    const uint32_t mine = next_sequence();
    long n = packet.send(fd, op, mine, body, length);
    while (n >= 0) {
        while ((n = sys::read(fd, &packet, sizeof packet)) == -EINTR) { // bounded by SO_RCVTIMEO
        }
        if (n < static_cast<long>(sizeof packet.header) || packet.header.sequence == mine)
            break;
    }
    if (n < static_cast<long>(sizeof packet.header) || packet.header.magic != wire::kMagic) {
        r->status = n < 0 ? n : -ECONNRESET;
        return -1;
    }
    r->status = packet.header.status;
    r->length = packet.header.length <= sizeof r->body ? packet.header.length : 0;
    memcpy(r->body, packet.body, r->length);
    return 0;
}

} // namespace sd::control
