// The processes of sd-bridge that a test's monitor, or what stands for a service manager, has started.
#pragma once
#include "tests/unit/monitor_client.hpp"

#include <vector>

namespace sd::test {

inline std::vector<pid_t> bridges_of(pid_t parent) {
    std::vector<pid_t> result = children_of(parent);
    std::erase_if(result, [](pid_t pid) { return status_line(pid, "Name") != "sd-bridge"; });
    return result;
}
inline std::vector<pid_t> bridges_of(const MonitorProcess &monitor) { return bridges_of(monitor.pid); }

} // namespace sd::test
