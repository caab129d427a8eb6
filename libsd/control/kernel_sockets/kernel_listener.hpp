// Which listening socket the kernel has at an address, asked of the kernel itself.
#pragma once
#include <cstdint>

namespace sd::control {

/// An address and port of this host as the kernel's structures want them: family AF_INET with the first word,
/// or AF_INET6 with four; network byte order.
struct DiagAddress {
    uint16_t family;
    uint16_t port;
    uint32_t ip[4];
};

/// The SO_COOKIE of the socket that would get a connection there now, of those in this process's network
/// namespace. 0: the kernel says that there is none. -1: the kernel cannot be asked (a sandbox). `variant`:
/// of several that share an address (SO_REUSEPORT) each value may get another one. Any thread; costs about 4
/// µs, and the first time 20.
[[nodiscard]] int64_t kernel_listener(const DiagAddress &to, uint16_t variant) noexcept;
/// Upward::hidden_moved, for the socket that asks.
void kernel_listener_moved(int from, int to) noexcept;
/// The child asks on a socket of its own.
void kernel_listener_fork_child() noexcept;
/// The process is in another network namespace now, of which the socket would not tell.
void forget_kernel_listener_socket() noexcept;

} // namespace sd::control
