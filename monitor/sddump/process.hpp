// A process that is captured. The kernel says whether it may be: each look asks it anew, by taking a
// descriptor out of the process, which takes the right to trace it.
#pragma once
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sddump/ring.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sd::dump {

using SteadyClock = std::chrono::steady_clock;

struct FoundSegment {
    SegmentMap map;
    unsigned proc; ///< the process's record in it
};

class Process {
  public:
    /// Throws Failure: there is none, or it may not be captured by this user.
    explicit Process(uint32_t pid);

    uint32_t pid() const { return pid_; }
    const std::string &name() const { return name_; }
    /// Readable when it has ended.
    int pidfd() const { return pidfd_.get(); }
    bool has_ended(int wait_ms = 0) const;
    /// Does it have libsd.so?
    bool is_accelerated() const;
    /// Family segments in which it has a record, and that were not given before. Throws Failure.
    std::vector<FoundSegment> new_segments();
    /// Is there one of which the monitor has not heard yet?
    bool is_new() const { return !unheard_of_.empty(); }
    /// Empty, or why it must not be captured any longer.
    std::string objection(const std::vector<const SegmentMap *> &segments) const;

  private:
    /// The descriptors of the process that are family segments.
    std::vector<monitor::UniqueFd> segments() const;
    std::string identity() const;

    uint32_t pid_;
    monitor::UniqueFd pidfd_;
    std::string name_, identity_;
    std::set<ino_t> known_;
    std::map<ino_t, SteadyClock::time_point> unheard_of_; ///< by the monitor, and since when
};

} // namespace sd::dump
