// The shared memory of a link: everything one client process and one listener's processes have in common.
//
// A link is a sealed, sparse memfd made by sd-monitor. Side 0 is the client, side 1 the server. Whatever lies
// in it can be rewritten by the other side at any time: read a word once, check it, use the copy.
//
// Words are of three kinds. *Mirrored* words have one writer, the side they belong to: a transport between
// hosts has a copy of them on each, and carries what one side writes over to the other (credits, flags, what
// is held back, urgent marks, path words, the rings themselves and the table of where they lie). *Local*
// words are for waiters and wakers of one host, written by both sides and never carried (arms, ready bits,
// sleep masks, doorbells). Words of *birth* exist for connections that begin in shared memory, so both ends
// are on one host, and may compete (the SYN queue, a slot's state). The comments say which is which. One who
// is dead is spoken for by the monitor, in all of its words.
//
//   0            LinkHeader
//   kSynOffset   SYN queue: slot numbers + 1, client to server
//   kReadyOffset ready bitmaps: [side][doorbell id][slot / 64]
//   kPieceOffset where the larger rings of each slot lie: [sender][slot][class - 1]
//   kSlotOffset  Slot[kLinkSlots], each with two small inline rings
//   kFirstArenas the beginning of each side's arena
//   kArenaOffset the rest of each side's arena
//
// Everybody maps kLinkMapped bytes at once, and of the rest of an arena what is used there: the file is
// sparse, and costs memory only where something is written, and address space only where it is mapped.
//
// An arena holds the larger rings in which its side sends. It has one allocator, a mark that only rises
// (Side::arena_used): a piece belongs to a slot, a direction and a class for as long as the link lives, like
// the slot itself, whoever uses that next. So no list of free pieces is shared with the peer, and nobody
// waits until a receiver has left a ring. A receiver cannot decline a ring that has been filled; so one whose
// address space is limited maps some of the other side's arena beforehand, has its sender stay within that
// (Side::arena_open), and maps more ahead of what is used while it can (transport/arena.cpp).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sd {

constexpr uint64_t kLinkMagic = 0x314b4e494c4453ULL; // "SDLINK1"
constexpr uint32_t kLayoutVersion = 8;

constexpr unsigned kLinkSlots = 4096;
constexpr unsigned kSynEntries = 4096; ///< power of two; bounds what a listener's backlog can be per link
constexpr unsigned kDoorbells = 64;    ///< ids 1..62 are usable; 0 and 63 are reserved
constexpr unsigned kFirstDoorbell = 1, kLastDoorbell = 62;
/// The bits of a word of ids that stand for somebody; the peer may have set the others, too.
constexpr uint64_t kUsableDoorbells = ~(uint64_t{1} | uint64_t{1} << 63);
/// In rx_arm and syn_arm: the word has not been 0 since a membarrier, so whoever publishes something finds it
/// (queue/sleeper.hpp). A sender leaves it, one of an earlier version takes it away.
constexpr uint64_t kArmFenced = 1;
/// In LinkHeader::Side::in_kernel: somebody who has no id there, or was in the kernel before the link was
/// made.
constexpr uint64_t kInKernelUnnamed = uint64_t{1} << 63;

/// Inline ring of a slot (class 0) and the sizes that a direction can change to.
constexpr uint32_t kInlineRing = 512;
constexpr unsigned kRingClasses = 6;
constexpr uint32_t kRingSize[kRingClasses] = {kInlineRing, 16u << 10, 64u << 10,
                                              256u << 10,  1u << 20,  4u << 20};

