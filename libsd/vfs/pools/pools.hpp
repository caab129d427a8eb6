// Pools: memory from which bytes of a connection are handed over instead of copied (docs/design/buffers.md).
//
// A pool that this process sends from is an OwnPool. Its connection is known by segment, record and
// generation, so that nothing of it ever goes to another peer. A pool of a peer that is mapped here is a
// TakenPool. They hang on the File, and are changed with the receive token; what is received in place has a
// reference of its own, so the mapping may outlive the connection.
#pragma once
#include "libsd/layout/buffer_calls.hpp"
#include "libsd/layout/protocol.hpp"
#include "libsd/queue/ring.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

struct OwnChannel;

struct OwnPool {
    uint8_t *bytes = nullptr; ///< null: the object is free
    uint64_t size = 0;
    PoolLedger *ledger = nullptr;
    uint64_t name = 0; ///< the monitor's
    uint64_t link_id = 0;
    Ofd *ofd = nullptr;
    uint32_t slot = 0;
    uint16_t generation = 0; ///< Ofd::generation
    uint8_t side = 0;
    /// Nothing is handed over from it any more: it is a parent's, or who may read it is of another domain
    /// now.
    std::atomic<bool> ended{false};
    int bytes_fd = -1, ledger_fd = -1; ///< hidden: to bring it back to a restarted monitor
    OwnPool *pool_next = nullptr;
};

struct TakenPool {
    const uint8_t *bytes = nullptr;
    uint64_t size = 0;
    PoolLedger *ledger = nullptr;
    uint64_t name = 0;
    int end_fd = -1;                ///< hidden: it is a channel (channels.hpp), whose `bytes` are none
    std::atomic<uint32_t> refs{0};  ///< the File's, and one for each piece that was received in place
    std::atomic<uint32_t> epoch{0}; ///< another one in a child, whose parent's pieces are not the child's
    TakenPool *next = nullptr;      ///< of the File
    TakenPool *pool_next = nullptr;
};

// own_pools.cpp: see BufferCalls
[[nodiscard]] long make_pool(int fd, uint64_t bytes, OwnPoolView *view) noexcept;
void drop_pool(void *pool) noexcept;
/// Does it belong to this connection? With a token of it.
inline bool is_pool_of(const OwnPool &pool, const Ofd &o) noexcept {
    return pool.ofd == &o && pool.generation == o.generation;
}
/// Tells the monitor of a pool, or of what counts as one for it, by the `*name` that it has or a new one. 0
/// or -errno. `fds`: as wire::Op::pool has them.
[[nodiscard]] long name_to_monitor(const wire::Pool &body, const int (&fds)[2], uint64_t *name) noexcept;
/// Has a pool of this connection been made in this process?
bool announces_pool(const Ofd &o) noexcept;
/// The peers may be of another trust domain from now on: this process gives up its right to write what they
/// may read. Its buffers stay where they are, with memory of its own under them.
void end_own_pools() noexcept;
/// With a new monitor. Upward::restore, and Upward::hidden_moved.
void restore_pools() noexcept;
void pools_moved(int from, int to) noexcept;
void pools_fork_child() noexcept;

// taken_pools.cpp
/// With the receive token: the pool in which a handle's bytes lie, checked; nullptr: not mapped, or nonsense,
/// which take_pool_of_next() tells.
[[nodiscard]] TakenPool *pool_of_handle(const File &f, const ring::HandleRecord &where, uint32_t length) noexcept;
constexpr uint64_t offset_of(const ring::HandleRecord &where) {
    return where.place & ((uint64_t{1} << ring::kHandleOffsetBits) - 1);
}
constexpr uint32_t buffer_of(const ring::HandleRecord &where) {
    return static_cast<uint32_t>(where.place >> ring::kHandleOffsetBits);
}
/// Maps the pool of the peer's that the next record of the connection needs, if it needs one; the caller has
/// pinned the File, and holds no token. 0, or -errno: -EPROTO, no honest peer of this domain has such a pool;
/// others: not now.
[[nodiscard]] long take_pool_of_next(File &f) noexcept;
/// The one that the peer would like to hand over bytes from, if it has not been looked at.
void take_announced_pool(File &f) noexcept;
/// The same, if it is a channel.
void take_announced_channel(File &f) noexcept;
/// With the receive token: bytes at a handle were copied out, or passed over.
void count_released(TakenPool &pool, uint32_t buffer, uint64_t bytes) noexcept;
void release_taken(void *pool, uint32_t epoch, uint32_t buffer, uint64_t bytes) noexcept;
struct DetachedPools {
    TakenPool *first;
    OwnChannel *channel;
    explicit operator bool() const noexcept { return first || channel; }
};
/// With both tokens, when the File ceases to stand for its connection: what is to be given to
/// let_go_of_pools() without them.
[[nodiscard]] DetachedPools detach_pools(File &f) noexcept;
/// `over`: nobody else holds this end of the connection.
void let_go_of_pools(const DetachedPools &pools, bool over, uint64_t link_id, unsigned peer_side) noexcept;
void taken_pools_moved(int from, int to) noexcept;
void taken_pools_fork_child() noexcept;

// handing.cpp: see BufferCalls
[[nodiscard]] long is_pool_usable(int fd, void *pool) noexcept;
[[nodiscard]] long hand_over(int fd, void *pool, uint64_t offset, uint64_t bytes, uint32_t buffer,
                             int flags) noexcept;
[[nodiscard]] long receive_in_place(int fd, void *spare, uint64_t spare_bytes, uint64_t most, int flags,
                                    ReceivedBytes *out) noexcept;

} // namespace sd
