// The process's one channel to the monitor, as client.cpp and forking.cpp share it.
#pragma once
#include "libsd/control/lock.hpp"
#include <atomic>
#include <cstdint>

namespace sd::control {

extern constinit Lock call_lock; ///< one request at a time
extern std::atomic<int> chan;    ///< -1: none
/// The last channel that was given up. Threads may be asleep in poll() on it: they have been woken, but look
/// at it again by its number, which must not belong to something quiet by then. So it stays open, hung up,
/// until the next one takes its place.
extern std::atomic<int> retired;
extern std::atomic<uint32_t> epoch_count;
extern std::atomic<uint64_t> my_id;

/// Under call_lock: the channel is of no use any more.
void drop_channel() noexcept;

} // namespace sd::control
