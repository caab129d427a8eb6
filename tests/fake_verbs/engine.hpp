// What a device does: carries out the work of queue pairs, as a reliable connection would.
#pragma once
#include "tests/fake_verbs/fabric.hpp"

namespace sd::fake_verbs {

/// Carries out what can be of a queue pair's work, and writes its completions. Any process; with no lock.
void progress(Fabric &f, uint32_t queue_pair) noexcept;
/// After work was posted: the same, or leaves it to the device process.
void posted(Fabric &f, uint32_t queue_pair) noexcept;
/// Ends it: what is under way is flushed, on both its queues. After this nothing of its peer's arrives.
void fail(Fabric &f, uint32_t queue_pair) noexcept;
/// Work of its peer may have waited for what this one has just done.
void peer_may_go_on(Fabric &f, const QueuePair &q) noexcept;
/// Once no peer is writing to what it may reach through these: for the end of registrations.
void wait_for_writers(Fabric &f, uint32_t domain) noexcept;

/// The device process: until `parent`, a process, has gone.
void run_device(Fabric &f, uint32_t parent) noexcept;

} // namespace sd::fake_verbs
