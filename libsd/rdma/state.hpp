// What the plugin keeps: of the device, of each peer process, and of each link.
//
// Nobody waits for a lock on the data path, and a signal handler may publish in the middle of anything:
//  - Polling, and all that is said about receiving, belongs to who has Host::polling; sending to who has
//    Peer::sending. Who does not get it has left a mark (dirty bits, then `wanted`), and the owner looks at
//    `wanted` once more after it has let go. Either the owner sees the mark, or the other one finds the lock
//    free: both are sequentially consistent.
//  - What the two tell each other are words with one writer each.
#pragma once
#include "libsd/rdma/message.hpp"
#include "libsd/rdma/plugin.hpp"
#include <infiniband/verbs.h>
#include <sched.h>
#include <vector>

namespace sd::rdma {

class TryLock {
  public:
    bool get() noexcept { return !held_.exchange(true, std::memory_order_seq_cst); }
    void wait() noexcept { // for what is no data path, and in no handler
        while (!get())
            sched_yield();
    }
    void let_go() noexcept { held_.store(false, std::memory_order_seq_cst); }

  private:
    std::atomic<bool> held_{false};
};

/// How far one direction of a slot has gone.
struct Carried {
    uint32_t cls;
    uint64_t position, base;
};

/// A record that its sender holds back (queue/cork.hpp), and where it lies; 0: none.
struct CorkedRecord {
    uint64_t header, position;
    uint32_t cls, offset;
};

/// All 0 at first. `out` and what follows it belong to who sends, `in` and the rest to who polls.
struct SlotState {
    Carried out;
    uint32_t use;      ///< Message::use of what is sent
    uint64_t consumed; ///< as it was last told
    Words words;
    CorkedRecord corked;
    alignas(64) Carried in;
    uint32_t in_use; ///< of what is taken
    CorkedRecord in_corked;
};

struct Remote {
    Peer *peer;
    uint32_t number;
    LinkView view;
    unsigned side;
    LinkCalls calls;
    void *user;
    SlotState *slot; ///< of kLinkSlots; memory of its own
    /// Slots that have something to say
    std::atomic<uint64_t> dirty_words{0};
    std::atomic<uint64_t> dirty[kLinkSlots / 64]{};
    /// That owe credit, which is told with the next thing they have to say, or when nothing else is to do
    std::atomic<uint64_t> owing_words{0};
    std::atomic<uint64_t> owing[kLinkSlots / 64]{};
    /// Whose sender was told that there is no room in the mailbox
    std::atomic<uint64_t> waiting_words{0};
    std::atomic<uint64_t> waiting[kLinkSlots / 64]{};
};
static_assert(kLinkSlots / 64 <= 64);

constexpr uint32_t kSendDepth = 128, kSignalEach = 16, kBatch = 16;
/// What is owed of a ring for as long as nobody sleeps is less. Its sender waits for a quarter, or has a
/// larger ring than the smallest one.
constexpr uint32_t may_owe(uint32_t cls) { return cls == 0 ? kRingSize[0] / 4 * 3 : kRingSize[cls] / 4; }

struct alignas(64) Peer {
    Host *host = nullptr;
    ibv_qp *pair = nullptr;
    uint8_t port = 0, address_index = 0;
    ibv_mtu mtu = IBV_MTU_256;
    std::atomic<PeerState> state{PeerState::idle};
    uint32_t max_inline = 0;

    /// Both in one piece of memory: what the peer writes, and what it will have, at the same offsets.
    uint8_t *mailbox = nullptr, *staging = nullptr;
    ibv_mr *mailbox_memory = nullptr, *staging_memory = nullptr;
    Hello theirs{};

    // Of who sends.
    alignas(64) TryLock sending;
    std::atomic<bool> wanted{false};
    std::vector<Remote *> links; ///< also read by who polls; changed with both locks
    size_t next_link = 0;
    std::atomic<uint64_t> sent{0};     ///< bytes of their mailbox, of all time
    std::atomic<uint32_t> messages{0}; ///< of all time
    uint64_t told_emptied = 0;
    uint32_t told_receives = 0;
    std::atomic<uint64_t> work_posted{0};
    uint32_t since_signal = 0;
    Counts counts{};

