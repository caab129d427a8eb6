// A listening socket that accelerated processes hold.
#include "monitor/records/listener.hpp"
#include "libsd/control/assert.hpp"
#include "monitor/kernel/connected_socket.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace sd::monitor {

namespace {

bool read_address(int fd, ListenAddress &address) {
    union {
        sockaddr any;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } name{};
    socklen_t length = sizeof name;
    if (getsockname(fd, &name.any, &length) != 0) {
        return false;
    }
    address.family = static_cast<uint8_t>(name.any.sa_family);
    if (name.any.sa_family == AF_INET) {
        address.port = ntohs(name.v4.sin_port);
        address.ip[10] = address.ip[11] = 0xff;
        memcpy(address.ip + 12, &name.v4.sin_addr, 4);
        return true;
    }
    if (name.any.sa_family != AF_INET6) {
        return false;
    }
    int only = 0;
    read_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, only);
    address.v6only = only != 0;
    address.port = ntohs(name.v6.sin6_port);
    memcpy(address.ip, &name.v6.sin6_addr, 16);
    return true;
}

bool in_kernel(const ListenerSegment &segment) {
    return std::any_of(std::begin(segment.in_kernel), std::end(segment.in_kernel),
                       [](const auto &acceptor) { return acceptor.load(std::memory_order_seq_cst) != 0; });
}

} // namespace

uint64_t netns_cookie(int fd) {
    uint64_t cookie = 0;
    return read_option(fd, SOL_SOCKET, SO_NETNS_COOKIE, cookie) ? cookie : 0;
}

uint64_t proven_netns(int fd) {
    int domain = 0, type = 0, protocol = 0;
    const bool tcp = read_option(fd, SOL_SOCKET, SO_DOMAIN, domain) &&
                     (domain == AF_INET || domain == AF_INET6) &&
                     read_option(fd, SOL_SOCKET, SO_TYPE, type) && type == SOCK_STREAM &&
                     read_option(fd, SOL_SOCKET, SO_PROTOCOL, protocol) && protocol == IPPROTO_TCP;
    return tcp ? netns_cookie(fd) : 0;
}

bool takes(const ListenAddress &listener, const ListenAddress &name) {
    static constexpr uint8_t kAnyV4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, kAny[16] = {};
    const bool is_v4 = memcmp(name.ip, kAnyV4, 12) == 0;
    // What of the other family, or one address of the own, a wildcard takes as well.
    const bool covers = (memcmp(listener.ip, kAny, 16) == 0 && (!is_v4 || !listener.v6only)) ||
                        (memcmp(listener.ip, kAnyV4, 16) == 0 && is_v4);
    return listener.port == name.port && (memcmp(listener.ip, name.ip, 16) == 0 || covers);
}

bool takes(const ListenAddress &listener, const SlotAddress &name) {
    ListenAddress written{name.port, static_cast<uint8_t>(name.family), false, {}};
    memcpy(written.ip, name.ip, sizeof name.ip);
    return takes(listener, written);
}

bool overlap(const ListenAddress &a, const ListenAddress &b) { return takes(a, b) || takes(b, a); }

int examine_listener(int fd, ListenProof &proof, Cause &cause) {
    int type = 0, protocol = 0, accepting = 0, mark = 0;
    char device[IFNAMSIZ]{};
    socklen_t device_length = sizeof device;
    if (!read_option(fd, SOL_SOCKET, SO_TYPE, type) || !read_option(fd, SOL_SOCKET, SO_PROTOCOL, protocol) ||
        !read_option(fd, SOL_SOCKET, SO_ACCEPTCONN, accepting)) {
        return -ENOTSOCK;
    }
    if (type != SOCK_STREAM || protocol != IPPROTO_TCP || accepting == 0 || !read_address(fd, proof.address)) {
        return -EINVAL;
    }
    // Which packets reach such a socket depends on the interface or on marks, of which we have none.
    const bool bound =
        getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &device_length) == 0 && device[0] != '\0';
    if (bound || (read_option(fd, SOL_SOCKET, SO_MARK, mark) && mark != 0)) {
        cause = Cause::option;
        return -EOPNOTSUPP;
    }
    proof.netns = netns_cookie(fd);
    struct stat st {};
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    proof.owner = st.st_uid;
    if (!read_option(fd, SOL_SOCKET, SO_COOKIE, proof.cookie) || proof.netns == 0) {
        return -EOPNOTSUPP;
    }
    return 0;
}

