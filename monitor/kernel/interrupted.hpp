// A bound for calls that could sleep for as long as somebody else likes.
#pragma once
#include <csignal>
#include <sys/time.h>

namespace sd::monitor {

/// While one lives, a sleep in the kernel that signals interrupt ends after some milliseconds. The signal
/// comes again and again, so that it does not matter if the first one comes before the sleep. For the main
/// thread; they do not nest.
class Interrupted {
  public:
    Interrupted() {
        struct sigaction action {};
        action.sa_handler = [](int) {}; // without SA_RESTART
        sigaction(SIGALRM, &action, nullptr);
        const itimerval every{{0, 5000}, {0, 5000}};
        setitimer(ITIMER_REAL, &every, nullptr);
    }
    ~Interrupted() {
        const itimerval never{};
        setitimer(ITIMER_REAL, &never, nullptr);
    }
    Interrupted(const Interrupted &) = delete;
    Interrupted &operator=(const Interrupted &) = delete;
};

} // namespace sd::monitor
