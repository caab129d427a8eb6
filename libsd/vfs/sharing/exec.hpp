// Handing what stays open on to the program that is executed.
#pragma once
#include <cstdint>

namespace sd {

/// The number of the memfd that the program to be executed now has to find, or -1. Set by vfs::before_exec().
/// Async-signal-safe.
int exec_table_fd() noexcept;

namespace vfs {

/// Around an exec: hands on what stays open, to a program that will load the library (`loadable`) or to one
/// that will not. A process that calls the first and goes on must call the second.
void before_exec(bool loadable) noexcept;
void after_failed_exec() noexcept;

/// The process is about to have no more address space than this. Where that is too little for a link, the
/// listeners that stay open over an exec become the kernel's, with the clients that wait for them: afterwards
/// nothing could be mapped that this takes.
void before_space_limit(uint64_t bytes) noexcept;
/// All listeners that this process accepts on become the kernel's, with the clients that wait.
void leave_listeners_to_kernel() noexcept;

} // namespace vfs

} // namespace sd
