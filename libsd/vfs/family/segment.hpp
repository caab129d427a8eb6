// The family segments this process has mapped: its own and those inherited over fork.
#pragma once
#include "libsd/layout/protocol.hpp"
#include "libsd/layout/segment_layout.hpp"
#include "libsd/queue/token.hpp"

namespace sd {

struct MappedSegment {
    SegmentView view;
    int fd = -1;               ///< hidden; kept to show it to a restarted monitor
    uint64_t owner_client = 0; ///< monitor's name of the process that made it
    uint32_t proc = 0;         ///< this process's ProcRecord in it
};
extern MappedSegment segments[kMaxSegments];
extern std::atomic<uint32_t> segment_count;
/// Index of the segment in which this process makes new Ofds, or -1 before own_segment().
extern std::atomic<int> own_segment_index;

/// Has `sdctl detach` put this process back on kernel TCP? Without a segment of its own it has not heard.
inline bool is_detached() noexcept {
    const int own = own_segment_index.load(std::memory_order_acquire);
    return own >= 0 && (segments[own].view.header().steering.load(std::memory_order_relaxed) & kDetached) != 0;
}

/// Makes the own segment on first call. False: no memory or descriptor.
[[nodiscard]] bool own_segment(int greeting = -1) noexcept; // greeting: see control::make_memory()
/// Maps the segment of another process, or of the former program image of this one, in which `proc` is our
/// ProcRecord; ownership of the descriptor (a hidden one) passes on success. Its index, or -1: not a segment,
/// no memory, too many.
[[nodiscard]] int map_segment(int fd, uint32_t proc, uint64_t owner_client) noexcept;
/// Comes to share the segment behind `fd` (a hidden one, ownership passes), which the monitor calls `name`: a
/// ProcRecord of our own in it, known to the monitor. Its index, also if it was mapped already; or -1.
[[nodiscard]] int join_segment(int fd, uint64_t name) noexcept;
/// Gives up a segment that others have as well, and of which no File of this process is a part. If that was
/// its own, it makes another with its next connection. False: it stays, as a thread has just made one there,
/// or there is no memory to put in its place, where threads may still look.
[[nodiscard]] bool leave_segment(unsigned seg) noexcept;
/// This process holds the Ofd from now on.
void hold_ofd(unsigned seg, uint32_t index) noexcept;
bool holds_ofd(unsigned seg, uint32_t index) noexcept;
/// Does it hold any there?
bool holds_any(unsigned seg) noexcept;
/// Whether another process has it in hand as well (parcels do not count).
[[nodiscard]] bool held_elsewhere(unsigned seg, uint32_t index) noexcept;
/// A parcel holds it from now on. Before wire::Op::pass; undo only if that fails, and this said true: else
/// another parcel holds it, too.
[[nodiscard]] bool hold_for_parcel(unsigned seg, uint32_t index) noexcept;
void unhold_for_parcel(unsigned seg, uint32_t index) noexcept;
/// After an exec: this segment is the one in which new Ofds are made.
void resume_own_segment(int index) noexcept;
/// After an exec: the threads of the former image are gone, whatever they were doing.
void forget_threads_of_former_image(unsigned seg) noexcept;
/// Statistics of this process; a private dummy before there is a segment.
SegmentStats &stats() noexcept;
void count_fallback(Cause c, const SlotAddress *to) noexcept;

/// A fresh Ofd in the own segment, marked as held by this process; nullptr when full, or when there is no own
/// one. `*segment` and `*index` get its numbers.
[[nodiscard]] Ofd *allocate_ofd(uint64_t link_id, uint32_t slot, unsigned side, unsigned *segment,
                                uint32_t *index) noexcept;
/// Clears this process's claim on it. True when nobody else holds it: the caller then closes the connection
/// and frees it.
[[nodiscard]] bool drop_ofd(unsigned seg, uint32_t index) noexcept;
/// After the connection's close was published.
void free_ofd(unsigned seg, uint32_t index) noexcept;

/// Gives the calling thread a record in segment `seg`. False: the table is full.
[[nodiscard]] bool register_in_segment(unsigned seg) noexcept;
void unregister_thread() noexcept; ///< at thread exit: gives back its records and doorbell

/// Around fork. lock: false, another thread makes or maps a segment. prepare: makes a ProcRecord with the
/// same holdings for the child in every segment and fills the message for the monitor. child: switches to
/// those records and forgets the own segment (a new one is made on need).
[[nodiscard]] bool segments_fork_lock() noexcept;
void segments_fork_prepare(wire::Fork *message, bool without_records) noexcept;
/// Of all open file descriptions. With make_lock.
bool holds_nothing() noexcept;
void segments_fork_parent() noexcept;
void segments_fork_child() noexcept;

/// Does [from, to) lie in the empty memory that stands where a segment was that this process has left?
bool was_a_segment(uint64_t from, uint64_t to) noexcept;

} // namespace sd
