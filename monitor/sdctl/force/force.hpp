// sdctl detach --force: has a process that makes no call do what its next one would.
#pragma once
#include <string>
#include <sys/types.h>

namespace sd::ctl {

struct Forced {
    bool is_done = false; ///< a thread of it has taken the steps that could be taken now
    bool again = false;   ///< it may be worth asking again soon
    std::string why;      ///< it is not done
};
/// Tries each thread of the process until one can. Takes milliseconds; seconds where the monitor does not
/// answer. The kernel decides who may.
Forced force_step(pid_t pid);

} // namespace sd::ctl
