// sdctl path, detach, attach: where connections that live are to go.
#pragma once
#include "monitor/sdctl/failure.hpp"

#include <string>
#include <vector>

namespace sd::ctl {

/// `connection`: as sdstat names it. `path`: kernel or shm. Waits so many seconds at most, and says what
/// holds it up. Throws Failure.
Exit move_connection(const std::string &connection, const std::string &path, double seconds);

/// Processes by number, by unit, by container, or "all". `stays`: with "all", for programs to come as well.
/// `is_forced`: processes that make no call are stopped for a moment, and so are those at the other ends.
Exit detach_processes(const std::vector<std::string> &which, double seconds, bool stays, bool is_forced);
Exit attach_processes(const std::vector<std::string> &which);

} // namespace sd::ctl
