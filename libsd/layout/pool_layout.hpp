// The pool from which one process hands over bytes of one direction of one connection, in two memfds: its
// bytes, and its ledger.
//
// The bytes are written by the sender alone. It maps them, and then seals the memfd (kPoolSeals): the size
// stays, and nobody gets another mapping that can be written, so that the descriptor itself can be passed on.
// The ledger is written by the receiver alone, but for `waiters`.
//
// Both sides are of one trust domain, or there is no pool: a reader may look twice at bytes that the sender
// could still write. All the same neither believes the other: an offset is checked against the size, and what
// the ledger says can only have a receiver see its own bytes change.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sd {

constexpr uint64_t kLedgerMagic = 0x31474c4453ULL; // "SDLG1"
constexpr unsigned kPoolBuffers = 4064;            ///< numbers of buffers in a pool
constexpr uint64_t kLeastPool = 4096, kMostPool = uint64_t{1} << 40;
constexpr unsigned kPoolsOfDirection = 8; ///< that a receiver has mapped of one connection at one time
static_assert(kPoolBuffers < 1u << 16, "a HandleRecord has room for them");

/// F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, and of the bytes F_SEAL_FUTURE_WRITE
constexpr int kLedgerSeals = 0x0001 | 0x0002 | 0x0004, kPoolSeals = kLedgerSeals | 0x0010;

struct PoolLedger {
    uint64_t magic;
    std::atomic<uint32_t> taken;    ///< the receiver has mapped the pool: bytes may be handed over
    std::atomic<uint32_t> ended;    ///< the receiver has closed the connection
    std::atomic<uint32_t> releases; ///< counts them; a futex, on which a sender waits for memory
    std::atomic<uint32_t> waiters;  ///< the sender sleeps there, or is about to
    uint8_t unused[104];
    /// Of each buffer: how many of the bytes that were handed over nobody reads any more, modulo 2^32
    std::atomic<uint32_t> released[kPoolBuffers];
};
static_assert(sizeof(PoolLedger) == 16384);

} // namespace sd