    // Of who polls; read by who sends.
    alignas(64) std::atomic<uint64_t> work_done{0};
    std::atomic<uint64_t> their_emptied{0};
    std::atomic<uint32_t> their_receives{0};
    std::atomic<uint64_t> emptied{0};
    std::atomic<bool> starved{false};  ///< some slot of its links is in Remote::waiting
    std::atomic<uint32_t> receives{0}; ///< posted, of all time
    uint32_t receives_owed = 0;
    std::atomic<uint64_t> received{0}, credits{0};
    uint32_t receives_done = 0;
    bool drained = false; ///< all work was flushed
    bool over = false;    ///< what comes is not taken any more
};

struct Host {
    Limits limits{};
    ibv_context *context = nullptr;
    ibv_pd *domain = nullptr;
    ibv_comp_channel *channel = nullptr;
    ibv_cq *queue = nullptr;
    TryLock polling;
    std::atomic<bool> wanted{false};  ///< somebody has found it taken
    std::atomic<uint32_t> endings{0}; ///< of peers
    std::atomic<bool> armed{false};   ///< the queue is, or its event has not been taken yet
    std::atomic<bool> tells{false};   ///< somebody is about to sleep: what is owed is told with the next look
    uint32_t idle_looks = 0;          ///< in a row; of who has `polling`
    std::vector<Peer *> peers;        ///< changed with `polling`
    std::atomic<uint64_t> registered_here{0};
    std::atomic<uint64_t> &registered() noexcept {
        return limits.registered ? *limits.registered : registered_here;
    }
};

inline void mark_ended(Peer &p) noexcept {
    if (p.state.exchange(PeerState::ended, std::memory_order_seq_cst) != PeerState::ended)
        p.host->endings.fetch_add(1, std::memory_order_seq_cst);
}

/// What a work request's id says: whose it is, and which kind. Peers lie at multiples of 64.
enum Kind : uint64_t { kWork = 0, kReceive = 1, kLastWork = 2, kKinds = 7 };
inline uint64_t work_id(Peer *p, Kind k) { return reinterpret_cast<uint64_t>(p) | k; }
inline Peer *peer_of(uint64_t id) { return reinterpret_cast<Peer *>(id & ~uint64_t{kKinds}); }

/// A set of slots of a link: a bit each, and one for each word of them.
inline void add_slot(std::atomic<uint64_t> &words, std::atomic<uint64_t> *set, uint32_t slot) noexcept {
    set[slot / 64].fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
    words.fetch_or(uint64_t{1} << slot / 64, std::memory_order_seq_cst);
}
inline bool has_slot(const std::atomic<uint64_t> *set, uint32_t slot) noexcept {
    return set[slot / 64].load(std::memory_order_relaxed) >> slot % 64 & 1;
}

// sending.cpp
bool publish(Remote *, uint32_t slot, bool credit_alone);
bool may_send(Remote *, uint32_t slot);
void tell_owed(Peer &) noexcept; ///< credit that nothing has taken along
void recycle_out(Remote &, uint32_t slot, uint32_t use) noexcept;
void serve(Peer &) noexcept; ///< sends what waits, if nobody does it now
bool post_receives(Peer &, uint32_t n) noexcept;

// receiving.cpp
unsigned progress(Host *);
void take_all(Host *);
void recycle_in(Remote &, uint32_t slot, uint32_t use) noexcept;
Arrived arrived(const Remote &, uint32_t slot) noexcept;
/// A message has been written whole: `at` is its place, in units; `bytes` how long it is. False: it is not
/// one.
bool take_message(Peer &, uint32_t at, uint32_t bytes) noexcept;

// places.cpp
int find_places(Host *const *open, unsigned hosts, Place *, unsigned most);
/// Is the port up, and is the address there still? 0, with its MTU; -ENODEV, -ENETDOWN.
int look_at_place(ibv_context *, const Place &, ibv_mtu *);

// device.cpp
int open_host(const Limits &, const Place &, Host **);
void close_host(Host *);

// pair.cpp
int make_peer(Host *, const Place &, Hello *, Peer **);
int join_peer(Peer *, const Hello &);
void start_peer(Peer *);
void end_peer(Peer *);
void drop_peer(Peer *);

} // namespace sd::rdma
