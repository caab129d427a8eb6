// Signals that actors receive, and steps about them.
#include "tests/differential/actor.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

namespace sd::differential {

namespace {

thread_local volatile int sigpipes = 0;
std::atomic<int> received[65];
std::atomic<int> handlers_fd{-1};
thread_local volatile sig_atomic_t jumps = 0;     ///< the next SIGUSR1 is to
thread_local volatile sig_atomic_t in_a_step = 0; ///< and can

void count(int number) {
    if (number == SIGPIPE) {
        sigpipes = sigpipes + 1; // SIGPIPE comes to the thread that wrote
        return;
    }
    received[number].fetch_add(1, std::memory_order_relaxed);
    if (number != SIGUSR1) {
        return;
    }
    if (const int fd = handlers_fd.load(std::memory_order_relaxed); fd >= 0) {
        const int error = errno;
        send(fd, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        errno = error;
    }
    if (jumps != 0 && in_a_step != 0) {
        jumps = 0;
        siglongjmp(jump_target, 1);
    }
}

// The program is broken; say so instead of just vanishing, which a SIGPIPE would excuse.
void crash(int number) {
    Reply reply;
    reply.step = -2;
    reply.pid = reply.tid = 0;
    const int n = snprintf(reply.text, sizeof reply.text, "CRASHED by SIG%s", sigabbrev_np(number));
    raw_call(SYS_write, own_channel, reinterpret_cast<long>(&reply),
             static_cast<long>(reply.size(static_cast<size_t>(n))));
    raw_call(SYS_exit_group, 1);
}

void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, nullptr);
}

// What a handler of SIGIO or SIGURG was told is not compared: only which signals came.
void own(int fd, int what, int value, Observation &o) {
    if (what == 0) {
        o.result(fcntl(fd, F_SETOWN, value != 0 ? getpid() : 0));
    } else if (what == 1) {
        const int owner = fcntl(fd, F_GETOWN);
        o.say("%s", owner == getpid() ? "this process"
                    : owner == 0      ? "nobody"
                    : owner < 0       ? strerrorname_np(errno)
                                      : "another");
    } else if (what == 2) {
        o.result(fcntl(fd, F_SETSIG, value));
    } else {
        o.result(fcntl(fd, F_GETSIG));
    }
}

} // namespace

thread_local sigjmp_buf jump_target;

bool may_jump() {
    in_a_step = 1;
    return true;
}
void no_more_jumping() { in_a_step = 0; }

void install_handlers() {
    handle(SIGPIPE, count, 0);
    handle(SIGUSR1, count, 0);
    handle(SIGUSR2, count, SA_RESTART);
    handle(SIGIO, count, SA_RESTART);
    handle(SIGURG, count, SA_RESTART);
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) {
        handle(number, crash, 0);
    }
    sigpipes = 0;
    for (std::atomic<int> &number : received) {
        number.store(0, std::memory_order_relaxed);
    }
}

int take_sigpipes() {
    const int had = sigpipes;
    sigpipes = 0;
    return had;
}

bool perform_signals(Op op, int, Arguments a, Observation &o) {
    switch (op) {
    case Op::sigaction: {
        static constexpr int kNumbers[] = {SIGPIPE, SIGUSR1, SIGURG};
        handle(kNumbers[a[0]], a[1] == 0 ? SIG_DFL : a[1] == 1 ? SIG_IGN : count, a[1] == 3 ? SA_RESTART : 0);
        o.say("set");
        return true;
    }
    case Op::signals: {
        // A signal for the process may just be on its way to another of its threads.
        const timespec moment{0, 2000000};
        nanosleep(&moment, nullptr);
        for (int number = 1; number < 65; ++number) {
            const int times = received[number].exchange(0, std::memory_order_relaxed);
            if (times != 0) {
                // How many times SIGIO came for one event is not promised: the kernel reports each wake-up.
                o.say("%s ", number == SIGIO                   ? "IO"
                             : sigabbrev_np(number) != nullptr ? sigabbrev_np(number)
                                                               : "RT");
            }
        }
        o.say(".");
        return true;
    }
    case Op::handler_sends:
        handlers_fd.store(a[0], std::memory_order_relaxed);
        o.say("set");
        return true;
    case Op::jump:
        jumps = 1;
        o.say("set");
        return true;
    case Op::owner:
        own(a[0], a[1], a[2], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
