// A link as this process has it mapped, the table of all of them, and notification of the other side.
#pragma once
#include "libsd/control/pool.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/transport/arena.hpp"
#include "libsd/transport/transport.hpp"

namespace sd {

constexpr unsigned kMaxLinks = 8192;

/// One mapped link. Made and dropped under the link table's lock; the pointer stays valid (type-stable) for
/// the life of the process.
/// Who has the other side of a link, as the monitor says.
enum class LinkPeer : uint8_t {
    own, ///< processes of this one's trust domain, which could end it in any case
    /// Others, or who knows. They have no say in how much this process maps (arena.hpp), and no lock of the
    /// memory's file is waited for: who writes to that file has it for as long as he likes.
    stranger,
};

/// `is_own`: of a message of the monitor's; 0 from one that is older.
constexpr LinkPeer peer_of(uint32_t is_own) { return is_own == 1 ? LinkPeer::own : LinkPeer::stranger; }

struct LinkMap {
    LinkView view; ///< what this side works on
    /// Where the other side's waiters and the words of birth are: the same, if both have one memory
    LinkView far;
    const Transport *transport = &shm_transport;
    uint64_t id = 0;
    uint32_t index = 0; ///< in the table of this process
    uint32_t listener_id = 0;
    uint8_t side = 0;       ///< ours: 0 client, 1 server
    uint8_t reach = 0;      ///< client side: for which new connections, wire::Reach; 0: none
    uint64_t begins_at = 0; ///< in the memfd
    int memfd = -1;         ///< kept to bring the link back to a restarted monitor, and for its arenas
    std::atomic<uint32_t> users{0}; ///< Files on it, plus 1 while new connections may use it
    /// Client side: no new connections here (the reference for them is gone)
    std::atomic<bool> retired{false};
    /// Client side, inherited over fork: the parent's reference for new connections came along
    std::atomic<bool> inherited{false};
    uint32_t place = 0; ///< server side: index in ListenerSegment::link
    /// Server side: forks right after something was accepted here, up to two
    uint8_t forks_after_accept = 0;
    std::atomic<uint8_t> in_vain{0}; ///< kArmFenced found without an id, in a row; a hint

    /// Of each side's arena: where its parts are mapped (part 0 is with the link), nullptr: not; and the
    /// empty memory of those of a former link, under `part_lock`.
    std::atomic<uint8_t *> part[2][kArenaParts]{};
    uint8_t *former_part[2][kArenaParts]{};
    std::atomic<bool> narrow{false};  ///< see narrow_arena()
    std::atomic<bool> foreign{false}; ///< see LinkPeer
    /// Of arena_claims: this link's, and of that, where it is a stranger's, how much of his arena
    std::atomic<uint64_t> claimed{0}, strangers_claimed{0};
    Lock part_lock;

    // Client side only, under `slot_lock`: which slots are ours to use.
    Lock slot_lock;
    uint32_t slot_high = 0;         ///< slots below have been used
    MapVector<uint32_t> idle_slots; ///< released by both sides
    /// Closed by us, not yet released by the server: a queue from zombie_first on
    MapVector<uint32_t> zombie_slots;
    size_t zombie_first = 0;
    uint32_t syn_tail = 0;
    static constexpr unsigned kAgreed = 32;
    /// When the kernel last had the listener at an address, and at any; libsd/vfs/connections/choice.cpp
    std::atomic<uint64_t> agreed[kAgreed]{}, listens{0};

    /// What rings the other side's waiters: an eventfd, or a socket (with kSocket set) that leads to a waiter
    /// of another trust domain. `generation` tells whether the id was given to another waiter since.
    struct PeerBell {
        static constexpr int kUnknown = -1;
        static constexpr int kRung = -2;    ///< the monitor was asked to ring it, once
        static constexpr int kNotOurs = -3; ///< only the monitor may ring it for us; counts down to kAskAgain
        static constexpr int kAskAgain = kNotOurs - 32;
        static constexpr int kSocket = 1 << 30;
        std::atomic<int> fd{-1};
        std::atomic<uint32_t> generation{0};
    } peer_bell[kDoorbells];

    LinkMap *pool_next = nullptr;
};

/// Maps the memfd (ownership goes to the LinkMap on success) after checking seals and size (the other side
/// may have written over what is in it already), with a reference for the caller. nullptr: `*error` holds
/// -errno. `reach`: for which new connections this client may use it (wire::Reach), for which it then has the
/// other reference; 0: none, as the server, or where its slots are another process's to give out. Other
/// threads find the link before this returns, and may be about to retire all that take new connections
/// (connect.cpp): so it is said here, and not afterwards.
LinkMap *map_link(int memfd, uint64_t id, unsigned side, uint8_t reach, LinkPeer peer, long *error) noexcept;
/// The address space that links take in this process, that of former ones included.
uint64_t mapped_link_bytes() noexcept;
/// Set while all that this process maps is locked into memory (mlockall): a link would be filled with pages,
/// all of them.
extern std::atomic<bool> mappings_are_locked;
/// False: the program's limit on address space (RLIMIT_AS) is below what one link more takes, or it would be
/// locked, so that map_link() is bound to fail.
bool links_can_be_mapped() noexcept;
/// Puts empty memory where something of a link was mapped. A thread that looked a File up just before another
/// one closed it may be about to go there. False: nothing was done, since the address space is limited.
[[nodiscard]] bool put_empty_memory(void *at, size_t bytes) noexcept;
/// Does [from, to) lie in such memory?
bool is_empty_memory(uint64_t from, uint64_t to) noexcept;
/// Unmaps and recycles; the caller made sure that nobody uses it (users == 0).
void unmap_link(LinkMap *l) noexcept;
LinkMap *link_by_index(uint32_t index) noexcept;
/// One more user, to be ended with link_unuse(). False: the last one has gone, or is going. One that was
/// found without a reference may have become another link before, so the caller looks once more whether it is
/// the right one.
[[nodiscard]] inline bool link_use(LinkMap &l) noexcept {
    uint32_t users = l.users.load(std::memory_order_relaxed);
    while (users != 0 && !l.users.compare_exchange_weak(users, users + 1, std::memory_order_acq_rel)) {
    }
    return users != 0;
}
/// Linear in the number of links; slow paths only.
LinkMap *find_link(uint64_t id, unsigned side) noexcept;
uint32_t link_table_high() noexcept;
void reset_link_locks_in_child() noexcept;
/// Upward::hidden_moved, for memfds and the doorbells of peers.
void links_moved(int from, int to) noexcept;

/// Tells whoever armed `arm` (a word of the OTHER side's slot control) of what was published. Call after
/// publishing; cheap when nobody did. May be called by any thread at the same time as anything.
void notify_slow(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept;
inline void notify(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    cpu::in_order_for_membarrier(); // A before B of queue/sleeper.hpp
    if (arm.load(std::memory_order_relaxed)) [[unlikely]]
        notify_slow(l, slot, arm);
}
/// For transports: takes the ids from an arm word of the other side, marks the slot for those who had armed
/// it, and rings those of them who sleep.
void wake_armed(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept;
/// The same for the acceptors of the link (client side, after a SYN).
void notify_acceptors(LinkMap &l) noexcept;
/// Wakes everybody of the other side who sleeps.
void ring_sleepers(LinkMap &l) noexcept;

/// Pairs with the fence-free reads of arm words: after storing arm words or sleep masks, and before looking
/// at the rings once more.
void heavy_barrier() noexcept;
/// Registers this process for other processes' heavy_barrier; once, at start.
void register_barrier() noexcept;

} // namespace sd
