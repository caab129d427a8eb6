// Who belongs together: connections between network namespaces are joined within a tenant.
#pragma once
#include <set>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

/// What the kernel says of the process at one end. Nothing of it comes from the process itself.
struct Party {
    /// Its control group, whole, as the monitor sees it; "?": it could not be read
    std::string group;
    /// In a process-id or user namespace that is not the monitor's
    bool is_contained = false;
    std::set<unsigned> bridges; ///< of the host, to which its network namespace is attached
};

/// Of a process that runs as long as `pidfd` does not become readable.
Party read_party(pid_t pid, int pidfd);

/// Whether two ends may be joined. A tenant is the part of the tree of control groups that one of the
/// `patterns` names (each for a leading part of a path, component by component). Containers that none names
/// belong together if one engine has started them and they share a bridge. Processes of the host itself are
/// of no tenant: they are joined with everybody.
bool same_tenant(const Party &a, const Party &b, const std::vector<std::string> &patterns);

/// Why a pattern cannot be one; null: it can.
const char *objection_to_tenant(const std::string &pattern);

} // namespace sd::monitor
