// What /proc says about a process: processor time, wake-ups, memory; and finding the monitor.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sd::bench {

struct Activity {
    std::uint64_t run_ns = 0;  // processor time of all its threads
    std::uint64_t wakeups = 0; // times one of them slept and was woken
};
[[nodiscard]] Activity activity_of(pid_t pid);

struct Memory {
    std::uint64_t private_bytes = 0;
    std::uint64_t shared_bytes = 0; // mappings of memfds, each divided by the number of processes that map it
};
[[nodiscard]] Memory memory_of(pid_t pid);

// Bytes of kernel memory in slabs and socket buffers of the whole machine: rough, others use it too.
[[nodiscard]] std::uint64_t kernel_bytes();

// Processes of this network namespace whose name (comm) is this one.
[[nodiscard]] std::vector<pid_t> find_processes(const std::string &name);

} // namespace sd::bench
