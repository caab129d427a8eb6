// What the kernel has counted of a connection's socket: by it both ends know where one path goes on for the
// other, whoever has used the socket before.
#pragma once
#include <cstdint>
#include <linux/sockios.h> // which an ioctl() counts
#include <linux/tcp.h>
#include <sys/ioctl.h>

namespace sd {

[[nodiscard]] bool ask_info(int fd, tcp_info *info) noexcept;
/// An ioctl() that counts bytes, or -errno.
[[nodiscard]] long ask_count(int fd, unsigned long which) noexcept;

/// Payload that has been written to the socket since its connection began; -1: not to be had. Nobody writes
/// meanwhile. `half_closed`: the peer may have ended its direction.
int64_t written(int fd, bool counts_syn, bool half_closed = false) noexcept;
/// Has all been read that was written to the socket up to `offset`, where its sender has stopped? `waiting`
/// bytes of it have been seen and not taken.
bool is_read_up_to(int fd, uint64_t offset, long waiting = 0) noexcept;
/// Payload that has come to the socket since its connection began; one more where it may be that a FIN
/// counts. Both are the caller's to choose from. False: there is no socket any more.
struct Came {
    uint64_t least, most;
};
[[nodiscard]] bool ask_came(int fd, Came *came) noexcept;
/// Has the peer's socket neither sent a FIN nor a reset? Else a read of 0 bytes need not be due to our own
/// shutdown().
[[nodiscard]] bool is_open_at_peer(int fd) noexcept;

} // namespace sd
