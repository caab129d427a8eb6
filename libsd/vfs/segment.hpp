// The family segments this process has mapped: its own and those inherited over fork.
#pragma once
#include "libsd/control/protocol.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/vfs/segment_layout.hpp"

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

/// Makes the own segment on first call. False: no memory or descriptor.
bool own_segment() noexcept;
/// Statistics of this process; a private dummy before there is a segment.
SegmentStats &stats() noexcept;
void count_fallback(Cause c, const SlotAddress *to) noexcept;

/// A fresh Ofd in the own segment, marked as held by this process; nullptr when full. `*index` gets its number.
Ofd *allocate_ofd(uint64_t link_id, uint32_t slot, unsigned side, uint32_t *index) noexcept;
/// Clears this process's claim on it. True when nobody else holds it: the caller then closes the connection and frees it.
bool drop_ofd(unsigned seg, uint32_t index) noexcept;
/// After the connection's close was published.
void free_ofd(unsigned seg, uint32_t index) noexcept;

void init_threads() noexcept;      ///< sets the hooks of token.hpp
void unregister_thread() noexcept; ///< at thread exit: gives back its records and doorbell

/// Around fork. prepare: makes a ProcRecord with the same holdings for the child in every segment and fills the message for the
/// monitor. child: switches to those records and forgets the own segment (a new one is made on need). parent_failed: takes it back.
void segments_fork_prepare(wire::Fork *message) noexcept;
void segments_fork_parent() noexcept;
void segments_fork_child() noexcept;
void segments_fork_failed() noexcept;

} // namespace sd
