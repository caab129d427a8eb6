// Children that run in their parent's memory, as vfork makes them: what they write is there afterwards, all
// else that they change is their own.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/close_range.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/time.h>

using namespace sdtest;

namespace {

// What children leave behind.
volatile int left_behind = 0;
volatile sig_atomic_t signals_seen = 0;

void count_signal(int) { signals_seen = signals_seen + 1; }

int reap_quietly(pid_t child) {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

void show_disposition(const char *who) {
    struct sigaction action {};
    MUST(sigaction(SIGUSR1, nullptr, &action));
    say("%s: handler %s, flags %x", who, action.sa_handler == SIG_DFL ? "default" : "set",
        static_cast<unsigned>(action.sa_flags & (SA_RESTART | SA_NODEFER)));
}

// The status of a program that a vfork child becomes.
int vfork_and_exec() {
    const pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(1);
    }
    return reap_quietly(child);
}

// How a vfork child ends that sends itself this signal.
void vfork_and_raise(int signal) {
    const pid_t child = vfork();
    if (child == 0) {
        raise(signal);
        _exit(1);
    }
    reap("child", child);
}

// The memory is as good as before: a connection can be made.
void show_connection() {
    const Pair pair = make_pair();
    send_all(pair.client, "ping");
    say("%s", receive(pair.server, 4).c_str());
}

} // namespace

// What it does to descriptors, dispositions, masks and limits is its own.
BEHAVIOUR("vfork", memory_is_shared, accelerated) {
    struct sigaction action {};
    action.sa_handler = count_signal;
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGUSR1, &action, nullptr));
    const int fd = MUST(open("/dev/null", O_RDWR | O_CLOEXEC));
    rlimit before{};
    MUST(getrlimit(RLIMIT_AS, &before));
    for (int round = 0; round < 3; ++round) {
        const pid_t child = vfork();
        if (child == 0) {
            signal(SIGUSR1, SIG_DFL);
            show_disposition("child");
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_SETMASK, &all, nullptr);
            close(fd);
            const rlimit small{rlim_t{1} << 40, rlim_t{1} << 40};
            setrlimit(RLIMIT_AS, &small);
            dup2(socket(AF_INET, SOCK_STREAM, 0), 200);
            const pid_t grandchild = vfork();
            if (grandchild == 0) {
                left_behind = left_behind + 1;
                _exit(5);
            }
            waitpid(grandchild, nullptr, 0);
            execl("/nowhere/to/be/found", "nothing", nullptr);
            left_behind = left_behind + errno;
            _exit(4);
        }
        say("left behind: %d", left_behind);
        reap("child", child);
        show_disposition("parent");
        SHOW_BOOL(fcntl(fd, F_GETFD) == FD_CLOEXEC);
        SHOW(fcntl(200, F_GETFD));
        sigset_t mask;
        MUST(sigprocmask(SIG_BLOCK, nullptr, &mask));
        SHOW(sigismember(&mask, SIGUSR2));
        rlimit now{};
        MUST(getrlimit(RLIMIT_AS, &now));
        SHOW_BOOL(now.rlim_cur == before.rlim_cur && now.rlim_max == before.rlim_max);
        MUST(raise(SIGUSR1));
        SHOW(signals_seen);
    }
    SHOW_BOOL(vfork_and_exec() == 0);
    MUST(close(fd));
    show_connection();
}

