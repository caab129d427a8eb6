// A process that gave up most system calls (a seccomp filter): what libsd may still do.
#pragma once
#include <atomic>

namespace sd {

/// Set just before the program installs its first seccomp filter, never cleared in this process image (forked
/// children have the filter, too). From then on libsd only uses the calls that it had the filter
/// allow: see libsd/api/processes/sandbox.cpp.
inline std::atomic<bool> sandboxed_flag{false};
inline bool sandboxed() noexcept { return sandboxed_flag.load(std::memory_order_relaxed); }

/// A thread of the program has put itself under Landlock, whose rules for TCP nobody can ask for: connections
/// that begin here are the kernel's. Never cleared; forked children have it, too, and executed programs are
/// told (libsd/api/processes/exec_env.cpp).
inline std::atomic<bool> landlocked{false};

} // namespace sd
