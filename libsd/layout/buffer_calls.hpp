// What libsocksdirect-buffers calls in libsd: one table of functions, found at run time by the name
// kBufferCallsSymbol. Both may be of different releases: a table of another version is not used, and a later
// one only gets longer.
#pragma once
#include "libsd/layout/pool_layout.hpp"
#include <cstdint>

namespace sd {

constexpr char kBufferCallsSymbol[] = "socksdirect_buffer_calls";
constexpr uint32_t kBufferCallsVersion = 1;

/// Results beside counts, 0 and -errno.
constexpr long kNotAccelerated = INT64_MIN; ///< the socket's own calls are to be used
constexpr long kWantsSpare = INT64_MIN + 1; ///< bytes are there that have to be copied, and there is no room

/// A pool of this process.
struct OwnPoolView {
    void *pool; ///< for the calls below
    uint8_t *bytes;
    uint64_t size;
    PoolLedger *ledger;
};

/// Bytes that were received.
struct ReceivedBytes {
    const void *data;
    void *pool; ///< they lie in the peer's pool, until release(); null: they were copied
    uint32_t epoch, buffer;
};

struct BufferCalls {
    uint32_t version;
    uint32_t size; ///< of this table
    /// A pool for what is sent over this connection. 0, -errno, kNotAccelerated. One thread at a time for a
    /// connection.
    long (*make_pool)(int fd, uint64_t bytes, OwnPoolView *) noexcept;
    /// Nobody uses its memory in this process any more.
    void (*drop_pool)(void *pool) noexcept;
    /// Whether bytes of it are, or will be, handed over on this connection: 1; 0: copied from now on.
    long (*is_usable)(int fd, void *pool) noexcept;
    /// Sends bytes of the pool in place, with the flags MSG_DONTWAIT and MSG_NOSIGNAL. How many; 0: not now,
    /// send them otherwise; -EAGAIN, -EINTR. Any thread.
    long (*hand)(int fd, void *pool, uint64_t offset, uint64_t bytes, uint32_t buffer, int flags) noexcept;
    /// As recv() of up to `most` bytes: in place, if they lie in the peer's pool; otherwise in `spare`. Flags
    /// as above. Any thread.
    long (*receive)(int fd, void *spare, uint64_t spare_bytes, uint64_t most, int flags, ReceivedBytes *) noexcept;
    /// `bytes` of a buffer that was received in place are not read any more; 0 where it was received in two
    /// pieces that are released in one. Once for each receive(), any thread, also after the connection's end.
    void (*release)(void *pool, uint32_t epoch, uint32_t buffer, uint64_t bytes) noexcept;
};

} // namespace sd
