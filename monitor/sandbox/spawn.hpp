// Starting a helper of the monitor, and giving it work.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

/// Starts the program `name` beside this one, with no signal blocked or ignored. `channel` becomes its
/// descriptor `number`. 0 and the process, or errno.
[[nodiscard]] int spawn_beside(const std::string &name, const std::vector<std::string> &arguments,
                               const std::vector<std::string> &environment, int channel, int number, pid_t &pid);

/// Sends an order with the descriptors that belong to it, at most 2, without waiting. They stay the caller's.
/// False, with errno.
[[nodiscard]] bool send_order(int channel, const void *order, size_t bytes, std::span<const int> fds);

} // namespace sd::monitor
