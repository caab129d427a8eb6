// Waiting for a list of descriptors, some of them accelerated; what poll and select have in common.
#pragma once
#include "libsd/vfs/readiness/poll_list.hpp"

namespace sd {

/// Fills in `file`. True when any descriptor needs us.
[[nodiscard]] bool poll_classify(PollList &l) noexcept;
/// Waits. The number of entries with revents, or -errno. `timeout_ns` < 0: for ever. `mask`: signal mask for
/// the wait, or nullptr.
[[nodiscard]] long poll_wait(PollList &l, int64_t timeout_ns, const uint64_t *mask) noexcept;

} // namespace sd
