// The process as a whole: start, fork, exit, and coming back to a restarted monitor.
#pragma once
#include <cstdint>

namespace sd {

/// Reads the environment and registers the fork handlers. Once, from vfs::init().
void init_process() noexcept;
/// Before a thread is made: where libpthread came late, its functions are known from here on.
void threads_begin() noexcept;
/// Upward::watch_thread.
void watch_this_thread() noexcept;

namespace vfs {
/// Around fork(); registered with pthread_atfork, and called by hand where a fork does not run those
/// handlers. fork_child() is all that a child needs, of api too.
void fork_prepare() noexcept;
/// Set by a thread around a fork whose child does nothing but start a program. The child finds it cleared.
extern constinit thread_local bool child_starts_program;
void fork_parent() noexcept;
void fork_child() noexcept;
/// Writes the statistics line if SD_STATS_FILE asks for it. Called at exit and from _exit().
void at_exit() noexcept;
} // namespace vfs

} // namespace sd
