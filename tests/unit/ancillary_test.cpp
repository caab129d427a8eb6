// Control messages and the completions of MSG_ZEROCOPY, against a kernel connection.
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include <cstring>
#include <linux/errqueue.h>
#include <vector>

using namespace sd;
using namespace sd::test;

namespace {

struct Completion {
    long result;
    int flags, level, type;
    size_t control;
    uint32_t first, last, origin, code;
    bool operator==(const Completion &) const = default;
};

template <class Receive> Completion next_completion(Receive receive, size_t room) {
    alignas(cmsghdr) char control[128] = {};
    msghdr m{};
    m.msg_control = control;
    m.msg_controllen = room;
    m.msg_flags = -1;
    Completion c{};
    c.result = receive(&m);
    if (c.result < 0)
        return c;
    c.flags = m.msg_flags;
    c.control = m.msg_controllen;
    if (const cmsghdr *h = CMSG_FIRSTHDR(&m)) {
        c.level = h->cmsg_level;
        c.type = h->cmsg_type;
        sock_extended_err e{};
        if (h->cmsg_len >= CMSG_LEN(sizeof e)) {
            memcpy(&e, CMSG_DATA(h), sizeof e);
            c.first = e.ee_info;
            c.last = e.ee_data;
            c.origin = e.ee_origin;
            c.code = e.ee_code;
        }
    }
    return c;
}

} // namespace

TEST_CASE("sends with MSG_ZEROCOPY are reported as the kernel reports them") {
    for (int family : {AF_INET, AF_INET6}) {
        StreamPair ours(family);
        KernelPair kernels(family);
        const int one = 1;
        const int a = ours.fd[0], b = kernels.fd[0];
        const auto from_ours = [&](msghdr *m) { return vfs::recvmsg(a, ours.file(0), m, MSG_ERRQUEUE); };
        const auto from_kernel = [&](msghdr *m) { return sys::recvmsg(b, m, MSG_ERRQUEUE | MSG_DONTWAIT); };
        // Without the option the flag means nothing.
        CHECK(vfs::send(a, ours.file(0), "x", 1, MSG_ZEROCOPY) == 1);
        CHECK(next_completion(from_ours, 128).result == -EAGAIN);
        CHECK(set_option(a, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
        CHECK(sys::setsockopt(b, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
        CHECK(next_completion(from_ours, 128) == next_completion(from_kernel, 128));
        for (size_t room : {size_t{128}, size_t{48}, size_t{20}, size_t{0}, size_t{128}}) {
            INFO("family " << family << " room " << room);
            for (int i = 0; i < 3; ++i) {
                CHECK(vfs::send(a, ours.file(0), "abc", 3, MSG_ZEROCOPY) == 3);
                CHECK(sys::call(SYS_sendto, b, sys::arg("abc"), 3, MSG_ZEROCOPY, 0, 0) == 3);
                char sink[3];
                CHECK(sys::call(SYS_recvfrom, kernels.fd[1], sys::arg(sink), 3, MSG_WAITALL, 0, 0) == 3);
            }
            CHECK((stream_events(*ours.file(0)) & EPOLLERR));
            pollfd p{b, 0, 0};
            timespec patience{5, 0};
            CHECK(sys::ppoll(&p, 1, &patience, nullptr) == 1);
            CHECK(next_completion(from_ours, room) == next_completion(from_kernel, room));
            CHECK_FALSE((stream_events(*ours.file(0)) & EPOLLERR));
            CHECK(next_completion(from_ours, room).result == -EAGAIN);
        }
    }
}

TEST_CASE("control messages are refused or ignored as TCP does") {
    StreamPair ours;
    KernelPair kernels;
    struct Case {
        int level, type;
        size_t length, control;
    };
    const size_t whole = CMSG_SPACE(sizeof(int));
    const std::vector<Case> cases = {
        {SOL_SOCKET, 12345, CMSG_LEN(sizeof(int)), whole},
        {4242, 1, CMSG_LEN(sizeof(int)), whole},
        {4242, 1, 3, whole},
        {4242, 1, CMSG_LEN(100), whole},
        {SOL_SOCKET, 12345, CMSG_LEN(sizeof(int)), 8},
        {SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(sizeof(int)), whole},
        {SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(1), whole},
        {IPPROTO_IP, IP_TTL, CMSG_LEN(sizeof(int)), whole},
    };
    for (const Case &c : cases) {
        INFO("level " << c.level << " type " << c.type << " length " << c.length << " of " << c.control);
        alignas(cmsghdr) char control[64] = {};
        cmsghdr h{};
        h.cmsg_level = c.level;
        h.cmsg_type = c.type;
        h.cmsg_len = c.length;
        memcpy(control, &h, sizeof h);
        char text[] = "text";
        iovec part{text, 4};
        msghdr m{};
        m.msg_iov = &part;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = c.control;
        CHECK(vfs::sendmsg(ours.fd[0], ours.file(0), &m, 0) == sys::sendmsg(kernels.fd[0], &m, 0));
    }
}
