// Sending and receiving.
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/vfs/streams/fast_path.hpp"
#include <climits>
#include <pthread.h>
#include <sys/sendfile.h>

using namespace sd;

namespace {

/// True when the kernel answers a vector call before any socket sees it: an impossible count, a bad array, or
/// nothing asked for.
bool for_kernel(const iovec *parts, int count) noexcept {
    iovec first;
    if (count <= 0 || count > IOV_MAX || sd_copy(&first, parts, sizeof first)) [[unlikely]]
        return true;
    if (first.iov_len != 0) [[likely]]
        return false;
    for (int i = 1; i < count; ++i)
        if (parts[i].iov_len != 0)
            return false;
    return true;
}

/// The kernel takes a sender's address, looks at its size and at nothing else when TCP is connected.
long check_target(const sockaddr *address, socklen_t size) noexcept {
    char copy[sizeof(sockaddr_storage)];
    if (!address)
        return 0;
    if (size > sizeof copy)
        return -EINVAL;
    return sd_copy(copy, address, size) ? -EFAULT : 0;
}

/// After data came: TCP reports an empty source address. A bad pointer or size is found when the data is
/// consumed already.
long report_no_source(const sockaddr *address, socklen_t *size) noexcept {
    if (!address)
        return 0;
    socklen_t value = 0;
    if (sd_copy(&value, size, sizeof value))
        return -EFAULT;
    if (static_cast<int>(value) < 0)
        return -EINVAL;
    value = 0;
    return sd_copy(size, &value, sizeof value) ? -EFAULT : 0;
}

/// Descriptors that came with a message of an AF_UNIX socket.
void note_received(const msghdr *m) noexcept {
    for (auto *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(const_cast<msghdr *>(m), c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; ++i) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            number_received(fd);
            claim_parcel(noted(fd));
        }
    }
}

/// Does the message pass descriptors of ours? A message that cannot be read is the kernel's to refuse.
bool passes_ours(const msghdr *m) noexcept {
    if (fd_high.load(std::memory_order_relaxed) == 0)
        return false; // nothing here was ever ours
    install_fault_handler();
    msghdr copy;
    return sd_copy(&copy, m, sizeof copy) == 0 && copy.msg_controllen != 0 && OutgoingRights::concerns(copy);
}

/// With descriptors of ours in the control data, which mean nothing to the receiver as they are.
ssize_t send_rights(int fd, const msghdr *m, int flags) noexcept {
    msghdr copy = *m;
    OutgoingRights rights;
    if (long r = rights.rewrite(copy, alloca(copy.msg_controllen)); r < 0)
        return answer<ssize_t>(r);
    return real.sendmsg(fd, &copy, flags);
}

/// sendmmsg, where some message passes descriptors of ours.
int send_one_by_one(int fd, mmsghdr *m, unsigned count, int flags) noexcept {
    unsigned done = 0;
    for (; done < count; ++done) {
        const ssize_t r = sendmsg(fd, &m[done].msg_hdr, flags);
        if (r < 0)
            break;
        m[done].msg_len = static_cast<unsigned>(r);
    }
    return done ? static_cast<int>(done) : -1;
}

/// RWF_* flags of preadv2 and pwritev2 as a stream socket takes them; -1: leave the answer to the kernel.
int rwf_to_msg(int flags) noexcept {
    if (flags & ~(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND))
        return -1;
    return flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
}

} // namespace

namespace {

// The first thing a call tries on what entry_of() gave, unless it has to see first whether its thread was
// cancelled.
[[gnu::always_inline]] inline long try_send(int fd, File *f, const void *p, size_t n, int flags) noexcept {
    return cancellation_asked.load(std::memory_order_relaxed) ? 0 : fast_send(fd, *f, p, n, flags);
}
[[gnu::always_inline]] inline long try_recv(int fd, File *f, void *p, size_t n, int flags) noexcept {
    return cancellation_asked.load(std::memory_order_relaxed) ? 0 : fast_recv(fd, *f, p, n, flags);
}

/// read() of a number that has the entry `e`. Apart, as the others like it, so that other descriptors cost no
/// stack frame.
[[gnu::noinline]] ssize_t read_entry(int fd, void *buffer, size_t size, File *e) {
    if (const long r = try_recv(fd, e, buffer, size, 0)) [[likely]]
        return r;
    File *f = called_on(fd);
    if (!f)
        return real.read(fd, buffer, size);
    // Answered before any socket is asked; recv() of nothing waits for data instead
    if (size == 0) [[unlikely]]
        return real.read(fd, buffer, size);
    if (impossible_range(buffer, size)) [[unlikely]]
        return answer<ssize_t>(-EFAULT);
    long r = vfs::recv(fd, f, buffer, clamp_transfer(size), 0);
    return r == vfs::kPass ? real.read(fd, buffer, size) : answer<ssize_t>(r);
}

[[gnu::noinline]] ssize_t write_entry(int fd, const void *buffer, size_t size, File *e) {
    if (const long r = try_send(fd, e, buffer, size, 0)) [[likely]]
        return r;
    File *f = called_on(fd);
    if (!f)
        return real.write(fd, buffer, size);
    if (impossible_range(buffer, size)) [[unlikely]]
        return answer<ssize_t>(-EFAULT);
    long r = vfs::send(fd, f, buffer, clamp_transfer(size), 0);
    return r == vfs::kPass ? real.write(fd, buffer, size) : answer<ssize_t>(r);
}

} // namespace

