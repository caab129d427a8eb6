// Looking at something as it is in the network namespace of another process.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <exception>
#include <fcntl.h>
#include <sched.h>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// This thread is in the network namespace of a process until the object goes.
class Visit {
  public:
    explicit Visit(pid_t pid) {
        const std::string there = "/proc/" + std::to_string(pid) + "/ns/net";
        const UniqueFd target(open(there.c_str(), O_RDONLY | O_CLOEXEC));
        home_ = UniqueFd(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
        inside_ = home_ && target && setns(target.get(), CLONE_NEWNET) == 0;
    }
    ~Visit() {
        if (inside_ && setns(home_.get(), CLONE_NEWNET) != 0) {
            std::terminate(); // everything it looked up from here on would be somebody else's
        }
    }
    Visit(const Visit &) = delete;
    Visit &operator=(const Visit &) = delete;
    bool is_inside() const { return inside_; }

  private:
    UniqueFd home_;
    bool inside_ = false;
};

} // namespace sd::monitor