Listener::Listener(uint32_t id_, const ListenProof &proof, Namespace *ns_)
    : id(id_), ns(ns_), cookie(proof.cookie), owner(proof.owner), address(proof.address),
      memfd(make_memfd("sd-listener", sizeof(ListenerSegment))), map(memfd.get(), sizeof(ListenerSegment)) {
    seal(memfd.get(), F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    segment().version = kLayoutVersion;
    segment().listener_id = id;
    segment().magic = kListenerMagic;
}

bool Listener::add(Link &link, uint32_t syn_head) {
    const auto has_its_id = [&](const Link *other) { return other != nullptr && other->id == link.id; };
    if (link.listener != nullptr || std::any_of(place.begin(), place.end(), has_its_id)) {
        return false;
    }
    auto free = std::find(place.begin(), place.end(), nullptr);
    if (free == place.end()) {
        if (place.size() == kListenerLinks) {
            return false;
        }
        free = place.insert(place.end(), nullptr);
    }
    *free = &link;
    link.listener = this;
    ++links;
    ++links_by[link.maker.get()];
    link.place = static_cast<uint32_t>(free - place.begin());
    ListenerLink &entry = segment().link[link.place];
    entry.syn_head.store(syn_head, std::memory_order_relaxed);
    entry.syn_end.store(0, std::memory_order_relaxed);
    entry.link_id.store(link.id, std::memory_order_release);
    segment().link_high.store(static_cast<uint32_t>(place.size()), std::memory_order_release);
    bump();
    // Who is in the kernel already cannot mark it; after the bump, see
    // libsd/vfs/connections/kernel_queue.hpp.
    if (in_kernel(segment())) {
        link.header(1).side[1].in_kernel.fetch_or(kInKernelUnnamed, std::memory_order_seq_cst);
    }
    return true;
}

void Listener::forget_acceptors(uint32_t signature) {
    bool any = false;
    for (auto &acceptor : segment().in_kernel) {
        uint32_t expected = signature;
        any = acceptor.compare_exchange_strong(expected, 0, std::memory_order_seq_cst) || any;
    }
    if (!any || in_kernel(segment())) {
        return;
    }
    for (const Link *link : place) {
        if (link != nullptr) {
            link->header(1).side[1].in_kernel.fetch_and(~kInKernelUnnamed, std::memory_order_seq_cst);
        }
    }
}

void Listener::remove(Link &link) {
    SD_ASSERT(link.listener == this && place.at(link.place) == &link && links != 0);
    taken_from_former_links += segment().link[link.place].syn_head.load(std::memory_order_relaxed);
    segment().link[link.place].link_id.store(0, std::memory_order_release);
    place[link.place] = nullptr;
    --links;
    if (const auto it = links_by.find(link.maker.get()); --it->second == 0) {
        links_by.erase(it);
    }
    link.listener = nullptr;
    bump();
}

void Listener::unlist() {
    ns->directory.remove(directory_index);
    directory_index = -1;
    for (const Link *link : place) {
        if (link != nullptr) {
            stop_requests(*link);
        }
    }
}

void Listener::ring_accept_bells() const {
    for (const AcceptBell &bell : accept_bells) {
        ring_together(bell.eventfd);
    }
}

uint32_t port_base(uint32_t place, uint32_t listener) {
    uint32_t low = 32768, high = 60999;
    if (FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re")) {
        uint32_t l, h;
        if (fscanf(range, "%u %u", &l, &h) == 2 && l > 0 && l <= h && h <= 65535) {
            low = l;
            high = h;
        }
        fclose(range);
    }
    const uint32_t last = std::min(high + 1 > kLinkSlots ? high + 1 - kLinkSlots : 1, 65536 - kLinkSlots);
    low = std::min(low, last);
    // A link uses its lowest slots first. Steps of the golden ratio keep any number of bases as far apart as
    // can be. Each listener begins somewhere else: clients of two of them should not have the same numbers.
    const uint64_t fraction = uint64_t{place * 2654435769u + listener * 3266489917u}; // of 2^32
    return low + static_cast<uint32_t>(fraction * (last - low + 1) >> 32);
}

} // namespace sd::monitor
