// Shared memory of this library's own, whatever limit the program has on the size of files.
#pragma once
#include <cstdint>

namespace sd::control {

/// A memfd of `bytes`, sealed for good, close-on-exec, at a low number; or -errno. Where RLIMIT_FSIZE does
/// not allow it the kernel would send SIGXFSZ, whose action is the program's: then the monitor makes it,
/// asked on `greeting`, of which the caller has the lock, or, where that is -1, on the process's channel.
[[nodiscard]] long make_memory(const char *name, uint64_t bytes, int greeting = -1) noexcept;

/// Whether the program may make a file of that size, or make one that long.
[[nodiscard]] bool file_may_be(uint64_t bytes) noexcept;

} // namespace sd::control
