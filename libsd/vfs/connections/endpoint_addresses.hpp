// The addresses of both ends of an accelerated connection, as the kernel would report them.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"
#include <sys/socket.h>

namespace sd {

/// Fills in a sockaddr for a socket of `family` as getsockname(2) and accept(2) do: cut to the room `*n`,
/// which is set to the full length. 0, -EINVAL for a negative length, -EFAULT.
[[nodiscard]] long write_sockaddr(const SlotAddress &a, int family, sockaddr *to, socklen_t *n) noexcept;
/// setsockopt(IPV6_ADDRFORM) of an IPv6 connection: with a mapped address it becomes one of IPv4.
[[nodiscard]] long change_address_form(File &f, const void *value, socklen_t n) noexcept;
/// getsockopt(SO_PEERNAME): like getpeername(), but it fails where the room is larger than the address.
[[nodiscard]] long peer_name_option(File &f, void *value, socklen_t *n, int room) noexcept;

} // namespace sd
