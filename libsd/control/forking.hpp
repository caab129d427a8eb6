// The channel of a child to be made: asked for before fork, so that the monitor knows what the child holds
// before the parent can close any of it.
#pragma once

namespace sd::wire {
struct Fork;
}

namespace sd::control {

/// Around fork(): the lock of the channel is taken first; prepare makes the child's channel (if connected);
/// parent, or child, follows and ends it all. Who finds that it cannot go on yet unlocks.
void fork_lock() noexcept;
void fork_unlock() noexcept;
void fork_prepare(const wire::Fork *f) noexcept;
void fork_parent() noexcept;
void fork_child() noexcept;

} // namespace sd::control
