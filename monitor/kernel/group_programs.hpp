// BPF programs on control groups that the kernel asks about connections.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>

namespace sd::monitor {

/// The path of a process's group in the unified hierarchy, as this process sees it:
/// "/system.slice/a.service". Nothing: it cannot be known. `pidfd`: of the process, opened before.
std::optional<std::string> unified_group(pid_t pid, int pidfd);

/// Whether a program on the group, or on one above it, could refuse or redirect the connections of its
/// processes (IPAddressDeny= of systemd is such a one). Nothing: it cannot be known.
std::optional<bool> has_connection_programs(const std::string &group);

/// Groups that somebody was in who asked for a link, and whether they had programs. How many there are is for
/// users to choose, who may make groups below their own.
class SeenGroups {
  public:
    using Clock = std::chrono::steady_clock;
    void note(const std::string &group, bool programs);
    /// Looks at them anew, from where it stopped. True: all have been looked at since the last time that it
    /// was true.
    bool look(Clock::time_point until);
    /// Whether one has changed since this was asked for.
    bool take_changed() { return std::exchange(changed_, false); }
    /// Whether one had programs when it was looked at last.
    bool any_has_programs() const;

  private:
    std::map<std::string, bool> seen_;
    std::string at_; ///< the next one, or what comes after it
    bool changed_ = false;
};

} // namespace sd::monitor
