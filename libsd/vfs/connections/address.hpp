// Addresses in the one form used inside: 16 bytes, IPv4 as v4-mapped.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

namespace sd {

inline bool is_v4(const uint8_t *ip) noexcept {
    static constexpr uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(ip, prefix, 12) == 0;
}
inline void set_v4(uint8_t *ip, uint32_t network_order) noexcept {
    memset(ip, 0, 10);
    ip[10] = ip[11] = 0xff;
    memcpy(ip + 12, &network_order, 4);
}
/// :: or 0.0.0.0
inline bool is_any(const uint8_t *ip) noexcept {
    static constexpr uint8_t zero[16] = {};
    return memcmp(ip, zero, 16) == 0 || (is_v4(ip) && memcmp(ip + 12, zero, 4) == 0);
}
inline bool is_loopback(const uint8_t *ip) noexcept {
    static constexpr uint8_t one[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return memcmp(ip, one, 16) == 0 || (is_v4(ip) && ip[12] == 127);
}
inline void set_loopback(uint8_t *ip, bool v6) noexcept {
    if (v6) {
        memset(ip, 0, 15);
        ip[15] = 1;
    } else {
        set_v4(ip, htonl(INADDR_LOOPBACK));
    }
}

/// Reads a sockaddr as connect() on a socket of `family` takes it. False: not one that can be accelerated
/// (wrong length or family, a scoped link-local address, port 0).
[[nodiscard]] bool parse_address(const sockaddr_storage &a, socklen_t n, unsigned family,
                                 SlotAddress *out) noexcept;
/// What the kernel says the socket's own address is. 0 or -errno.
[[nodiscard]] long kernel_address(int fd, SlotAddress *out) noexcept;
/// The same of the other end.
[[nodiscard]] long kernel_peer(int fd, SlotAddress *out) noexcept;
/// The client port of a slot: spread over the kernel's ephemeral range from the link's base on.
uint16_t client_port(uint32_t base, uint32_t slot) noexcept;
/// Spreads an address, without its port. Neighbours differ in each part of the upper half.
uint64_t hash_of(const SlotAddress &a) noexcept;
/// Is the address one of this host, so that a local client may claim it as its own?
bool is_local_address(const SlotAddress &a) noexcept;
/// The source address the kernel would use towards `to`; true when `to` is an address of this host.
[[nodiscard]] bool route_is_local(const SlotAddress &to, SlotAddress *source) noexcept;
/// The same for connect(): an address that was somebody else's up to 67 ms ago counts as that still.
bool is_on_this_host(const SlotAddress &to, SlotAddress *source) noexcept;

} // namespace sd
