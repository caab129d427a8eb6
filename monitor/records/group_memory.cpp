// Reading limits of memory in the hierarchies of control groups.
#include "monitor/records/group_memory.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <charconv>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <unistd.h>

namespace sd::monitor {

namespace {

std::string contents(const std::string &path) {
    char text[8192];
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const ssize_t n = file ? read(file.get(), text, sizeof text) : -1;
    return {text, n > 0 ? static_cast<size_t>(n) : 0};
}

std::optional<uint64_t> number_in(const std::string &path) {
    const std::string text = contents(path);
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end != text.data() ? std::optional(number) : std::nullopt; // not of "max"
}

/// A hierarchy that has limits of memory: where it is mounted, which part of it, and what a line of
/// /proc/PID/cgroup says of it.
struct Hierarchy {
    std::string at, root;
    bool unified = false;

    [[nodiscard]] bool is_named_by(const std::string &controllers) const {
        std::istringstream list(controllers);
        for (std::string each; std::getline(list, each, ',');) {
            if (each == "memory") {
                return !unified;
            }
        }
        return unified && controllers.empty();
    }
};

/// A line of mountinfo.
std::optional<Hierarchy> hierarchy_of(const std::string &line) {
    std::istringstream words(line);
    std::string skipped, type, options;
    Hierarchy found;
    words >> skipped >> skipped >> skipped >> found.root >> found.at;
    while (words >> skipped && skipped != "-") {
    }
    words >> type >> skipped >> options;
    found.unified = type == "cgroup2";
    const bool of_memory = type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos;
    return found.unified || of_memory ? std::optional(found) : std::nullopt;
}

void lower(std::optional<uint64_t> &limit, std::optional<uint64_t> to) {
    constexpr uint64_t kNone = uint64_t{1} << 62; // as the first hierarchies write that there is none
    if (to && *to < kNone) {
        limit = std::min(limit.value_or(*to), *to);
    }
}

/// From the group up to where the hierarchy is mounted.
void lower_to_limits(const Hierarchy &where, const std::string &group, std::optional<uint64_t> &limit) {
    const bool all = where.root == "/";
    if (group.starts_with("/..") || (!all && !group.starts_with(where.root))) {
        return; // outside of what is to be seen here
    }
    std::string path = all ? group : group.substr(where.root.size());
    for (;; path.erase(path.rfind('/'))) {
        if (path == "/") {
            path.clear();
        }
        const std::string folder = where.at + path + "/";
        if (where.unified) {
            lower(limit, number_in(folder + "memory.max"));
            lower(limit, number_in(folder + "memory.high"));
        } else {
            lower(limit, number_in(folder + "memory.limit_in_bytes"));
        }
        if (path.find('/') == std::string::npos) {
            return;
        }
    }
}

} // namespace

std::optional<uint64_t> memory_limit_in(const std::string &mountinfo, const std::string &groups) {
    std::optional<uint64_t> limit;
    std::istringstream mounts(mountinfo);
    for (std::string line; std::getline(mounts, line);) {
        const std::optional<Hierarchy> where = hierarchy_of(line);
        std::istringstream list(groups);
        for (std::string group; where && std::getline(list, group);) {
            const size_t first = group.find(':'), second = group.find(':', first + 1);
            if (second != std::string::npos && where->is_named_by(group.substr(first + 1, second - first - 1))) {
                lower_to_limits(*where, group.substr(second + 1), limit);
            }
        }
    }
    return limit;
}

std::optional<uint64_t> memory_limit_of(pid_t pid, int pidfd) {
    static const std::string mounts = [] { // nobody moves them
        std::ifstream all("/proc/self/mountinfo");
        std::string found;
        for (std::string line; std::getline(all, line);) {
            if (line.find(" - cgroup") != std::string::npos) {
                found += line + "\n";
            }
        }
        return found;
    }();
    const std::string groups = pid > 0 ? contents("/proc/" + std::to_string(pid) + "/cgroup") : "";
    pollfd ended{pidfd, POLLIN, 0};
    return pidfd < 0 || poll(&ended, 1, 0) != 0 ? std::nullopt : memory_limit_in(mounts, groups);
}

} // namespace sd::monitor
