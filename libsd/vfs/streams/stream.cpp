// What sending and receiving have in common, and moving bytes on a socket that is not connected.
#include "libsd/vfs/streams/stream.hpp"
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
        sum = clamp_transfer(sum + v.iov_len);
    }
    return static_cast<long>(sum);
}

int64_t deadline_after(int64_t timeout_ns) noexcept {
    return timeout_ns > 0 ? sys::now_ns() + timeout_ns : INT64_MAX;
}

void raise_sigpipe() noexcept {
    sys::tgkill(static_cast<int>(sys::getpid()), static_cast<int>(sys::gettid()), SIGPIPE);
}
namespace vfs {

long unconnected_recv(File &f, int flags) noexcept {
    // tcp_recvmsg on a socket in state CLOSE
    if (flags & MSG_ERRQUEUE)
        return -EAGAIN;
    if (flags & MSG_OOB)
        return -EINVAL;
    if (int e = f.unconnected.error.exchange(0, std::memory_order_relaxed))
        return -e;
    return -ENOTCONN;
}

long unconnected_send(File &f, int flags) noexcept {
    // tcp_sendmsg on a socket in state CLOSE
    if (int e = f.unconnected.error.exchange(0, std::memory_order_relaxed))
        return -e;
    if (!(flags & MSG_NOSIGNAL))
        raise_sigpipe();
    return -EPIPE;
}

} // namespace vfs

} // namespace sd
