// What /proc and the kernel say about a process.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// Ticks since boot at which the process started; together with the pid it names a process for good. 0: no
/// such process.
uint64_t start_time(pid_t pid);
std::string process_exe(pid_t pid);  ///< path of the program, empty if it cannot be read
std::string process_comm(pid_t pid); ///< short name
/// Of its network namespace; 0 if that is not ours to see.
ino_t netns_inode(pid_t pid);
/// Bytes of address space that it can still map, at most; all there is where that cannot be seen.
uint64_t address_space_left(pid_t pid);
UniqueFd open_pidfd(pid_t pid); ///< becomes readable when the process ends
/// Of an open_pidfd(); not, if there is none.
bool is_alive(const UniqueFd &pidfd);

} // namespace sd::monitor