SD_EXPORT ssize_t read(int fd, void *buffer, size_t size) {
    File *e = entry_of(fd);
    return e ? read_entry(fd, buffer, size, e) : real.read(fd, buffer, size);
}
SD_ALIAS(__read, read);

SD_EXPORT ssize_t __read_chk(int fd, void *buffer, size_t size, size_t room) {
    if (size > room)
        __chk_fail();
    return read(fd, buffer, size);
}

SD_EXPORT ssize_t write(int fd, const void *buffer, size_t size) {
    File *e = entry_of(fd);
    return e ? write_entry(fd, buffer, size, e) : real.write(fd, buffer, size);
}
SD_ALIAS(__write, write);

SD_EXPORT ssize_t readv(int fd, const iovec *parts, int count) {
    File *f = called_on(fd);
    if (!f) [[likely]]
        return real.readv(fd, parts, count);
    if (for_kernel(parts, count)) [[unlikely]]
        return real.readv(fd, parts, count);
    long r = vfs::recvv(fd, f, parts, count, 0);
    return r == vfs::kPass ? real.readv(fd, parts, count) : answer<ssize_t>(r);
}

SD_EXPORT ssize_t writev(int fd, const iovec *parts, int count) {
    if (File *e = count == 1 ? entry_of(fd) : nullptr)
        if (iovec one; sd_copy(&one, parts, sizeof one) == 0)
            if (const long r = try_send(fd, e, one.iov_base, one.iov_len, 0))
                return r;
    File *f = called_on(fd);
    if (!f) [[likely]]
        return real.writev(fd, parts, count);
    if (for_kernel(parts, count)) [[unlikely]]
        return real.writev(fd, parts, count);
    long r = vfs::sendv(fd, f, parts, count, 0);
    return r == vfs::kPass ? real.writev(fd, parts, count) : answer<ssize_t>(r);
}

SD_EXPORT ssize_t preadv2(int fd, const iovec *parts, int count, off_t offset, int flags) {
    File *f = called_on(fd);
    int msg_flags = rwf_to_msg(flags);
    if (!f || offset != -1 || msg_flags < 0 || for_kernel(parts, count)) [[likely]]
        return real.preadv2(fd, parts, count, offset, flags);
    long r = vfs::recvv(fd, f, parts, count, msg_flags);
    return r == vfs::kPass ? real.preadv2(fd, parts, count, offset, flags) : answer<ssize_t>(r);
}
SD_ALIAS(preadv64v2, preadv2);

SD_EXPORT ssize_t pwritev2(int fd, const iovec *parts, int count, off_t offset, int flags) {
    File *f = called_on(fd);
    int msg_flags = rwf_to_msg(flags);
    if (!f || offset != -1 || msg_flags < 0 || for_kernel(parts, count)) [[likely]]
        return real.pwritev2(fd, parts, count, offset, flags);
    long r = vfs::sendv(fd, f, parts, count, msg_flags);
    return r == vfs::kPass ? real.pwritev2(fd, parts, count, offset, flags) : answer<ssize_t>(r);
}
SD_ALIAS(pwritev64v2, pwritev2);

namespace {

[[gnu::noinline]] ssize_t recv_entry(int fd, void *buffer, size_t size, int flags, File *e) {
    if (const long r = try_recv(fd, e, buffer, size, flags)) [[likely]]
        return r;
    File *f = called_on(fd);
    if (!f)
        return real.recv(fd, buffer, size, flags);
    long r = vfs::recv(fd, f, buffer, clamp_transfer(size), flags);
    return r == vfs::kPass ? real.recv(fd, buffer, size, flags) : answer<ssize_t>(r);
}

[[gnu::noinline]] ssize_t send_entry(int fd, const void *buffer, size_t size, int flags, File *e) {
    if (const long r = try_send(fd, e, buffer, size, flags)) [[likely]]
        return r;
    File *f = called_on(fd);
    if (!f)
        return real.send(fd, buffer, size, flags);
    long r = vfs::send(fd, f, buffer, clamp_transfer(size), flags);
    return r == vfs::kPass ? real.send(fd, buffer, size, flags) : answer<ssize_t>(r);
}

} // namespace

SD_EXPORT ssize_t recv(int fd, void *buffer, size_t size, int flags) {
    File *e = entry_of(fd);
    return e ? recv_entry(fd, buffer, size, flags, e) : real.recv(fd, buffer, size, flags);
}

SD_EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t size, size_t room, int flags) {
    if (size > room)
        __chk_fail();
    return recv(fd, buffer, size, flags);
}

