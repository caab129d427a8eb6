// Handing what stays open on to the program that is executed.
#pragma once

namespace sd {

/// The number of the memfd that the program to be executed now has to find, or -1. Set by vfs::before_exec().
/// Async-signal-safe.
int exec_table_fd() noexcept;

namespace vfs {

/// Around an exec: hands on what stays open, to a program that will load the library (`loadable`) or to one
/// that will not. A process that calls the first and goes on must call the second.
void before_exec(bool loadable) noexcept;
void after_failed_exec() noexcept;

} // namespace vfs

} // namespace sd
