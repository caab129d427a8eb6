// The queue of connections that wait to be accepted, from the client's side: a place in it, or none while the
// backlog is full.
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

/// What is left of a connect()'s time for that. The clock is asked when a queue is found full, not before.
struct Patience {
    bool nonblocking;
    uint64_t handled = self.handled;
    int64_t deadline = 0; ///< 0: not known yet
    int64_t timeout = 0;  ///< SO_SNDTIMEO in ns as the connection had it; 0: none
};

/// Waits until the queue has room, or the listener is gone. False: not in time, or a signal handler ran.
[[nodiscard]] bool wait_for_backlog(LinkMap &l, uint32_t backlog, Patience &patience) noexcept;
/// Puts the slot into the SYN queue. False: full, or the listener closed meanwhile; the slot is ours again
/// then.
[[nodiscard]] bool push_syn(LinkMap &l, uint32_t slot, uint32_t backlog, Cause *why) noexcept;

} // namespace sd
