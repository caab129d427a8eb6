// BPF programs on control groups that the kernel asks about connections.
#pragma once
#include <optional>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// The path of a process's group in the unified hierarchy, as this process sees it: "/system.slice/a.service".
/// Nothing: it cannot be known. `pidfd`: of the process, opened before.
std::optional<std::string> unified_group(pid_t pid, int pidfd);

/// Whether a program on the group, or on one above it, could refuse or redirect the connections of its
/// processes (IPAddressDeny= of systemd is such a one). Nothing: it cannot be known.
std::optional<bool> has_connection_programs(const std::string &group);

} // namespace sd::monitor