BEHAVIOUR("clone as vfork does it", memory_is_shared_by_clone, accelerated) {
    static char stack[256 << 10];
    const int fd = MUST(open("/dev/null", O_RDWR | O_CLOEXEC));
    const auto run = [](int (*body)(void *), int argument) {
        const pid_t child = MUST(clone(body, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &argument));
        say("left behind: %d", left_behind);
        reap("child", child);
    };
    run(
        [](void *argument) {
            close(*static_cast<int *>(argument));
            left_behind = 1;
            return 9;
        },
        fd);
    SHOW_BOOL(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    run(
        [](void *) {
            left_behind = 2;
            execl("/bin/sh", "sh", "-c", "exit 6", nullptr);
            return 9;
        },
        0);
    show_connection();
}

// Handlers run in the process that the signal is for, with the mask it had, and none of the parent's while
// its memory is shared.
BEHAVIOUR("signals and vfork", signals_while_memory_is_shared, accelerated) {
    MUST(setpgid(0, 0));
    signal(SIGUSR1, count_signal);
    pid_t child = vfork();
    if (child == 0) {
        raise(SIGUSR1);
        left_behind = signals_seen;
        kill(0, SIGUSR1);
        left_behind = left_behind + 10 * signals_seen;
        _exit(0);
    }
    reap("child", child);
    say("in the child: %d, together: %d", left_behind, signals_seen);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &usr1, nullptr));
    child = vfork();
    if (child == 0) {
        sigset_t mask;
        raise(SIGUSR1);
        sigpending(&mask);
        left_behind = sigismember(&mask, SIGUSR1);
        sigprocmask(SIG_BLOCK, nullptr, &mask);
        left_behind = left_behind + 10 * sigismember(&mask, SIGUSR1) + 100 * sigismember(&mask, SIGUSR2);
        _exit(0);
    }
    reap("child", child);
    sigset_t mask;
    MUST(sigpending(&mask));
    say("in the child: %d, pending here: %d", left_behind, sigismember(&mask, SIGUSR1));
    MUST(sigprocmask(SIG_UNBLOCK, &usr1, nullptr));
    for (int signal : {SIGKILL, SIGABRT, SIGUSR2})
        vfork_and_raise(signal);
    show_connection();
}

// Timers and ended children interrupt a program all the time. Its handlers find the memory as it was.
BEHAVIOUR("timers and vfork", timers_while_memory_is_shared, accelerated) {
    static volatile sig_atomic_t wrong = 0;
    signal(SIGCHLD, [](int) { // as System V programs do it
        const int saved = errno;
        signals_seen = signals_seen + 1;
        const auto was = signal(SIGUSR2, signals_seen & 1 ? count_signal : SIG_IGN);
        if (was != (signals_seen == 1 ? SIG_DFL : signals_seen & 1 ? SIG_IGN : count_signal))
            wrong = 1;
        errno = saved;
    });
    signal(SIGALRM, [](int) { left_behind = left_behind + 1; });
    const itimerval often{{0, 300}, {0, 300}}, never{};
    MUST(setitimer(ITIMER_REAL, &often, nullptr));
    int good = 0;
    for (int i = 0; i < 100; ++i) {
        const pid_t child = vfork();
        if (child == 0) {
            if (i & 1)
                execl("/bin/true", "true", nullptr);
            _exit(0);
        }
        good += reap_quietly(child) == 0;
    }
    MUST(setitimer(ITIMER_REAL, &never, nullptr));
    SHOW(good);
    SHOW(wrong);
    SHOW_BOOL(signals_seen > 0 && left_behind > 0);
    signal(SIGCHLD, SIG_DFL);
    show_connection();
}

BEHAVIOUR("vfork in a handler", vfork_in_a_handler, accelerated) {
    signal(SIGUSR1, [](int) {
        const int status = vfork_and_exec();
        const pid_t child = vfork();
        if (child == 0) {
            left_behind = 7;
            _exit(0);
        }
        left_behind = left_behind + status + reap_quietly(child);
    });
    MUST(raise(SIGUSR1));
    SHOW(left_behind);
    show_connection();
}

// What it forks has memory of its own, and may use connections.
BEHAVIOUR("fork in a vfork child", forks_in_shared_memory, accelerated) {
    const pid_t child = vfork();
    if (child == 0) {
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            left_behind = 1;
            show_connection();
            _exit(3);
        }
        reap("grandchild", grandchild);
        _exit(4);
    }
    reap("child", child);
    SHOW(left_behind);
    show_connection();
}

