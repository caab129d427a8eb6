// How much memory the control group of a process may have.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// The least of what its control group and those above it are allowed, in bytes; nothing where there is no
/// limit, or none can be read. `pidfd`: names the process, as the number alone does not. Reads some ten small
/// files.
std::optional<uint64_t> memory_limit_of(pid_t pid, int pidfd);

/// The same, where hierarchies are mounted as `mountinfo` says, of a process whose /proc/PID/cgroup is
/// `groups`.
std::optional<uint64_t> memory_limit_in(const std::string &mountinfo, const std::string &groups);

} // namespace sd::monitor
