// Helping a stopped thread out of an operation.
#pragma once
#include "libsd/queue/life.hpp"

namespace sd {

/// Lets a thread that a signal has stopped run until `word` is no longer `value`, and leaves it stopped as it was: nobody can see that it
/// ran. Does nothing where that is not allowed (ptrace_scope, another user, a seccomp filter of our own). Takes milliseconds at most.
void nudge(const ThreadRecord &r, const std::atomic<uint64_t> &word, uint64_t value) noexcept;
void nudge(const ThreadRecord &r, const std::atomic<uint32_t> &word, uint32_t value) noexcept;

} // namespace sd
