// The process as a whole: start, fork, exit, and coming back to a restarted monitor.
#pragma once
#include <cstdint>

namespace sd {

namespace vfs {
struct ApiCalls;
}
/// Fills the table of calls upward (base/upward.hpp). Once, first of all in vfs::init().
void fill_upward(const vfs::ApiCalls &api) noexcept;
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
/// Around an exec: hands on what stays open, to a program that will load the library (`loadable`) or to one
/// that will not. A process that calls the first and goes on must call the second.
void before_exec(bool loadable) noexcept;
void after_failed_exec() noexcept;
/// Before and after the calling thread goes to another network namespace.
void prepare_namespace_change() noexcept;
void namespace_has_changed() noexcept;
/// The process is about to be another trust domain's, for good: parts from what it shares with those who
/// stay (crossing.cpp). Where it cannot, that is counted (Cause::still_shared). Any thread.
/// `everything`: from connections that nobody else has, too.
void before_crossing(bool everything = false) noexcept;
enum class Confinement : uint8_t {
    fewer_numbers, ///< a limit on descriptors
    filter,        ///< of system calls
    no_calls       ///< of ours: nothing may stay accelerated
};
/// Makes the calling thread's doorbell; before a filter also registers it with every link, takes listeners
/// out of the directory, parts from what others have (before_crossing()), and gives up what only new
/// connections need.
void prepare_confinement(Confinement how) noexcept;
/// The filter is in force: the monitor answers nothing more but what living connections need.
void confined_now() noexcept;
/// Writes the statistics line if SD_STATS_FILE asks for it. Called at exit and from _exit().
void at_exit() noexcept;
} // namespace vfs

} // namespace sd
