// Asking the kernel which BPF programs take effect in a control group.
#include "monitor/kernel/group_programs.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <bpf/bpf.h>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Where the unified hierarchy is mounted, and which part of it. Empty: nowhere.
struct Mount {
    std::string at, root;
};

Mount unified_mount() {
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        if (line.find(" - cgroup2 ") == std::string::npos) {
            continue;
        }
        std::istringstream words(line);
        std::string id, parent, device;
        Mount found;
        words >> id >> parent >> device >> found.root >> found.at;
        return found;
    }
    return {};
}

} // namespace

std::optional<std::string> unified_group(pid_t pid, int pidfd) {
    std::ifstream groups("/proc/" + std::to_string(pid) + "/cgroup");
    std::optional<std::string> path;
    for (std::string line; std::getline(groups, line);) {
        if (line.starts_with("0::")) {
            path = line.substr(3);
        }
    }
    pollfd ended{pidfd, POLLIN, 0};
    if (pidfd < 0 || poll(&ended, 1, 0) != 0 || !path || path->starts_with("/..")) {
        return std::nullopt;
    }
    return path;
}

std::optional<bool> has_connection_programs(const std::string &group) {
    static const Mount mount = unified_mount(); // nobody moves it
    if (mount.at.empty() || (mount.root != "/" && !group.starts_with(mount.root))) {
        return std::nullopt;
    }
    const std::string path = mount.at + (mount.root == "/" ? group : group.substr(mount.root.size()));
    const UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) {
        return std::nullopt;
    }
    constexpr bpf_attach_type kAsked[] = {
        BPF_CGROUP_INET_INGRESS,      BPF_CGROUP_INET_EGRESS,       BPF_CGROUP_INET_SOCK_CREATE,
        BPF_CGROUP_INET4_BIND,        BPF_CGROUP_INET6_BIND,        BPF_CGROUP_INET4_POST_BIND,
        BPF_CGROUP_INET6_POST_BIND,   BPF_CGROUP_INET4_CONNECT,     BPF_CGROUP_INET6_CONNECT,
        BPF_CGROUP_INET4_GETPEERNAME, BPF_CGROUP_INET6_GETPEERNAME, BPF_CGROUP_INET4_GETSOCKNAME,
        BPF_CGROUP_INET6_GETSOCKNAME};
    for (const bpf_attach_type type : kAsked) {
        __u32 flags = 0, count = 0;
        // libbpf says it in errno, or as a negative result, by its version.
        const int result = bpf_prog_query(directory.get(), type, BPF_F_QUERY_EFFECTIVE, &flags, nullptr, &count);
        const int error = result == 0 ? 0 : result == -1 ? errno : -result;
        if (error == 0 && count != 0) {
            return true;
        }
        if (error == EPERM || error == ENOSYS) {
            return error == ENOSYS ? std::optional(false) : std::nullopt;
        }
        // EINVAL: this kernel has no programs of that kind
    }
    return false;
}

void SeenGroups::note(const std::string &group, bool programs) {
    const auto [known, is_new] = seen_.try_emplace(group, programs);
    changed_ = changed_ || known->second != programs;
    known->second = programs;
}

bool SeenGroups::any_has_programs() const {
    return std::any_of(seen_.begin(), seen_.end(), [](const auto &group) { return group.second; });
}

bool SeenGroups::look(Clock::time_point until) {
    for (auto it = seen_.lower_bound(at_); it != seen_.end();) {
        const auto programs = has_connection_programs(it->first);
        changed_ = changed_ || (programs && *programs != it->second);
        if (programs) {
            it->second = *programs;
            ++it;
        } else {
            it = seen_.erase(it); // it has been removed
        }
        if (it != seen_.end() && Clock::now() >= until) {
            at_ = it->first;
            return false;
        }
    }
    at_.clear();
    return true;
}

} // namespace sd::monitor
