// The kernel's socket under the number tells which answers the program wants, and in which form; the values
// are put in their places. A client that lies about its own packets only lies about them.
#include "libsd/vfs/options/packet_options.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include <cstring>
#include <netinet/in.h>

namespace sd {

namespace {

/// IPV6_2292PKTOPTIONS, and the older names of what it gives
constexpr int kIpv6Options = 6, kOldHopLimit = 8, kOldPacketInfo = 2;
constexpr int kLoopbackInterface = 1;

int ask(int fd, int level, int name) noexcept {
    int v = 0;
    socklen_t n = sizeof v;
    return sys::getsockopt(fd, level, name, &v, &n) == 0 && v >= 0 ? v : 0;
}

int default_ttl() noexcept {
    const long any = dummy_socket();
    const int ttl = any < 0 ? 0 : ask(static_cast<int>(any), IPPROTO_IP, IP_TTL);
    return ttl ? ttl : 64;
}

/// Puts what is known of the connection into the answer of which `head` is the beginning.
void fill_in(const cmsghdr &head, char *data, size_t length, const File &f) noexcept {
    const auto &id = f.link->view.slot(f.slot).identity;
    const bool v6 = head.cmsg_level == IPPROTO_IPV6;
    const auto put = [&](const void *what, size_t size) {
        if (length >= size)
            memcpy(data, what, size);
    };
    if (v6 ? head.cmsg_type == IPV6_PKTINFO || head.cmsg_type == kOldPacketInfo : head.cmsg_type == IP_PKTINFO) {
        if (v6) {
            in6_pktinfo info{};
            memcpy(&info.ipi6_addr, f.stream.server.ip, sizeof info.ipi6_addr);
            info.ipi6_ifindex = kLoopbackInterface;
            put(&info, sizeof info);
        } else {
            in_pktinfo info{};
            memcpy(&info.ipi_addr, f.stream.server.ip + 12, sizeof info.ipi_addr);
            info.ipi_spec_dst = info.ipi_addr;
            info.ipi_ifindex = kLoopbackInterface;
            put(&info, sizeof info);
        }
        return;
    }
    const bool life =
        v6 ? head.cmsg_type == IPV6_HOPLIMIT || head.cmsg_type == kOldHopLimit : head.cmsg_type == IP_TTL;
    const bool service = v6 ? head.cmsg_type == IPV6_TCLASS : head.cmsg_type == IP_TOS;
    if (!life && !service)
        return;
    const int ttl = id.client_ttl;
    const int v = service ? id.client_tos : ttl ? ttl : default_ttl();
    put(&v, sizeof v);
}

} // namespace

void note_packet_marks(const File &f, int fd, Slot::Identity &to) noexcept {
    to.client_tos = to.client_ttl = 0;
    if (!f.real_socket) {
        if (f.unconnected.options) [[unlikely]]
            to.client_tos = type_of_service(f);
        return;
    }
    const bool v4 = f.family == AF_INET;
    to.client_tos = static_cast<uint8_t>(v4 ? ask(fd, IPPROTO_IP, IP_TOS) : ask(fd, IPPROTO_IPV6, IPV6_TCLASS));
    to.client_ttl =
        static_cast<uint8_t>(v4 ? ask(fd, IPPROTO_IP, IP_TTL) : ask(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS));
}

bool asks_for_packets(int level, int name) noexcept {
    return (level == IPPROTO_IP && name == IP_PKTOPTIONS) || (level == IPPROTO_IPV6 && name == kIpv6Options);
}

long packet_options(int fd, const File &f, int level, int name, void *value, socklen_t *n, int room) noexcept {
    alignas(cmsghdr) char answer[512];
    socklen_t used = static_cast<size_t>(room) < sizeof answer ? static_cast<socklen_t>(room) : sizeof answer;
    if (const long r = sys::getsockopt(fd, level, name, answer, &used); r < 0)
        return r;
    for (size_t at = 0; f.side == 1 && at + sizeof(cmsghdr) <= used;) {
        cmsghdr head;
        memcpy(&head, answer + at, sizeof head);
        if (head.cmsg_len < sizeof head || head.cmsg_len > used - at)
            break;
        fill_in(head, answer + at + CMSG_LEN(0), head.cmsg_len - CMSG_LEN(0), f);
        at += CMSG_ALIGN(head.cmsg_len);
    }
    return sd_copy(value, answer, used) || sd_copy(n, &used, sizeof used) ? -EFAULT : 0;
}

} // namespace sd
