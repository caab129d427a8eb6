// What travels beside the data.
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include <climits>
#include <cstddef>
#include <cstring>
#include <linux/errqueue.h>
#include <netinet/in.h>

namespace sd {

long check_control(const msghdr &h) noexcept {
    if (h.msg_controllen == 0)
        return 0;
    if (h.msg_controllen > INT_MAX)
        return -ENOBUFS;
    const char *control = static_cast<const char *>(h.msg_control);
    for (size_t at = 0; at + sizeof(cmsghdr) <= h.msg_controllen;) {
        cmsghdr c;
        if (sd_copy(&c, control + at, sizeof c))
            return -EFAULT;
        if (c.cmsg_len < sizeof c || c.cmsg_len > h.msg_controllen - at)
            return -EINVAL;
        // Time stamping requests are taken and have nothing to stamp; descriptors and credentials are ignored
        // by TCP.
        if (c.cmsg_level == SOL_SOCKET && c.cmsg_type != SCM_RIGHTS && c.cmsg_type != SCM_CREDENTIALS &&
            !(c.cmsg_type == SO_TIMESTAMPING && c.cmsg_len == CMSG_LEN(sizeof(uint32_t))))
            return -EINVAL;
        at += CMSG_ALIGN(c.cmsg_len);
    }
    return 0;
}

void note_zerocopy(File &f, long sent) noexcept {
    auto &next = f.ofd->opt.zerocopy_next;
    if (sent <= 0 || f.kind != FileKind::stream || next.load(std::memory_order_relaxed) == 0)
        return;
    next.fetch_add(1, std::memory_order_acq_rel);
    // A thread that waits for completions sees an error event on its own socket.
    notify_own(f);
    epoll_touch(f);
}

long read_error_queue(File &f, msghdr *m, const msghdr *h) noexcept {
    Ofd::Options &o = f.ofd->opt;
    int32_t told = o.zerocopy_told.load(std::memory_order_acquire), next;
    do {
        next = o.zerocopy_next.load(std::memory_order_acquire);
        if (next <= 1 || next - 1 == told)
            return -EAGAIN;
    } while (!o.zerocopy_told.compare_exchange_weak(told, next - 1, std::memory_order_acq_rel));
    if (!m)
        return 0;
    // All sends since the last report in one range, as the kernel merges them; "copied" tells that zero copy
    // did not pay.
    const bool v6 = f.family == AF_INET6;
    const size_t length = sizeof(sock_extended_err) + (v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    alignas(cmsghdr) char note[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))] = {};
    auto *head = reinterpret_cast<cmsghdr *>(note);
    head->cmsg_len = CMSG_LEN(length);
    head->cmsg_level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
    head->cmsg_type = v6 ? IPV6_RECVERR : IP_RECVERR;
    sock_extended_err error{};
    error.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
    error.ee_code = SO_EE_CODE_ZEROCOPY_COPIED;
    error.ee_info = static_cast<uint32_t>(told);
    error.ee_data = static_cast<uint32_t>(next - 2);
    memcpy(CMSG_DATA(head), &error, sizeof error);
    size_t room = h->msg_control ? h->msg_controllen : 0;
    int flags = MSG_ERRQUEUE;
    size_t used = 0;
    if (room < sizeof(cmsghdr)) {
        flags |= MSG_CTRUNC;
    } else {
        if (room < head->cmsg_len) {
            flags |= MSG_CTRUNC;
            head->cmsg_len = room;
        }
        if (sd_copy(h->msg_control, note, head->cmsg_len))
            return -EFAULT;
        used = CMSG_SPACE(length) < room ? CMSG_SPACE(length) : room;
    }
    const socklen_t no_name = 0;
    auto at = [m](size_t offset) { return reinterpret_cast<char *>(m) + offset; };
    if ((h->msg_name && sd_copy(at(offsetof(msghdr, msg_namelen)), &no_name, sizeof no_name)) ||
        sd_copy(at(offsetof(msghdr, msg_controllen)), &used, sizeof used) ||
        sd_copy(at(offsetof(msghdr, msg_flags)), &flags, sizeof flags))
        return -EFAULT;
    return 0;
}

} // namespace sd
