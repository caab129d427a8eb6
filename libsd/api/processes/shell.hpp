// Streams to and from shell commands.
#pragma once
#include <cstdio>

namespace sd {

/// When `f` was made by popen: closes it, waits for its command, and leaves what pclose returns in `status`.
[[nodiscard]] bool close_popened(FILE *f, int *status);

/// After a fork: a thread that does not exist here may have held the locks.
void reset_shell_in_child() noexcept;

} // namespace sd