/// Flags a side sets about itself (the monitor sets them for a side that died).
enum SideFlag : uint32_t {
    kFlagWriteShut = 1u << 0, ///< no more data will be published: FIN
    kFlagReadShut = 1u << 1,  ///< shutdown(SHUT_RD): the peer may still write, nobody reads
    kFlagClosed = 1u << 2,    ///< the last holder closed: a write is answered by a reset
    kFlagReset = 1u << 3,     ///< RST: closed with unread data, linger 0, or corrupt content
    kFlagDead = 1u << 4,      ///< the processes holding it died
    kFlagReleased = 1u << 5,  ///< this side will never touch the slot again
    kFlagHome = 1u << 6, ///< what is sent to this side is to go over the kernel's socket, and to stay there
    /// What this side sends has gone over to the ring, and kFlagHasLeft is set before it leaves that for the
    /// first time: until then the receiver need not look at PathWords::offer, whose line its reading changes.
    kFlagTellsLeaving = 1u << 7,
    kFlagHasLeft = 1u << 8,
    /// With kFlagReset, by the monitor or the reader of this side: its queue pair has ended, and what it had
    /// not carried cannot come.
    kFlagLost = 1u << 9,
};

/// What a sender that was told to wait for more (TCP_CORK, MSG_MORE) notes about what it holds back;
/// queue/cork.hpp.
struct Corked {
    /// Of the first record that is held back, which is not in the ring yet; 0: nothing is
    std::atomic<uint64_t> header;
    std::atomic<uint64_t> since; ///< CLOCK_MONOTONIC ns
    std::atomic<uint64_t> where; ///< ring::CorkPlace
};

/// Where a direction's bytes go, as its two ends agree on it; its sender's words `offer` and `from` count,
/// and its receiver's `taken`. All is 0 for a connection that was born here. libsd/vfs/paths/moves.hpp has
/// the steps of a move.
struct PathWords {
    /// Of the sender: number of the move << 8 | PathStep; the upper half is give_back.hpp's
    std::atomic<uint64_t> offer;
    std::atomic<uint64_t> from;  ///< of the sender: the offset at which the former path was left
    std::atomic<uint64_t> taken; ///< of the receiver: its answer, as `offer`
};
enum PathStep : uint8_t {
    kPathNone = 0,  ///< in the kernel's socket, since the beginning
    kPathAsked = 1, ///< sender: may I leave the kernel's socket? Receiver: yes, I look at both
    kPathRing = 2,  ///< sender: what follows `from` (of the kernel's stream) is in the ring. Receiver: seen
    /// Sender: what follows `from` (a position in the ring) is in the socket. Receiver: seen
    kPathKernel = 3,
};

/// One side's words of a connection. `control` is written rarely, so the peer can read it on each operation
/// without a cache miss; `credit.consumed` is written on each receive.
struct SlotSide {
    struct alignas(64) Control {
        std::atomic<uint32_t> flags; ///< mirrored; a bit that is set stays until the slot is used again
        /// When FIN or reset came, in the order of its thread's sends (ring::order_now); 0: not known
        std::atomic<uint32_t> ended_at;
        /// Local: doorbell ids to notify when data or flags come; peer's sender swaps in 0
        std::atomic<uint64_t> rx_arm;
        std::atomic<uint64_t> tx_arm;  ///< local: the same when room comes; peer's receiver swaps in 0
        std::atomic<uint64_t> tx_want; ///< local: what that is worth once `consumed` has got this far
        std::atomic<uint64_t> oob;     ///< mirrored: urgent data: position << 9 | byte << 1 | present
        Corked back;                   ///< mirrored
    } control;
    static_assert(sizeof(Control) == 64, "what one operation of the peer looks at is in one line");
    struct alignas(64) Credit {
        // All mirrored, but for `back`.
        /// Bytes of the peer's direction this side has taken, headers included
        std::atomic<uint64_t> consumed;
        /// The peer's Corked::header that this side has shown to itself, since it was held too long
        std::atomic<uint64_t> shown;
        /// Local, changed by both ends: of the peer's direction, whether this side has stopped reading the
        /// ring, so that what it has not read comes by the socket; 0: no (libsd/vfs/paths/give_back.hpp)
        std::atomic<uint64_t> back;
        PathWords path; ///< of this side's sending direction, but for `taken`, which is of the other one
        /// Of this side's sending direction, in shared memory only: the pool from which it would like to hand
        /// over bytes (layout/pool_layout.hpp), as the monitor calls it; 0: none
        std::atomic<uint64_t> pool;
        /// Of the peer's direction, before its first move, in shared memory only: 1 + the bytes that have
        /// come to this side's socket; 0: not told
        std::atomic<uint64_t> counted;
    } credit;
    static_assert(sizeof(Credit) == 64, "nothing that is in nobody's way shares its line");
};

