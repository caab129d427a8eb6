// A trust domain: processes of which none gains anything by what another of them shares with it.
#pragma once
#include "monitor/kernel/shared_memory.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// What the kernel says of a process at one moment. Whoever may be changed (traced, say) by whom depends on
/// exactly this.
struct Domain {
    bool known = false;         ///< false: something could not be read. Equal to nothing, also not to itself
    std::array<uid_t, 3> uid{}; ///< real, effective, saved; as this monitor's user namespace has them
    std::array<gid_t, 3> gid{};
    uint64_t permitted = 0;  ///< capabilities, one bit each
    FileId user, pid, mount; ///< namespaces
    std::string label;       ///< of the security module, empty where there is none
    unsigned filters = 0;    ///< seccomp filters
    /// The kernel lets others of the same ids look into it, and nothing filters its system calls
    bool open = false;
    /// Processes that were forked from one another, known to this monitor, without a filter in between. 0:
    /// none is known. The monitor fills it in.
    uint64_t lineage = 0;

    /// Whether shared state of a family may be shown to both.
    bool shares_with(const Domain &other) const;
    bool operator==(const Domain &) const = default;
};

/// Of the security module, empty where there is none. Nothing: it cannot be read.
std::optional<std::string> security_label(pid_t pid);

/// Reads it from /proc. The caller sees to it that the number means one process all the while (a pidfd that
/// has not become readable).
Domain read_domain(pid_t pid);

} // namespace sd::monitor
