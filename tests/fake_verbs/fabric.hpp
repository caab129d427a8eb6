// The shared memory of the fake verbs: what hosts, devices, queue pairs, completion queues and registered
// memory there are, and what is under way between them. One file, mapped by every process that uses them.
//
// A queue pair's work lies in its own send queue until somebody carries it out (engine.hpp): in the post
// itself, or in the device process where faults are wanted. Entries belong to a Context, an open device; they
// are free again when that is closed, or has died with its processes.
//
// Locks are taken in the order QueuePair::send_lock, its peer's receive_lock, CompletionQueue::lock.
#pragma once
#include "tests/fake_verbs/lock.hpp"
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>

namespace sd::fake_verbs {

constexpr uint64_t kMagic = 0x3142524556454b46; // "FKEVERB1"

constexpr unsigned kHosts = 4, kDevices = 2;
constexpr unsigned kContexts = 1024, kDomains = 2048, kMemories = 8192, kQueuePairs = 1024, kQueues = 512;
constexpr unsigned kChannels = 512;
constexpr uint32_t kSendDepth = 1024, kReceiveDepth = 4096, kQueueDepth = 16384;
constexpr uint32_t kMaxInline = 256;
constexpr unsigned kMaxPieces = 8;

/// Each entry of a table. `number` stays different from one use of the entry to the next.
struct Entry {
    std::atomic<uint32_t> used;
    std::atomic<uint32_t> number;
    uint32_t context; ///< whose it is
};

/// An open device. Its owner holds a lock on the file context.N for as long as a process has the descriptor.
struct Context : Entry {
    uint32_t host, device;
    uint32_t pid;
    std::atomic<uint32_t> gone; ///< the device was removed
};

struct Domain : Entry {};

struct Memory : Entry {
    uint32_t domain;
    uint32_t pid;
    uint32_t access; ///< IBV_ACCESS_*
    /// In the owner, of the file that lies there; -1: memory of its own, which only the kernel can reach
    int fd;
    uint64_t address, length, file_offset;
};
/// Keys name the entry, and which use of it.
inline uint32_t key_of(uint32_t index, uint32_t number) { return index << 16 | (number & 0xffff); }
inline uint32_t memory_of(uint32_t key) { return key >> 16; }

struct Channel : Entry {};

struct Completion {
    ibv_wc wc;
    uint64_t sequence; ///< of the work request
    uint32_t queue_pair, number;
    bool sending;
};

enum Armed : uint32_t { kNotArmed, kSolicited, kAny };

struct CompletionQueue : Entry {
    Lock lock;
    uint32_t depth;
    uint32_t channel; ///< kChannels: none
    std::atomic<uint32_t> armed;
    std::atomic<uint32_t> overrun;
    std::atomic<uint32_t> waiting; ///< queue pairs that complete here and wait for a receive of their peer's
    uint64_t looked_ns;            ///< when they were last looked at
    uint64_t known_head;           ///< with `lock`: `head`, when it was last looked at
    alignas(64) std::atomic<uint64_t> tail; ///< written
    alignas(64) Lock polling;               ///< of its owner's threads
    std::atomic<uint64_t> head;             ///< taken
    Completion entry[kQueueDepth];
};

struct Piece {
    uint64_t address;
    uint32_t length, key;
};

struct Work {
    uint64_t id;
    uint32_t opcode, flags; ///< ibv_wr_opcode, IBV_SEND_*
    uint32_t immediate;     ///< as it travels
    uint32_t key;
    uint64_t remote;
    uint32_t pieces, length;
    uint32_t status;                ///< ibv_wc_status, once carried out
    uint32_t written;               ///< bytes of it that were made visible early
    uint64_t start_at, complete_at; ///< CLOCK_MONOTONIC ns, with faults
    Piece piece[kMaxPieces];
    uint8_t data[kMaxInline];
};

struct QueuePair : Entry {
    uint32_t domain, send_queue, receive_queue;
    uint32_t send_depth, receive_depth, max_inline, max_pieces;
    bool all_signaled;
    std::atomic<uint32_t> state; ///< ibv_qp_state
    // As set by modify
    uint32_t access, peer, peer_host, rnr_retry, retry, mtu, port;
    uint64_t peer_seen; ///< when the peer's process was last looked at

    alignas(64) Lock send_lock;
    uint64_t carried;   ///< work that was carried out
    uint64_t completed; ///< work whose completion was written, if it has one
    std::atomic<uint64_t> posted;
    /// Work whose place can be used again, since a completion from there on was polled
    std::atomic<uint64_t> freed;
    std::atomic<uint32_t> waits; ///< for a receive of the peer

    alignas(64) Lock receive_lock;
    uint64_t received, offered; ///< receives used, and posted
    uint64_t receive[kReceiveDepth];

    Work work[kSendDepth];
};
/// Of 24 bits: the entry, and which use of it.
inline uint32_t queue_pair_number(uint32_t index, uint32_t number) {
    return (number % 8191 + 1) << 10 | index;
}
inline uint32_t queue_pair_of(uint32_t number) { return number & (kQueuePairs - 1); }

/// On demand. All 0: work is carried out in the post, at once.
struct Faults {
    std::atomic<uint32_t> device;  ///< 1: the device process carries work out, some time after the post
    std::atomic<uint32_t> late_us; ///< completions come up to so much later than the bytes
    std::atomic<uint32_t> reorder; ///< of a thousand looks at a queue pair so many pass it over
    std::atomic<uint32_t> early;   ///< of a thousand writes so many show in pieces, the first bytes first
    std::atomic<uint32_t> cut;     ///< of a million work requests so many end their queue pair
    std::atomic<uint32_t> rnr;     ///< of a thousand immediates so many find no receive at first
};

struct Device {
    std::atomic<uint32_t> removed, port_down;
    std::atomic<uint32_t> full;    ///< no further queue pair can be made
    std::atomic<uint32_t> refused; ///< times that one was asked for then, with all that may lie inline
};

struct Fabric {
    std::atomic<uint64_t> magic;
    Lock lock; ///< for taking and freeing entries
    Faults faults;
    std::atomic<uint32_t> draws;
    std::atomic<uint32_t> bell;           ///< futex: bumped for the device process
    std::atomic<uint64_t> through_kernel; ///< bytes that were copied by the kernel, for memory of no file
    Device device[kHosts][kDevices];
    alignas(64) std::atomic<uint64_t> pending[kQueuePairs / 64]; ///< queue pairs for the device process
    Context context[kContexts];
    Domain domain[kDomains];
    Memory memory[kMemories];
    Channel channel[kChannels];
    QueuePair queue_pair[kQueuePairs];
    CompletionQueue queue[kQueues];
};

/// The fabric in the folder $SD_FAKE_VERBS, made if it is not there; nullptr: none is wanted, or it cannot
/// be.
Fabric *fabric() noexcept;
const char *folder() noexcept;

} // namespace sd::fake_verbs
