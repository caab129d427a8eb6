// What /proc and the kernel say about a process.
#pragma once
#include "monitor/unique_fd.hpp"

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// Ticks since boot at which the process started; together with the pid it names a process for good. 0: no
/// such process.
uint64_t start_time(pid_t pid);
std::string process_exe(pid_t pid);  ///< path of the program, empty if it cannot be read
std::string process_comm(pid_t pid); ///< short name
UniqueFd open_pidfd(pid_t pid);      ///< becomes readable when the process ends

/// Whether some process that we can see has the socket with this inode open. Looks at every descriptor of every process.
bool socket_is_open(ino_t inode);

} // namespace sd::monitor
