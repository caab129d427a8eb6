// The family segment: what the processes that share open file descriptions know about them, and no peer can
// write.
//
// Each process that makes accelerated sockets has one segment (a sealed memfd). fork inherits the mapping, so
// parent and child work on the same records; sockets a child makes later live in the child's own segment.
// sd-monitor gets the memfd with HELLO: it reads the statistics for sdstat, and when a process dies it closes
// what only that process held. The monitor treats the content as untrusted input.
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/state.hpp"
#include <atomic>
#include <cstdint>

namespace sd {

constexpr uint64_t kSegmentMagic = 0x31474553'4453ULL; // "SDSEG1"
/// Records that the table has room for. The last of them are none: there sddump has its area
/// (layout/capture_layout.hpp).
constexpr unsigned kOfdRoom = 1u << 18;
constexpr unsigned kOfds = kOfdRoom - (1u << 16); ///< open file descriptions per segment; 0 is never used
constexpr unsigned kSegProcs = 512; ///< processes that may share a segment at one time; 0 is the creator
/// This ProcRecord holds connections that are on their way to another process (SCM_RIGHTS); the monitor
/// clears its bits.
constexpr unsigned kParcelProc = 1;
constexpr unsigned kSegThreads = kSegThreadLimit;

enum class OfdState : uint32_t { free = 0, open = 1, closing = 2 };

/// Set once something other than plain data transfer must be looked at first; the data path tests for zero
/// only.
enum TxBlock : uint32_t {
    kTxShut = 1,
    kTxReset = 4,
    kTxCork = 8, ///< TCP_CORK is on, or something may be held back
    /// The connection is a kernel socket for all but a bridge (vfs/sharing/moved.hpp); set by the monitor
    kTxMoved = 16,
    kTxCapture = 32, ///< what is sent is copied for sddump
    /// What is sent goes to the kernel's socket, or is about to change its path (vfs/paths/moves.hpp)
    kTxPath = 64,
    /// With kTxMoved: the kernel socket that the monitor has is one more path of the connection, and nobody
    /// carries between the two (vfs/paths/adopt.hpp). kTxPath beside it: the end is to leave the ring
    kTxAdopt = 128,
    /// With kTxAdopt: all who hold either end have the socket, and whoever comes first begins
    kTxBegin = 256,
    kTxGiven = 512 ///< with kTxBegin: the socket has the connection's options
};
/// Which adoption kTxAdopt is about; 0: of one who holds the end alone, and takes both steps at once.
constexpr unsigned kTxSerialShift = 16;
constexpr uint16_t adoption_of(uint32_t block) { return static_cast<uint16_t>(block >> kTxSerialShift); }
constexpr uint32_t kTxAdopting = kTxMoved | kTxAdopt | kTxBegin | kTxGiven | ~uint32_t{0} << kTxSerialShift;
/// Ofd::rcvlowat of a moved connection: sends whoever receives the long way round, where the mark is looked
/// at.
constexpr int32_t kMovedLowat = INT32_MAX;
/// In Ofd::rcvlowat, beside the program's value: what is received is copied for sddump. Sends receivers the
/// long way round in the same manner.
constexpr int32_t kCaptureLowat = 1 << 30;
/// As kMovedLowat, while what is to be received may be in the kernel's socket (the program's value is in
/// kPathRcvlowat then); it may be captured as well.
constexpr int32_t kPathLowat = 1 << 29;
/// In Ofd::flags_seen, beside the peer's SideFlags: the connection has a kernel socket that may carry it.
constexpr uint32_t kSeenPath = 1u << 15;
constexpr uint32_t kTxEnded = kTxShut | kTxReset;

enum PathWanted : int32_t {
    kWantKernel = 0,
    kWantRing = 1,
    kWantBoth = 2 /* for tests: now this, now that */
};
/// What else is known of a connection with paths.
enum PathStays : int32_t {
    kSentUrgent = 1,  ///< since the sending direction went the way that it goes
    kStaysPinned = 2, ///< neither direction leaves the socket: somebody without libsd may have it
    kWasPeeked = 4,   ///< what is to be received next
    kHiddenAlive = 8, ///< the socket has keepalives that the program has not asked for
    kSentMore = 16,   ///< the last send over the socket was with MSG_MORE
    kNoNagle = 32,    ///< the socket does not wait for acknowledgements, whatever the program has set
    kNoSyn = 64,      ///< the socket was made without a handshake: no SYN counts among what it has sent
    /// From here on a number: sends at which the receiver had not told of all yet, before the first move
    kUncounted = 256
};

/// An open file description: one end of an accelerated connection.
struct alignas(64) Ofd {
    std::atomic<uint32_t> state;  ///< OfdState
    std::atomic<uint32_t> status; ///< O_NONBLOCK, O_ASYNC as fcntl(F_GETFL) reports them
    uint64_t link_id;
    uint32_t slot;
    uint8_t side;                   ///< 0 client, 1 server
    uint8_t family;                 ///< AF_INET or AF_INET6, which IPV6_ADDRFORM turns into AF_INET
    uint16_t generation;            ///< bumped each time the record is used again
    std::atomic<uint32_t> tx_block; ///< TxBlock bits
    /// Pending socket error (positive errno), taken by the first call that reports it
    std::atomic<int32_t> so_error;
    std::atomic<uint32_t> rx_shut;    ///< 1 after shutdown(SHUT_RD)
    std::atomic<uint32_t> flags_seen; ///< peer's SideFlags already acted on
    std::atomic<int32_t> rcvlowat;
    std::atomic<int32_t> lowat_kept;               ///< with kTxAdopt: what rcvlowat was before
    std::atomic<int64_t> rcvtimeo_ns, sndtimeo_ns; ///< 0: none

