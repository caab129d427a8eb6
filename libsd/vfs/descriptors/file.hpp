// The process's view of its sockets: descriptor table and File, the local handle of an open file description.
#pragma once
#include "libsd/control/hidden_fd.hpp"
#include "libsd/layout/file_kind.hpp"
#include "libsd/layout/handoff_record.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/queue/ring.hpp"
#include "libsd/vfs/family/segment.hpp"
#include <netinet/in.h>

namespace sd {

struct EpollItem;
struct Epoll;
struct TakenPool;
struct OwnChannel;

/// Options recorded before a socket is real (kind fresh); replayed when it is materialised. Stays with the
/// File when it becomes a stream, because a stream can be given a kernel socket too, to answer for options
/// that are not kept in the Ofd.
struct FreshState {
    static constexpr uint32_t kMax = kMaxFreshOptions;
    uint32_t count = 0;
    bool incomplete = false;  ///< the kernel socket has been told more than is recorded here
    FreshOption option[kMax]; ///< in the order in which they were set
    FreshState *pool_next = nullptr;
};

/// Process-local handle of an open file description; all descriptors (dup) of it in this process share one.
/// Type-stable: a thread that looked it up while another closes it reads a valid, possibly recycled object;
/// data operations are then stopped by the token check (a close takes both tokens first).
struct alignas(64) File {
    // Read on every operation: all that a look at a connection needs is in the first line.
    FileKind kind = FileKind::free;
    uint8_t side = 0;
    uint8_t seg = 0;
    bool real_socket = false;      ///< the descriptor is a kernel TCP socket of its own, not the placeholder
    std::atomic<uint32_t> refs{0}; ///< descriptors in this process
    Ofd *ofd = nullptr;            ///< stream only
    SlotSide *mine = nullptr, *peer = nullptr;
    ring::Place tx_place{}, rx_place{};

    LinkMap *link = nullptr;
    uint32_t slot = 0, ofd_index = 0;

    // Rarely used, by files of any kind.
    uint8_t family = 0;      ///< AF_INET, AF_INET6
    bool inode_told = false; ///< fstat() was asked before it was connected, see inode_of()
    /// Its numbers are a kernel socket's. Set before they change; read by whoever still holds it.
    std::atomic<bool> exchanged{false};
    std::atomic<uint32_t> status{0}; ///< O_NONBLOCK for kinds without an Ofd
    /// Neither connected nor listening. The options stay when it becomes a stream, see FreshState.
    struct Unconnected {
        bool bound = false;
        uint8_t refuse_cause = 0; ///< Cause: an option was set that keeps this socket with the kernel
        uint16_t last_port = 0;   ///< after connect(AF_UNSPEC): the kernel goes on telling the port
        /// Pending error (after connect(AF_UNSPEC)); positive errno
        std::atomic<int> error{0};
        FreshState *options = nullptr;
        // Of a connection that the kernel makes, until it is joined (vfs/paths/offer.hpp):
        std::atomic<uint8_t> offer{0}; ///< OfferState
        uint8_t side = 0;              ///< 0: it connects, 1: it was accepted
        std::atomic<uint8_t> calls{0}; ///< that have moved data before it was offered
        uint32_t destination = 0;      ///< paths/short_lived.hpp; 0: it was not opened here
        uint32_t joined = 0;           ///< SegmentHeader::joined when the monitor was asked last
        uint64_t cookie = 0;
        uint8_t tries_anew = 0; ///< since its link was lost (paths/back_again.hpp); 0: it never was
        int64_t not_before = 0; ///< of such a one: it is not offered again before this (CLOCK_MONOTONIC ns)
        std::atomic<uint32_t> inside{0}; ///< calls that are in the kernel with it
        /// vfs/paths/inherited.hpp: its number among those of the process, and when that had it alone
        std::atomic<uint64_t> number{0}, alone_since{0};
    } unconnected;
    /// Accelerated; what every operation reads stands above.
    struct Stream {
        ConnectAnswer connect_answer = ConnectAnswer::connected;
        /// This process is the bridge of the connection, which may have moved (moved.hpp)
        bool carried = false;
        /// Of which adoption this process has the socket (adoption_of()), 0: none; and fork_generation as it
        /// told the monitor so
        uint16_t fetched = 0;
        uint32_t fetched_in = 0;
        uint32_t grown_mark = 0; ///< generation + 1 while listed by note_grown(), under its lock
        int path_fd = -1;        ///< vfs/paths: a number of the kernel socket, to be checked
        int closing_fd = -1;     ///< the number that is being closed as the last one
        /// A number that the kernel still watches in the hidden set of `leftover_in` though it is no member
        /// there any more, and Epoll::sockets_name above it; 0: none. With that set's lock
        std::atomic<uint64_t> leftover_watch{0};
        Epoll *leftover_in = nullptr;
        /// Addresses of both ends, checked and copied when the connection was made
        SlotAddress client{}, server{};
        /// connect(AF_UNSPEC): link of the former connection, for calls that were blocked on it
        std::atomic<LinkMap *> undone{nullptr};
        // What a stranger has shown, and cannot take back (readiness/stream_readiness.hpp):
        std::atomic<uint64_t> told{0};         ///< bytes up to which position in the stream
        std::atomic<uint64_t> room_told{0};    ///< up to where in the ring he has read
        TakenPool *pools = nullptr;            ///< of the peer, that are mapped here; with the receive token
        std::atomic<uint64_t> pool_seen{0};    ///< the one that was looked at last (vfs/pools)
        std::atomic<uint32_t> pool_pause{0};   ///< how many calls do not ask for it
        std::atomic<uint64_t> channel_seen{0}; ///< as pool_seen, of large reads
        std::atomic<OwnChannel *> channel{nullptr}; ///< set and used with the send token
    } stream;
    struct Listener *listener = nullptr;
    Epoll *epoll = nullptr;
    EpollItem *items = nullptr;          ///< registrations in epoll instances, under the epoll lock
    std::atomic<uint32_t> generation{0}; ///< bumped on release, and when its connection is undone
    File *pool_next = nullptr;

