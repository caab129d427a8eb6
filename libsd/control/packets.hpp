// Packets to and from the monitor: for the sources of this folder. The caller holds the lock of the channel
// (channel.hpp) or is alone on the socket.
#pragma once
#include "libsd/layout/protocol.hpp"
#include <cstddef>

namespace sd::control {

struct Reply;

/// The number of the next request: each has another.
uint32_t next_sequence() noexcept;

wire::Header make_header(wire::Op op, uint32_t number, size_t length, unsigned nfds) noexcept;
/// Sends one packet; what sendmsg says.
[[nodiscard]] long send_packet(int fd, const wire::Header &h, const void *body, const int *fds,
                               int flags = 0) noexcept;
/// Receives the answer to the request of that number on `fd`. Transport failure: status set, -1.
[[nodiscard]] int receive_answer(int fd, uint32_t number, Reply *r) noexcept;
/// Sends one packet and receives the answer on `fd`. Transport failure: status set, -1.
[[nodiscard]] int exchange(int fd, wire::Op op, const void *body, size_t length, const int *fds,
                           unsigned nfds, Reply *r) noexcept;

/// A packet without descriptors. As everything in a process in a sandbox, with write alone.
struct PlainPacket {
    wire::Header header;
    unsigned char body[256];

    [[nodiscard]] long send(int fd, wire::Op op, uint32_t number, const void *from, size_t length) noexcept;
};

/// exchange() with read and write alone, for a process in a sandbox: no descriptor goes along, and none that
/// comes back is received.
[[nodiscard]] int exchange_sandboxed(int fd, wire::Op op, const void *body, size_t length, Reply *r) noexcept;

} // namespace sd::control
