// One thread of another process, stopped by ptrace for a moment.
#pragma once
#include "libsd/cpu/interrupted.hpp"
#include "monitor/sdctl/force/forced_entry.hpp"

#include <cstdint>
#include <sys/types.h>
#include <vector>

namespace sd::ctl {

/// Reads or writes memory of a process with the rights that its own mappings give. False: not all of it.
[[nodiscard]] bool read_memory(pid_t pid, uint64_t address, void *to, size_t bytes);
[[nodiscard]] bool write_memory(pid_t pid, uint64_t address, const void *from, size_t bytes);

/// Stopped from construction to destruction, where stop() says so. Whoever has stopped it before, by a
/// signal, finds it stopped afterwards.
class Tracee {
  public:
    explicit Tracee(pid_t tid) : tid_(tid) {}
    ~Tracee();
    Tracee(const Tracee &) = delete;
    Tracee &operator=(const Tracee &) = delete;

    /// 0; ESRCH: it has ended; EPERM: it may not be traced; EBUSY: it cannot be stopped just now.
    [[nodiscard]] int stop();

    enum class Step {
        done,
        unsafe,      ///< it is in the middle of something, and goes on there; another time
        busy,        ///< other threads were in the middle of something
        off,         ///< the library is out of use there
        left,        ///< an earlier tracer was killed in the middle: nobody may do it again
        overdue,     ///< it did not come to an end in time, and goes on by itself when it does
        ended,       ///< the thread
        unreachable, ///< what the library has said is not true
    };
    /// Has the stopped thread run the function of `entry`, and puts it back to where it was.
    Step run(const ForcedEntry &entry);

  private:
    [[nodiscard]] bool wait_stop(int milliseconds);
    bool in_sequence(const cpu::Registers &r) const;
    /// Waits for the end of the function, and stops the thread there.
    Step wait_end(const ForcedEntry &entry);

    pid_t tid_;
    bool is_traced_ = false, is_stopped_ = false;
};

} // namespace sd::ctl
