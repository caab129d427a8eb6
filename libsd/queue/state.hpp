// What one side knows about one direction of a connection. Lives in the family segment, where the peer cannot write.
#pragma once
#include <atomic>
#include <cstdint>

namespace sd {

/// Ownership of one direction of one socket. `owner` is a thread index of the same segment, 0: nobody yet.
struct Token {
    std::atomic<uint32_t> owner;
    std::atomic<uint32_t> takeovers; ///< how often it changed hands; for statistics and the switch to lock mode
    std::atomic<uint32_t> lock;      ///< lock mode: 0 free, else thread index
    std::atomic<uint32_t> mode;      ///< 0 token, 1 lock
};

/// Sender's truth about its direction. Positions count ring bytes from the start of the connection.
struct TxState {
    uint64_t tail;   ///< next position to write
    uint64_t base;   ///< position at which the present ring began
    uint64_t credit; ///< the last checked value of the peer's `consumed`
    uint32_t cls;    ///< present ring class
    uint32_t stalls; ///< times the program was told that the ring is full since the peer last consumed: then it does not grow
    uint64_t bytes, messages; ///< payload and send operations, for sdstat
};

/// Receiver's truth about its direction.
struct RxState {
    uint64_t head; ///< next header position, or payload position inside a partly read record
    uint64_t base;
    uint32_t cls;
    uint32_t left;         ///< payload bytes of the present record not read yet
    uint32_t pad_after;    ///< bytes to skip when `left` gets to 0
    uint32_t urgent_taken; ///< names the urgent byte that was fetched with MSG_OOB last
    uint64_t bytes, messages;
};

constexpr unsigned kSegThreadLimit = 8192; ///< threads that may use a segment at one time; index 0 is never used
constexpr unsigned kBusyDepth = 4;         ///< operations nested by signal handlers

struct alignas(64) ThreadRecord {
    std::atomic<uint32_t> state; ///< 0 free, 1 in use
    std::atomic<uint32_t> tid;
    std::atomic<uint32_t> proc; ///< index of its ProcRecord
    uint32_t pad;
    /// Offset in the segment of the token being used, by nesting depth; 0 none. Written by the thread alone.
    std::atomic<uint64_t> busy[kBusyDepth];
};

} // namespace sd
