// Addresses: reading them, and asking the kernel's routing whether they are ours.
#include "libsd/vfs/connections/address.hpp"
#include "libsd/control/hidden_fd.hpp"

namespace sd {

bool parse_address(const sockaddr_storage &a, socklen_t n, unsigned family, SlotAddress *out) noexcept {
    if (a.ss_family != family)
        return false;
    out->family = static_cast<uint16_t>(family);
    if (family == AF_INET) {
        if (n < sizeof(sockaddr_in))
            return false;
        const auto &v4 = reinterpret_cast<const sockaddr_in &>(a);
        set_v4(out->ip, v4.sin_addr.s_addr);
        out->port = ntohs(v4.sin_port);
    } else {
        if (n < sizeof(sockaddr_in6))
            return false;
        const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(a);
        memcpy(out->ip, &v6.sin6_addr, 16);
        out->port = ntohs(v6.sin6_port);
        if (v6.sin6_scope_id != 0 || (out->ip[0] == 0xfe && (out->ip[1] & 0xc0) == 0x80))
            return false;
    }
    return out->port != 0;
}

namespace {

void from_sockaddr(const sockaddr_storage &s, SlotAddress *out) noexcept {
    out->family = s.ss_family;
    if (s.ss_family == AF_INET) {
        const auto &v4 = reinterpret_cast<const sockaddr_in &>(s);
        set_v4(out->ip, v4.sin_addr.s_addr);
        out->port = ntohs(v4.sin_port);
    } else {
        const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(s);
        memcpy(out->ip, &v6.sin6_addr, 16);
        out->port = ntohs(v6.sin6_port);
    }
}

} // namespace

long kernel_address(int fd, SlotAddress *out) noexcept {
    sockaddr_storage s{};
    socklen_t n = sizeof s;
    long r = sys::getsockname(fd, &s, &n);
    if (r == 0)
        from_sockaddr(s, out);
    return r;
}

long kernel_peer(int fd, SlotAddress *out) noexcept {
    sockaddr_storage s{};
    socklen_t n = sizeof s;
    const long r = sys::call(SYS_getpeername, fd, sys::arg(&s), sys::arg(&n));
    if (r == 0)
        from_sockaddr(s, out);
    return r;
}

bool route_is_local(const SlotAddress &to, SlotAddress *source) noexcept {
    // Connecting a datagram socket sends nothing: it only asks the routing table, with all its rules, for the
    // source address. For an address of this host that is the address itself.
    const bool v4 = is_v4(to.ip);
    long fd = sys::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    sockaddr_storage s{};
    socklen_t n;
    if (v4) {
        auto &a = reinterpret_cast<sockaddr_in &>(s);
        a.sin_family = AF_INET;
        a.sin_port = htons(9);
        memcpy(&a.sin_addr, to.ip + 12, 4);
        n = sizeof a;
    } else {
        auto &a = reinterpret_cast<sockaddr_in6 &>(s);
        a.sin6_family = AF_INET6;
        a.sin6_port = htons(9);
        memcpy(&a.sin6_addr, to.ip, 16);
        n = sizeof a;
    }
    long r = sys::connect(static_cast<int>(fd), &s, n);
    if (r == 0)
        r = kernel_address(static_cast<int>(fd), source);
    sys::close(static_cast<int>(fd));
    return r == 0 && memcmp(source->ip, to.ip, 16) == 0;
}

uint64_t hash_of(const SlotAddress &a) noexcept {
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15u;
    uint64_t half[2];
    memcpy(half, a.ip, sizeof half);
    const uint64_t upwards = (half[0] * kSpread ^ half[1]) * kSpread; // the last byte is in the highest bits
    return (upwards ^ upwards >> 32) * kSpread;
}

namespace {

/// Addresses that were somebody else's when the kernel was asked last: hash of the address << 32 | ticks. To
/// ask takes four system calls. Who takes one over meanwhile is connected to through the kernel.
constexpr unsigned kForeign = 16, kTickBits = 26; // 67 ms
constinit std::atomic<uint64_t> foreign[kForeign]{};

} // namespace

bool is_on_this_host(const SlotAddress &to, SlotAddress *source) noexcept {
    const uint32_t name = static_cast<uint32_t>(hash_of(to) >> 32) | 1,
                   now = static_cast<uint32_t>(sys::coarse_now_ns() >> kTickBits);
    auto &known = foreign[name >> 8 & (kForeign - 1)];
    const uint64_t fresh = uint64_t{name} << 32 | now;
    if (known.load(std::memory_order_relaxed) == fresh)
        return false;
    if (route_is_local(to, source))
        return true;
    known.store(fresh, std::memory_order_relaxed);
    return false;
}

bool is_local_address(const SlotAddress &a) noexcept {
    SlotAddress source;
    return is_loopback(a.ip) || route_is_local(a, &source);
}

uint16_t client_port(uint32_t base, uint32_t slot) noexcept {
    // Without a range in the link (port_base only says where to start) use the kernel's default one.
    constexpr uint32_t low = 32768, high = 60999;
    uint32_t at = base >= low && base <= high ? base - low : 0;
    return static_cast<uint16_t>(low + (at + slot) % (high - low + 1));
}

} // namespace sd
