// A connected TCP socket that a client has handed over: whose end of which connection it is.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <sys/socket.h>

namespace sd::monitor {

/// What an option of any socket is. False: it has no such option.
template <typename T> bool read_option(int fd, int level, int name, T &value) {
    socklen_t size = sizeof value;
    return getsockopt(fd, level, name, &value, &size) == 0;
}

/// The names of a connection as one end has them. IPv4 addresses are v4-mapped.
struct ConnectionNames {
    uint64_t netns = 0; ///< SO_NETNS_COOKIE
    struct Name {
        std::array<uint8_t, 16> ip{};
        uint16_t port = 0; ///< host byte order
        auto operator<=>(const Name &) const = default;
    } local, peer;
    auto operator<=>(const ConnectionNames &) const = default;
    /// As the other end has them, in the same network namespace.
    ConnectionNames swapped() const { return {netns, peer, local}; }
};

struct ConnectedSocket {
    uint64_t cookie = 0; ///< SO_COOKIE: names the socket, whoever holds it
    ConnectionNames names;
};

/// What the kernel says of the descriptor; nothing: it is no TCP connection that is open in both directions,
/// or one whose bytes something else works on (kTLS).
std::optional<ConnectedSocket> examine_connected(int fd);

} // namespace sd::monitor
