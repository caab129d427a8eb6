// What the monitor meets in control_fuzz beside packets: descriptors that run out, time that passes, and
// clients of another process and user. To be included once in a program.
#pragma once
#include "tests/fuzz/kept_files.hpp"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sdfuzz {

/// As long as it lives, the process gets no more descriptors than so many.
class FewDescriptors {
  public:
    explicit FewDescriptors(unsigned left) {
        getrlimit(RLIMIT_NOFILE, &before_);
        const int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
        if (next < 0) {
            return;
        }
        close(next);
        const rlimit few{static_cast<rlim_t>(next) + left, before_.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
    }
    ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
    FewDescriptors(const FewDescriptors &) = delete;
    FewDescriptors &operator=(const FewDescriptors &) = delete;

  private:
    rlimit before_{};
};

/// How much later it is, for the thread that keeps files, than the kernel says.
inline int64_t seconds_passed = 0;

/// Another process, which does nothing, and of another user if we may make one.
inline pid_t make_stranger(uid_t uid) {
    const pid_t parent = getpid(), made = fork();
    if (made == 0) {
        syscall(SYS_setresgid, uid, uid, uid);
        syscall(SYS_setresuid, uid, uid, uid);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) {
            pause();
        }
        _exit(0);
    }
    return made;
}

} // namespace sdfuzz

/// In place of libc's, for the monitor's clock.
extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    if (result == 0 && clock == CLOCK_MONOTONIC && sdfuzz::keeps_files) {
        now->tv_sec += sdfuzz::seconds_passed;
    }
    return result;
}
