// Completions and events: what a queue's owner polls, and what wakes it up.
#pragma once
#include "tests/fake_verbs/fabric.hpp"

namespace sd::fake_verbs {

/// Writes a completion, and wakes who has armed the queue for such a one. False: the queue is full, and its
/// owner has been told.
bool complete(Fabric &f, uint32_t queue, const Completion &c, bool solicited) noexcept;

/// What is read from a channel's pipe.
struct ChannelEvent {
    uint32_t queue, number;
};
/// And from a context's.
struct AsyncEvent {
    uint32_t type; ///< ibv_event_type
    uint32_t index, number;
};
void raise_event(uint32_t context, AsyncEvent e) noexcept;

} // namespace sd::fake_verbs