enum class SlotState : uint32_t { free = 0, syn = 1, accepted = 2, refused = 3 };

struct SlotAddress { ///< an address as the connection's ends report it; v4 addresses are v4-mapped
    uint8_t ip[16];
    uint16_t port;   ///< host byte order
    uint16_t family; ///< AF_INET or AF_INET6, as the client's socket has it
};
/// A client's port is believed from here on; the smaller ones say that root gave its blessing.
constexpr uint16_t kFirstFreePort = 1024;

struct alignas(64) Slot {
    SlotSide side[2];
    struct alignas(64) Identity {    // birth
        std::atomic<uint32_t> state; ///< SlotState
        SlotAddress client, server;
        /// Of the client's packets, in its own words; a TTL of 0: the usual one
        uint8_t client_tos, client_ttl;
        uint64_t connected_ns; ///< CLOCK_MONOTONIC when the client connected, for sdstat only
        /// The processor's time stamp then, in the client's own words: the order of accept. Between hosts:
        /// the number of this use of the slot, by the monitor
        uint64_t arrival;
    } identity;
    alignas(64) uint8_t ring[2][kInlineRing]; ///< [0] client to server, [1] server to client
};

enum LinkFlag : uint32_t {
    kLinkListenerClosed = 1u << 0, ///< no further SYN will be taken
    kLinkClientDead = 1u << 1,
    kLinkServerDead = 1u << 2,
    kLinkPaused = 1u << 3, ///< no SYN will be taken before the client has said wire::Op::renew
    // Between hosts, see wire::Op::greet.
    kLinkGreeted = 1u << 4, ///< the monitor has this side's greeting
    kLinkJoined = 1u << 5,  ///< this side can receive
    /// Server side, set by libsd: a connection of this link was left to a child that was forked for it
    kLinkForks = 1u << 6,
    kLinkLost = 1u << 7, ///< this side has ended the queue pair, or died; see wire::Op::carry
};

constexpr unsigned kLinkHolders = 64;

struct LinkHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t slots;
    uint64_t link_id;     ///< unique per monitor boot
    uint32_t listener_id; ///< as in the directory
    uint32_t port_base;   ///< first of the client ports this link's slots use
    struct alignas(64) Side {
        std::atomic<uint32_t> flags; ///< LinkFlag
        /// Pid of one that had this side when the link was made, as the monitor saw it; stays
        std::atomic<uint32_t> process;
        /// Doorbell ids whose waiter sleeps in the kernel and wants its eventfd written
        std::atomic<uint64_t> sleep_mask; ///< local
        /// Birth, server side: doorbell ids to notify of a SYN; client swaps in 0
        std::atomic<uint64_t> syn_arm;
        /// Birth, server side: doorbell ids whose thread may be blocked in the kernel's accept4
        /// (vfs/connections/kernel_queue.hpp)
        std::atomic<uint64_t> in_kernel;
        /// Mirrored: bytes of this side's arena that are given to slots, and what lies unused between. Who
        /// first writes there is this side, so the memory is charged to its control group
        std::atomic<uint64_t> arena_used;
        /// Mirrored: how much of the other side's arena may be used: all, or what a process of this side
        /// whose address space is limited has mapped, or a device may write
        std::atomic<uint64_t> arena_open;
        uint64_t unused[2];
    } side[2];
    /// Local. Bumped by the monitor each time it gives the id to another waiter, so that a cached eventfd is
    /// not used for it.
    std::atomic<uint32_t> bell_generation[2][kDoorbells];
    /// Processes attached, as the monitor saw them; a restarted monitor uses it to find sides that died
    /// meanwhile.
    struct Holder {
        std::atomic<uint32_t> pid;
        uint32_t pad;
        uint64_t start_time;
    } holder[2][kLinkHolders];
};

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

