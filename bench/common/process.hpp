// Forking, pinning and shared counters of the measuring programs.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <functional>
#include <new>

namespace sd::bench {

// Ends the program with a message that holds strerror(errno) when errno is set.
[[noreturn]] void die(const char *what);

// A negative number leaves the affinity as it is.
void pin_to_cpu(int cpu);

// Runs `body` in a child that is pinned first and dies with its parent; exit status 0 when it returns.
[[nodiscard]] pid_t start_child(int cpu, const std::function<void()> &body);

// Another user than root, for good; needs root. Still dies with its parent.
void become_other_user();

// Waits and ends the program with an error when the child failed.
void join_child(pid_t pid);

// Ends a child that would wait for ever, and reaps it.
void end_child(pid_t pid);

void raise_fd_limit();

// A value in memory that children made later share with this process.
template <typename T> T *shared_value() {
    void *memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        die("mmap");
    }
    return new (memory) T();
}

} // namespace sd::bench