    struct alignas(64) Tx {
        Token token;
        TxState s;
    } tx;
    struct alignas(64) Rx {
        Token token;
        RxState s;
    } rx;
    struct alignas(64) Options { ///< those that are kept here instead of in a kernel socket
        std::atomic<int32_t> nodelay, cork, keepalive, oobinline, reuseaddr, reuseport;
        std::atomic<int32_t> linger_on, linger_s;
        std::atomic<int32_t> keepidle, keepintvl, keepcnt, quickack, user_timeout;
        /// SO_SNDBUF as it reads back, once it was set; 0: the kernel's own choice
        std::atomic<int32_t> sndbuf;
        /// SO_ZEROCOPY: 0 off, else one more than the MSG_ZEROCOPY sends made so far
        std::atomic<int32_t> zerocopy_next;
        std::atomic<int32_t> zerocopy_told; ///< how many of them the error queue has reported as complete
    } opt;
};
static_assert(sizeof(Ofd) == 256);

// Of a connection with paths (kSeenPath) these five options are kept in its socket, and their words are used
// for vfs/paths/moves.hpp:
constexpr auto kPathTx = &Ofd::Options::keepidle; ///< number of the last move << 8 | PathStep; with the token
constexpr auto kPathRx = &Ofd::Options::keepintvl;          ///< the same of the receiving direction
constexpr auto kPathWanted = &Ofd::Options::keepcnt;        ///< PathWanted
constexpr auto kPathStays = &Ofd::Options::quickack;        ///< PathStays
constexpr auto kPathRcvlowat = &Ofd::Options::user_timeout; ///< SO_RCVLOWAT as the program has set it

struct ProcRecord {
    std::atomic<uint32_t> state; ///< 0 free, 1 in use, 2 being reaped
    std::atomic<uint32_t> pid;   ///< as the process sees itself
    uint64_t client_id;          ///< the monitor's name for it
    /// Bit i: this process holds at least one descriptor of Ofd i. The truth about who holds what; there is
    /// no count.
    std::atomic<uint64_t> held[kOfdRoom / 64];
};

/// One fallback, kept in a small ring for sdstat.
struct FallbackRecord {
    std::atomic<uint32_t> sequence; ///< 0: never written
    uint16_t cause;
    uint16_t port;
    uint8_t ip[16];
    uint64_t when_ns; ///< CLOCK_REALTIME
};
constexpr unsigned kFallbackRing = 64;

struct SegmentStats {
    std::atomic<uint64_t> connects, accepts; ///< accelerated ones
    std::atomic<uint64_t> joined;            ///< ends of connections that began in the kernel
    std::atomic<uint64_t> sleeps, takeovers, ring_switches;
    std::atomic<uint64_t> fallbacks[kMaxCauses];
    std::atomic<uint32_t> fallback_next;
    FallbackRecord recent[kFallbackRing];
};

/// Who knows of captures, and that the last records of the table are none.
enum CaptureKnown : uint32_t {
    /// The library that made the segment. An earlier one would take kCaptureLowat for SO_RCVLOWAT.
    kKnownToLibrary = 1,
    /// The monitor. An earlier one would take what is copied for records, and change it.
    kKnownToMonitor = 2
};

/// What is asked of the process whose segment it is.
enum Steering : uint32_t {
    /// The library that made it knows the others, kTxAdopt, and that Ofd::opt of one with paths may be
    /// written by the monitor.
    kKnowsSteering = 1,
    /// By the monitor: all that is new is the kernel's (sdctl detach)
    kDetached = 2,
    /// The library that made it knows kTxBegin: connections that several processes hold can leave the ring.
    kKnowsShared = 4
};

struct SegmentHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t creator_pid;
    uint64_t bytes;
    std::atomic<uint32_t> ofd_high; ///< Ofds below this index have been in use at some time
    std::atomic<uint32_t> proc_high, thread_high;
    std::atomic<uint32_t> ofd_lock; ///< allocation of Ofds, processes and threads: slow path
    std::atomic<uint32_t> deaths;   ///< members that the monitor has buried
    /// Children whose records have been filled in. A process that looks through the records for holders of an
    /// Ofd looks again if it has changed: between two looks a parent may have handed its Ofd to a child whose
    /// record had been looked at before, and have closed its own. Not so for the monitor, which the parent
    /// asks in between.
    std::atomic<uint32_t> forks;
    SegmentStats stats;
    std::atomic<uint32_t> capture;       ///< CaptureMode of layout/capture_layout.hpp
    std::atomic<uint32_t> capture_known; ///< CaptureKnown: without both bits nothing is captured
    /// Bumped by the monitor when the other end of something that this process has offered has come.
    std::atomic<uint32_t> joined;
    std::atomic<uint32_t> steering; ///< Steering
    /// Bumped by the process whose segment it is, before it gives up a listener; 0: it does not say. So a
    /// child that has the listener from it knows whether it holds it still.
    std::atomic<uint32_t> listeners_given_up;
};

