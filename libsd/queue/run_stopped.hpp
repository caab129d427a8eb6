// Helping a stopped thread out of an operation.
#pragma once
#include "libsd/queue/thread_liveness.hpp"

namespace sd {

/// Lets a thread that a signal has stopped run until `word` is no longer `value`, and leaves it stopped as it
/// was: nobody can see that it ran. Does nothing where that is not allowed (ptrace_scope, a seccomp filter of
/// our own). Takes milliseconds at most.
///
/// The record and the word are only somebody's word for it. So the kernel is asked: a thread with other ids
/// or capabilities than ours, or whose process has not mapped the memory in which the word lies, is left as
/// it is.
void run_stopped(const ThreadRecord &r, const std::atomic<uint64_t> &word, uint64_t value) noexcept;
void run_stopped(const ThreadRecord &r, const std::atomic<uint32_t> &word, uint32_t value) noexcept;

} // namespace sd
