// Is the thread behind a record still there? Asked only by a thread that has waited for it for a while.
#pragma once
#include "libsd/layout/state.hpp"

namespace sd {

/// Enters in a record who the calling thread is.
void note_identity(ThreadRecord &r) noexcept;

/// Around fork: the child then knows who it is without asking the kernel, which takes 30 µs, as a rule.
/// `child_may_register`: this process has a channel, so a thread of the child may need a record.
void identity_fork_prepare(bool child_may_register) noexcept;
void identity_fork_child() noexcept;

/// The record was given back, or is somebody else's by now. No system call.
inline bool record_gone(const ThreadRecord &r, ThreadId id) noexcept {
    return r.state.load(std::memory_order_acquire) == 0 ||
           (r.generation.load(std::memory_order_acquire) & ((1u << 18) - 1)) != thread_generation(id);
}

enum class Liveness {
    runs,    ///< or cannot be told
    stopped, ///< by a signal, and not traced
    gone
};
/// Asks the kernel; some 20 µs.
Liveness liveness_of(const ThreadRecord &r, ThreadId id) noexcept;

/// Is the process stopped by a signal, as far as can be told? For tests.
bool is_stopped(uint32_t pid) noexcept;

} // namespace sd