constexpr size_t kSynOffset = align_up(sizeof(LinkHeader), 4096);
constexpr size_t kReadyWords = kLinkSlots / 64;
constexpr size_t kReadyOffset = kSynOffset + kSynEntries * sizeof(uint32_t);
/// Per doorbell: one summary word (bit w: word w is not zero) in a line of its own, then the words.
constexpr size_t kReadyStride = 64 + kReadyWords * 8;
/// Each side's table has pages of its own.
constexpr size_t kPieceOffset = align_up(kReadyOffset + 2 * kDoorbells * kReadyStride, 4096);
constexpr size_t kPieceTable = align_up(kLinkSlots * (kRingClasses - 1) * sizeof(uint32_t), 4096);
constexpr size_t kSlotOffset = kPieceOffset + 2 * kPieceTable;
/// Of each arena this much is mapped with the link.
constexpr uint64_t kFirstArena = 1u << 20;
constexpr uint64_t kArenaBytes = uint64_t{32} << 30;
constexpr uint32_t kPieceUnit = 16u << 10; ///< in which offsets of pieces are counted
constexpr size_t kFirstArenas = 6u << 20;
constexpr size_t kArenaOffset = kFirstArenas + 2 * kFirstArena;
constexpr size_t kLinkMapped = kArenaOffset;
constexpr size_t kLinkBytes = kArenaOffset + 2 * kArenaBytes;

static_assert(kSlotOffset + kLinkSlots * sizeof(Slot) <= kFirstArenas);
static_assert(kLinkMapped <= 8u << 20, "what a link takes of the address space until it is used");
static_assert(kRingSize[1] == kPieceUnit && kArenaBytes / kPieceUnit < UINT32_MAX);
static_assert(kReadyWords <= 64, "one summary word covers all ready words");
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Slot) == 384 - 64 + 2 * kInlineRing || sizeof(Slot) <= 1536,
              "an idle connection must stay far below 4 KiB");

/// Access to the parts of a mapped link; `base` is where this process mapped it.
struct LinkView {
    uint8_t *base = nullptr;
    LinkHeader &header() const { return *reinterpret_cast<LinkHeader *>(base); }
    std::atomic<uint32_t> &syn(uint32_t i) const {
        return reinterpret_cast<std::atomic<uint32_t> *>(base + kSynOffset)[i & (kSynEntries - 1)];
    }
    std::atomic<uint64_t> &ready_summary(unsigned side, unsigned bell) const {
        return *reinterpret_cast<std::atomic<uint64_t> *>(base + kReadyOffset +
                                                          (side * kDoorbells + bell) * kReadyStride);
    }
    std::atomic<uint64_t> &ready_word(unsigned side, unsigned bell, unsigned w) const {
        return (&ready_summary(side, bell))[8 + w];
    }
    Slot &slot(uint32_t i) const { return reinterpret_cast<Slot *>(base + kSlotOffset)[i]; }
    /// Where the ring of class `cls` (not 0) that `sender` sends in lies in its arena: 1 + kPieceUnit
    /// units; 0: there is none yet. Written by that side alone, once.
    std::atomic<uint32_t> &piece(uint32_t i, unsigned sender, unsigned cls) const {
        return reinterpret_cast<std::atomic<uint32_t> *>(
            base + kPieceOffset + sender * kPieceTable)[i * (kRingClasses - 1) + cls - 1];
    }
};

} // namespace sd