constexpr size_t kSegProcOffset = align_up(sizeof(SegmentHeader), 4096);
constexpr size_t kSegThreadOffset = align_up(kSegProcOffset + sizeof(ProcRecord) * kSegProcs, 4096);
constexpr size_t kSegOfdOffset = align_up(kSegThreadOffset + sizeof(ThreadRecord) * kSegThreads, 4096);
constexpr size_t kSegCaptureOffset = kSegOfdOffset + sizeof(Ofd) * size_t{kOfds};
constexpr size_t kSegmentBytes = align_up(kSegOfdOffset + sizeof(Ofd) * size_t{kOfdRoom}, 4096);
constexpr size_t kSegCaptureBytes = kSegmentBytes - kSegCaptureOffset;
static_assert(kSegCaptureOffset % 4096 == 0);

struct SegmentView {
    uint8_t *base = nullptr;
    SegmentHeader &header() const { return *reinterpret_cast<SegmentHeader *>(base); }
    ProcRecord &proc(unsigned i) const { return reinterpret_cast<ProcRecord *>(base + kSegProcOffset)[i]; }
    ThreadRecord &thread(unsigned i) const {
        return reinterpret_cast<ThreadRecord *>(base + kSegThreadOffset)[i];
    }
    Ofd &ofd(unsigned i) const { return reinterpret_cast<Ofd *>(base + kSegOfdOffset)[i]; }
};

} // namespace sd
