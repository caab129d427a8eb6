// Processes of the measuring programs.
#include "bench/common/process.hpp"

#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sd::bench {

void die(const char *what) {
    std::fprintf(stderr, "%s: %s\n", what, errno != 0 ? std::strerror(errno) : "failed");
    std::exit(1);
}

void pin_to_cpu(int cpu) {
    if (cpu < 0) {
        return;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        die("sched_setaffinity");
    }
}

pid_t start_child(int cpu, const std::function<void()> &body) {
    std::fflush(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        pin_to_cpu(cpu);
        body();
        std::exit(0);
    }
    return pid;
}

void become_other_user() {
    constexpr uid_t kOther = 60002;
    const pid_t parent = getppid();
    if (setgroups(0, nullptr) != 0 || setgid(kOther) != 0 || setuid(kOther) != 0) {
        die("another user needs root");
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); // the change has taken it away
    if (getppid() != parent) {
        _exit(1);
    }
}

void join_child(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            die("waitpid");
        }
    }
    if (status != 0) {
        std::fprintf(stderr, "child %d ended with %s %d\n", static_cast<int>(pid),
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        std::exit(1);
    }
}

void end_child(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

void raise_fd_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        die("getrlimit");
    }
    // Only root may go past the hard limit; anyone may go up to it.
    rlimit wish{1'048'576, 1'048'576};
    if (limit.rlim_cur >= wish.rlim_cur || setrlimit(RLIMIT_NOFILE, &wish) == 0) {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        die("setrlimit");
    }
}

} // namespace sd::bench