// Sockets are its own, like everything else under a number.
BEHAVIOUR("sockets in a vfork child", sockets_in_shared_memory, accelerated) {
    const pid_t child = vfork();
    if (child == 0) {
        show_connection();
        _exit(0);
    }
    reap("child", child);
    SHOW(fcntl(3, F_GETFD));
    show_connection();
}

namespace {

/// Whether this process is accelerated, and sdrun's channel is open in it, as it is to be.
bool equipped() {
    const char *preload = getenv("LD_PRELOAD"), *channel = getenv("SD_CONTROL_FD");
    return preload && strstr(preload, "libsd.so") && getenv("SD_MONITOR") && channel &&
           access((std::string("/proc/self/fd/") + channel).c_str(), F_OK) == 0;
}

char program[4096];
char *nothing[] = {nullptr};

// In a vfork child: says whether the next program has what this one had.
void become(const char *label, char **environment) {
    const char *expected = left_behind ? "equipped" : "plain";
    execle(program, program, expected, label, nullptr, environment);
    _exit(9);
}

template <class Prepare> void show_next(const char *label, Prepare prepare) {
    fflush(stdout);
    const pid_t child = vfork();
    if (child == 0) {
        prepare();
        become(label, environ);
    }
    if (const int status = reap_quietly(child))
        say("%s: status %x", label, static_cast<unsigned>(status));
}

void show_programs(int channel) {
    char **const whole = environ;
    show_next("as it is", [] {});
    show_next("no environment", [] { become("no environment", nothing); });
    show_next("emptied", [] { environ = nothing; });
    environ = whole;
    show_next("close_range", [] { close_range(3, ~0u, 0); });
    show_next("marked", [] { close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); });
    show_next("closefrom", [] { closefrom(3); });
    show_next("closed one by one", [] {
        for (int fd = 3; fd < 2000; ++fd)
            close(fd);
    });
    show_next("dup2", [&] {
        dup2(1, channel);
        close_range(3, static_cast<unsigned>(channel) - 1, 0);
    });
    show_next("after dup2 in another", [&] {
        const pid_t grandchild = vfork();
        if (grandchild == 0) {
            dup2(1, channel);
            become("dup2", environ);
        }
        reap_quietly(grandchild);
    });
    show_next("after a failed exec", [] { execl("/nowhere/to/be/found", "nothing", nullptr); });
    show_next("little room", [] {
        const rlimit few{256, 256};
        setrlimit(RLIMIT_NOFILE, &few);
    });
    show_next("spawned", [] {
        char *const arguments[] = {program, const_cast<char *>(left_behind ? "equipped" : "plain"),
                                   const_cast<char *>("by posix_spawn"), nullptr};
        pid_t child = 0;
        if (posix_spawn(&child, program, nullptr, nullptr, arguments, nothing) == 0)
            reap_quietly(child);
    });
    show_next("system", [] { system("exit 0"); });
}

} // namespace

// Whatever the child does to numbers and variables, what it executes is accelerated as this is.
BEHAVIOUR("what vfork children execute", programs_of_vfork_children, accelerated) {
    MUST(readlink("/proc/self/exe", program, sizeof program - 1));
    left_behind = equipped();
    const char *channel = getenv("SD_CONTROL_FD");
    show_programs(channel ? atoi(channel) : 1024);
    show_programs(channel ? atoi(channel) : 1024); // the first ones have changed nothing here
    show_connection();
}

int main(int argc, char **argv) {
    if (argc == 3 && (strcmp(argv[1], "equipped") == 0 || strcmp(argv[1], "plain") == 0)) {
        say("%s: %s", argv[2], equipped() == (argv[1][0] == 'e') ? "as before" : "something is missing");
        return 0;
    }
    return run_behaviour(argc, argv);
}
