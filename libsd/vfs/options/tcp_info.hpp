// TCP_INFO of an accelerated connection.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"
#include <sys/socket.h>

namespace sd {

/// The state as the kernel would report it for a connection with this history (TCP_ESTABLISHED, ...).
int tcp_state(File &f) noexcept;
/// getsockopt(TCP_INFO): the kernel's structure in the kernel's size, with what is known filled in.
[[nodiscard]] long get_tcp_info(File &f, void *value, socklen_t *n, int room) noexcept;

} // namespace sd
