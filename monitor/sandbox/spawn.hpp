// Starting a helper of the monitor.
#pragma once
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

/// Starts the program `name` beside this one, with no signal blocked or ignored. `channel` becomes its
/// descriptor `number`. 0 and the process, or errno.
int spawn_beside(const std::string &name, const std::vector<std::string> &arguments,
                 const std::vector<std::string> &environment, int channel, int number, pid_t &pid);

} // namespace sd::monitor
