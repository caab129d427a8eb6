// What the kernel calls a socket.
#pragma once
#include "libsd/cpu/system_call.hpp"
#include <cstdint>
#include <sys/socket.h>

namespace sd {

/// Of the socket behind a descriptor; no other has it for as long as the kernel runs. 0: it does not say.
inline uint64_t cookie_of(int fd) noexcept {
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;
    return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) < 0 ? 0 : cookie;
}

} // namespace sd