SD_EXPORT ssize_t recvfrom(int fd, void *buffer, size_t size, int flags, sockaddr *from, socklen_t *from_size) {
    if (File *e = entry_of(fd); e && !from)
        if (const long r = try_recv(fd, e, buffer, size, flags))
            return r;
    File *f = called_on(fd);
    if (!f) [[likely]]
        return real.recvfrom(fd, buffer, size, flags, from, from_size);
    long r = vfs::recv(fd, f, buffer, clamp_transfer(size), flags);
    if (r == vfs::kPass)
        return real.recvfrom(fd, buffer, size, flags, from, from_size);
    if (r >= 0 && from) [[unlikely]] {
        if (long bad = report_no_source(from, from_size); bad < 0)
            r = bad;
    }
    return answer<ssize_t>(r);
}

SD_EXPORT ssize_t __recvfrom_chk(int fd, void *buffer, size_t size, size_t room, int flags, sockaddr *from,
                                 socklen_t *from_size) {
    if (size > room)
        __chk_fail();
    return recvfrom(fd, buffer, size, flags, from, from_size);
}

SD_EXPORT ssize_t recvmsg(int fd, msghdr *m, int flags) {
    File *f = called_on(fd);
    if (f) [[unlikely]] {
        long r = vfs::recvmsg(fd, f, m, flags);
        if (r != vfs::kPass)
            return answer<ssize_t>(r);
    }
    ssize_t r = lowest().recvmsg(fd, m, flags); // it may bring descriptors
    if (r >= 0 && m->msg_controllen != 0)
        note_received(m);
    return r;
}

SD_EXPORT int recvmmsg(int fd, mmsghdr *m, unsigned count, int flags, timespec *timeout) {
    File *f = called_on(fd);
    if (f) [[unlikely]] {
        long r = vfs::recvmmsg(fd, f, m, count, flags, timeout);
        if (r != vfs::kPass)
            return answer(r);
    }
    int r = lowest().recvmmsg(fd, m, count, flags, timeout);
    for (int i = 0; i < r; ++i)
        if (m[i].msg_hdr.msg_controllen != 0)
            note_received(&m[i].msg_hdr);
    return r;
}

SD_EXPORT ssize_t send(int fd, const void *buffer, size_t size, int flags) {
    File *e = entry_of(fd);
    return e ? send_entry(fd, buffer, size, flags, e) : real.send(fd, buffer, size, flags);
}
SD_ALIAS(__send, send);

SD_EXPORT ssize_t sendto(int fd, const void *buffer, size_t size, int flags, const sockaddr *to,
                         socklen_t to_size) {
    if (File *e = entry_of(fd); e && !to)
        if (const long r = try_send(fd, e, buffer, size, flags))
            return r;
    File *f = called_on(fd);
    if (!f) [[likely]]
        return real.sendto(fd, buffer, size, flags, to, to_size);
    if (to) [[unlikely]] {
        if ((flags & MSG_FASTOPEN) && f->kind == FileKind::fresh) {
            // Connects and sends in one call: only the kernel can.
            if (long r = fall_back(fd, f, Cause::fast_open, nullptr); r < 0)
                return answer<ssize_t>(r);
            return real.sendto(fd, buffer, size, flags, to, to_size);
        }
        if (long r = check_target(to, to_size); r < 0)
            return answer<ssize_t>(r);
    }
    long r = vfs::send(fd, f, buffer, clamp_transfer(size), flags);
    return r == vfs::kPass ? real.sendto(fd, buffer, size, flags, to, to_size) : answer<ssize_t>(r);
}

SD_EXPORT ssize_t sendmsg(int fd, const msghdr *m, int flags) {
    File *f = called_on(fd);
    if (!f) [[likely]]
        return active() && passes_ours(m) ? send_rights(fd, m, flags) : real.sendmsg(fd, m, flags);
    long r = vfs::sendmsg(fd, f, m, flags);
    return r == vfs::kPass ? real.sendmsg(fd, m, flags) : answer<ssize_t>(r);
}

SD_EXPORT int sendmmsg(int fd, mmsghdr *m, unsigned count, int flags) {
    File *f = called_on(fd);
    if (!f) [[likely]] {
        for (unsigned i = 0; active() && i < count; ++i)
            if (passes_ours(&m[i].msg_hdr))
                return send_one_by_one(fd, m, count, flags);
        return real.sendmmsg(fd, m, count, flags);
    }
    long r = vfs::sendmmsg(fd, f, m, count, flags);
    return r == vfs::kPass ? real.sendmmsg(fd, m, count, flags) : answer(r);
}

SD_EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t size) noexcept {
    if (!file_of(out) && !file_of(in)) [[likely]]
        return real.sendfile(out, in, offset, size);
    const long r = vfs::sendfile(out, in, offset, clamp_transfer(size));
    return r == vfs::kPass ? real.sendfile(out, in, offset, size) : answer<ssize_t>(r);
}
SD_ALIAS(sendfile64, sendfile);

SD_EXPORT ssize_t splice(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size, unsigned flags) {
    if (!file_of(out) && !file_of(in)) [[likely]]
        return real.splice(in, in_offset, out, out_offset, size, flags);
    long r = vfs::splice(in, in_offset, out, out_offset, clamp_transfer(size), flags);
    return r == vfs::kPass ? real.splice(in, in_offset, out, out_offset, size, flags) : answer<ssize_t>(r);
}
