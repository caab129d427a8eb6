// What one side knows about one direction of a connection. Lives in the family segment, where the peer cannot
// write.
//
// A process can be killed between any two instructions. So everything that says how far a direction got is
// either one word that one store changes, or can be put right by the next thread that takes the token;
// ring.hpp says how (recover_tx, recover_rx).
#pragma once
#include <atomic>
#include <cstdint>

namespace sd {

/// Threads that may use a segment at one time; index 0 is never used
constexpr unsigned kSegThreadLimit = 8192;
constexpr unsigned kMaxSegments = 16; ///< family segments one process can have mapped; it lets none go
constexpr unsigned kBusyDepth = 4;    ///< operations nested by signal handlers

/// A thread's name in its segment: index of its record, and how often the record had been given out before,
/// so that nobody is taken for a thread that ended. 31 bits, never 0.
using ThreadId = uint32_t;
constexpr uint32_t kThreadIndexBits = 13;
static_assert(kSegThreadLimit == 1u << kThreadIndexBits);
constexpr uint32_t thread_index(ThreadId id) { return id & (kSegThreadLimit - 1); }
constexpr uint32_t thread_generation(ThreadId id) { return id >> kThreadIndexBits & ((1u << 18) - 1); }
constexpr ThreadId make_thread_id(uint32_t index, uint32_t generation) {
    return (generation << kThreadIndexBits | index) & 0x7fffffff;
}

/// Ownership of one direction of one socket; token.hpp is about how it changes hands.
struct Token {
    /// ThreadId that works without the lock; kShared: nobody does; 0: nobody yet
    std::atomic<uint32_t> owner;
    std::atomic<uint32_t> lock; ///< takeover lock, or the lock of lock mode: ThreadId of the holder, kWaiters
    /// With the lock: former owner, who may still be at work; 0 once that is settled
    std::atomic<uint32_t> prev;
    std::atomic<uint8_t> last; ///< with the lock, in lock mode: low bits of the last holder
    /// With the lock, in lock mode: how often that one came back with nobody in between
    std::atomic<uint8_t> streak;
    std::atomic<uint8_t> bounces; ///< with the lock: takeovers that came soon after another
    std::atomic<uint8_t> stamp;   ///< with the lock: when it was taken over last, in units of about 4 ms

    static constexpr uint32_t kShared =
        0x7fffffff; ///< lock mode; the index part names no thread's first 2^18 - 1 lives
    static constexpr uint32_t kWaiters = 0x80000000;
};
static_assert(sizeof(Token) == 16);

/// Sender's truth about its direction. Positions count ring bytes from the start of the connection.
struct TxState {
    uint64_t tail;   ///< next position to write
    uint64_t base;   ///< position at which the present ring began
    uint64_t credit; ///< the last checked value of the peer's `consumed`
    uint32_t cls;    ///< present ring class
    /// Not 0: the program was told that the ring is full since the peer last consumed: then it does not grow
    uint16_t stalls;
    uint16_t changing;        ///< 1 + the class that is being changed to; 0 outside change_class()
    uint64_t bytes, messages; ///< payload and send operations, for sdstat
};

/// Receiver's truth about its direction.
struct RxState {
    uint64_t head; ///< position of the next record that is not wholly read
    uint64_t base;
    uint64_t part; ///< how much of that record was read, see ring::part_of(); 0: nothing
    uint16_t cls;
    uint16_t changing;     ///< as above
    uint32_t urgent_taken; ///< names the urgent byte that was fetched with MSG_OOB last
    uint64_t bytes, messages;
};

static_assert(sizeof(TxState) == 48 && sizeof(RxState) == 48, "one cache line with the token");

struct alignas(64) ThreadRecord {
    /// 0 free, else 1 + the index of its ProcRecord: one word, so that who ends a process's records never
    /// hits one that has just become another's.
    std::atomic<uint32_t> state;
    std::atomic<uint32_t> tid;
    uint32_t unused;
    std::atomic<uint32_t> generation; ///< how often the record was given out
    /// Offset in the segment of the token being used, by nesting depth; 0 none. Written by the thread alone.
    std::atomic<uint64_t> busy[kBusyDepth];
    /// Who it is, so that its death can be told from another process with its number.
    std::atomic<uint32_t> pid;
    std::atomic<uint32_t> pid_namespace;
    std::atomic<uint64_t> birth; ///< of the process, as /proc has it; 0 unknown
};
static_assert(sizeof(ThreadRecord) == 64);

} // namespace sd
