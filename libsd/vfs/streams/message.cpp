// sendmsg, recvmsg and their many-message forms on accelerated connections.
#include "libsd/vfs/paths/kernel_calls.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/stream.hpp"
#include "libsd/vfs/streams/stream_send.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstddef>

namespace sd::vfs {

namespace {

/// What the kernel says of a message before it looks at the socket. The name of a sender is read, and means
/// nothing to a connection.
long check_header(const msghdr &h, bool sending) noexcept {
    char name[sizeof(sockaddr_storage)];
    if (h.msg_name && static_cast<int>(h.msg_namelen) < 0)
        return -EINVAL;
    if (sending && h.msg_name &&
        sd_copy(name, h.msg_name, h.msg_namelen < sizeof name ? h.msg_namelen : sizeof name))
        return -EFAULT;
    return h.msg_iovlen > kMaxIov ? -EMSGSIZE : 0;
}

} // namespace

long sendmsg(int fd, File *f, const msghdr *m, int flags) noexcept {
    if (f->kind != FileKind::stream && !joins_now(fd, *f) && may_be_joined(*f)) [[unlikely]]
        return in_kernel(*f, [&] { return sys::call(SYS_sendmsg, fd, sys::arg(m), flags); });
    if (f->kind != FileKind::stream && (f->kind != FileKind::fresh || f->real_socket))
        return kPass;
    msghdr h;
    if (sd_copy(&h, m, sizeof h))
        return -EFAULT;
    if (long r = check_header(h, true); r < 0)
        return r;
    if (h.msg_controllen && f->kind == FileKind::stream) [[unlikely]]
        if (long r = check_control(h); r < 0) {
            const PinnedFile use(fd, f);
            if (!use.file())
                return -EBADF;
            // A connection that takes no more data says so first, also if nobody has noticed yet.
            absorb_flags(*f);
            const long blocked = f->ofd->tx_block.load() & kTxEnded ? send_blocked(*f, flags) : 0;
            return blocked < 0 ? blocked : r;
        }
    return sendv(fd, f, h.msg_iov, static_cast<int>(h.msg_iovlen), flags);
}

long recvmsg(int fd, File *f, msghdr *m, int flags) noexcept {
    if (f->kind != FileKind::stream && !joins_now(fd, *f) && may_be_joined(*f)) [[unlikely]]
        return in_kernel(*f, [&] { return sys::call(SYS_recvmsg, fd, sys::arg(m), flags); });
    if (f->kind != FileKind::stream && (f->kind != FileKind::fresh || f->real_socket))
        return kPass;
    msghdr h;
    if (sd_copy(&h, m, sizeof h))
        return -EFAULT;
    if (long r = check_header(h, false); r < 0)
        return r;
    if ((flags & MSG_ERRQUEUE) && f->kind == FileKind::stream) [[unlikely]] {
        const PinnedFile use(fd, f);
        return use.file() ? read_error_queue(*f, m, &h) : -EBADF;
    }
    long r = recvv(fd, f, h.msg_iov, static_cast<int>(h.msg_iovlen), flags & ~MSG_CMSG_CLOEXEC);
    if (r < 0)
        return r;
    // TCP fills in no name and no ancillary data.
    socklen_t no_name = 0;
    size_t no_control = 0;
    int no_flags = flags & (MSG_CMSG_CLOEXEC | MSG_OOB);
    auto at = [m](size_t offset) { return reinterpret_cast<char *>(m) + offset; };
    if ((h.msg_name && sd_copy(at(offsetof(msghdr, msg_namelen)), &no_name, sizeof no_name)) ||
        sd_copy(at(offsetof(msghdr, msg_controllen)), &no_control, sizeof no_control) ||
        sd_copy(at(offsetof(msghdr, msg_flags)), &no_flags, sizeof no_flags))
        return -EFAULT;
    return r;
}

long sendmmsg(int fd, File *f, mmsghdr *m, unsigned n, int flags) noexcept {
    leave_unjoined(fd, *f);
    if (f->kind != FileKind::stream && (f->kind != FileKind::fresh || f->real_socket))
        return kPass;
    if (n > kMaxIov)
        n = kMaxIov;
    const PinnedFile use(fd, f);
    if (!use.file())
        return -EBADF;
    unsigned done = 0;
    for (; done < n; ++done) {
        long r = sendmsg(fd, f, &m[done].msg_hdr, flags);
        if (r < 0)
            return done ? static_cast<long>(done) : r;
        unsigned len = static_cast<unsigned>(r);
        if (sd_copy(&m[done].msg_len, &len, sizeof len))
            return done ? static_cast<long>(done) : -EFAULT;
    }
    return static_cast<long>(done);
}

long recvmmsg(int fd, File *f, mmsghdr *m, unsigned n, int flags, timespec *timeout) noexcept {
    leave_unjoined(fd, *f);
    if (f->kind != FileKind::stream && (f->kind != FileKind::fresh || f->real_socket))
        return kPass;
    timespec limit{};
    if (timeout && sd_copy(&limit, timeout, sizeof limit))
        return -EFAULT;
    if (timeout && (limit.tv_sec < 0 || limit.tv_nsec < 0 || limit.tv_nsec >= 1'000'000'000))
        return -EINVAL;
    const PinnedFile use(fd, f);
    if (!use.file())
        return -EBADF;
    // As in the kernel, an error that waits is told before anything is read.
    if (f->kind == FileKind::stream && !(flags & MSG_ERRQUEUE)) {
        absorb_flags(*f);
        if (const int e = has_paths(*f->ofd) ? take_path_error(fd, *f) : take_error(*f->ofd))
            return -e;
    }
    const int64_t end =
        timeout ? sys::now_ns() + int64_t{limit.tv_sec} * 1'000'000'000 + limit.tv_nsec : INT64_MAX;
    unsigned done = 0;
    for (; done < n && done < kMaxIov; ++done) {
        long r = recvmsg(fd, f, &m[done].msg_hdr, flags & ~MSG_WAITFORONE);
        if (r < 0) {
            if (done == 0)
                return r;
            break;
        }
        unsigned len = static_cast<unsigned>(r);
        if (sd_copy(&m[done].msg_len, &len, sizeof len))
            return done ? static_cast<long>(done) : -EFAULT;
        if (flags & MSG_WAITFORONE)
            flags |= MSG_DONTWAIT;
        if (sys::now_ns() >= end) { // as in the kernel, looked at only after a message came
            ++done;
            break;
        }
    }
    return static_cast<long>(done);
}

} // namespace sd::vfs
