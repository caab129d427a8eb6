// Giving memory back: rings that grew and have been idle since go back to the inline ring of the slot.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Sender side: makes idle connections small again. Called when a thread is about to sleep; works a few times
/// a second. Returns when it wants to be called again (CLOCK_MONOTONIC ns; INT64_MAX: nothing has grown), so
/// that a long sleep can be cut once.
int64_t shrink_idle_rings() noexcept;
void ring_shrink_fork_child() noexcept;
void note_grown(File &f) noexcept;

} // namespace sd
