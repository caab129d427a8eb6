// The processes of sd-bridge that a test's monitor, or what stands for a service manager, has started.
#pragma once
#include "tests/unit/monitor_client.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace sd::test {

/// The line of /proc/PID/status that begins with `name`, without it.
inline std::string status_line(pid_t pid, const std::string &name) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind(name + ":", 0) == 0) {
            const size_t value = line.find_first_not_of(" \t", name.size() + 1);
            return value == std::string::npos ? "" : line.substr(value);
        }
    }
    return {};
}

inline std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> result;
    for (const auto &entry : std::filesystem::directory_iterator("/proc")) {
        const auto pid = static_cast<pid_t>(atoi(entry.path().filename().c_str()));
        if (pid > 0 && status_line(pid, "PPid") == std::to_string(parent)) {
            result.push_back(pid);
        }
    }
    return result;
}

inline std::vector<pid_t> bridges_of(pid_t parent) {
    std::vector<pid_t> result = children_of(parent);
    std::erase_if(result, [](pid_t pid) { return status_line(pid, "Name") != "sd-bridge"; });
    return result;
}
inline std::vector<pid_t> bridges_of(const MonitorProcess &monitor) { return bridges_of(monitor.pid); }

} // namespace sd::test