    uint64_t tx_token_id() const noexcept { return uint64_t{ofd_index} * 2 + 2; }
    uint64_t rx_token_id() const noexcept { return uint64_t{ofd_index} * 2 + 3; }
};

/// Sparse: only the pages of numbers in use cost memory. Null until there is a first File; fd_high is 0 then.
extern std::atomic<File *> *fd_table;
/// Stands in the table for numbers that the program has closed and the library keeps open
/// (vfs/descriptors/placeholder_cache.hpp); never of use as a File.
extern File cached_placeholder;
/// Closes such a number for good. Returns nullptr.
File *close_cached(int fd) noexcept;
/// Entries of the table from here on have never been used; raised before an entry is set, at most kMaxFd,
/// never lowered. Looked at first: whoever has no sockets pays for one comparison that falls through.
extern std::atomic<uint32_t> fd_high;

/// What the table says about a number, which may be cached_placeholder; nullptr: nothing.
inline File *entry_of(int fd) noexcept {
    // Acquire: the table was there before the mark was raised for the first time
    if (static_cast<unsigned>(fd) >= fd_high.load(std::memory_order_acquire))
        return nullptr;
    return fd_table[fd].load(std::memory_order_acquire);
}

/// The File behind a descriptor, or nullptr when it is none of ours. Any thread, async-signal-safe, no system
/// call.
inline File *file_of(int fd) noexcept {
    File *f = entry_of(fd);
    if (f == &cached_placeholder) [[unlikely]]
        return close_cached(fd);
    return f;
}

/// Does the table say anything about the number, be it that it is kept?
inline bool has_entry(int fd) noexcept { return entry_of(fd) != nullptr; }

/// Maps the table, if it is not yet: a program without sockets has none. False: no memory. Any thread.
[[nodiscard]] bool make_fd_table() noexcept;
File *new_file(FileKind kind) noexcept;
/// Gives back a File that was never installed.
void discard_file(File *f) noexcept;
/// Puts `f` under `fd`, counting one reference; what the table said before about the number is stale and
/// dropped.
void install_file(int fd, File *f) noexcept;
/// The kernel has just given out `fd` for something else: drops a stale entry (a close we did not see). Cheap
/// when there is none.
[[gnu::cold]] void forget_fd(int fd) noexcept;
/// Takes the entry out; nullptr if it was not ours. The caller owns the reference and ends it with
/// release_file().
[[nodiscard]] File *take_fd(int fd) noexcept;
/// One more reference for somebody who has none: file_of() alone keeps nothing open. False: the last one has
/// gone. Any thread; a File that was recycled meanwhile gets it as well, so the caller looks once more
/// whether it is still the one.
[[nodiscard]] inline bool take_reference(File &f) noexcept {
    uint32_t refs = f.refs.load(std::memory_order_acquire);
    while (refs != 0 && !f.refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel)) {
    }
    return refs != 0;
}
/// Ends one reference; the last one closes the connection, listener or epoll instance in this process.
void release_file(File *f) noexcept;
/// A descriptor for an accelerated socket: a duplicate of the process's unconnected dummy socket at the
/// lowest free number.
[[nodiscard]] long placeholder_fd(bool cloexec) noexcept;
/// Puts `f` under a number that placeholder_fd() gave.
void install_placeholder(int fd, File *f, bool cloexec) noexcept;
/// Gives such a number back unused.
void drop_placeholder(int fd) noexcept;
/// Upward::hidden_moved, for the dummy.
void dummy_moved(int from, int to) noexcept;
/// Did calls of the parent's threads hold Files?
[[nodiscard]] bool files_fork_child() noexcept;
/// Later in the child, where that returned true: what only calls of other threads held there is closed. Needs
/// the monitor.
void drop_uncounted_files() noexcept;
/// References that blocked calls hold, see Pin; of all threads.
extern std::atomic<uint32_t> pinned;
/// take_reference() for such a call. Whether the number still stands for the File is looked at afterwards,
/// see keep_for_waiters().
[[nodiscard]] inline bool pin(File &f) noexcept {
    if (!take_reference(f))
        return false;
    pinned.fetch_add(1, std::memory_order_seq_cst);
    return true;
}
/// Gives it back.
void unpin(void *file, size_t) noexcept;
/// After the kernel was told to listen on a number: was that one of the dummy's, as a thread that uses a
/// number it has not got may find one just before its entry is made? Every placeholder would listen; makes
/// good for it.
bool dummy_listened() noexcept;
/// The dummy socket itself (hidden); -errno if it cannot be made.
[[nodiscard]] long dummy_socket() noexcept;
/// False: the kernel refuses the program IPv4 sockets (a filter it was started with), although it has others.
bool may_make_v4() noexcept;
/// Before a filter of system calls: a socket of ours that the program never made is not left to it, unless it
/// has TCP sockets anyway.
void give_up_dummy() noexcept;
/// After a change of the network namespace: placeholders to come are of the new one.
void replace_dummy() noexcept;

} // namespace sd
