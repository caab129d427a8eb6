// A thread on its way to sleep is stopped after each locked instruction in turn, and what would have kept it
// awake comes just then and is taken by somebody who shares the socket. It goes to sleep; the next thing that
// comes has to wake it. Run under sdrun.
#include "tests/e2e/instructions.hpp"
#include "tests/programs/process.hpp"

#include <csignal>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

using namespace sdtest;

namespace {

#define MARK() asm volatile("int3" ::: "memory")

enum class How { call, poll, epoll };
struct Mode {
    const char *name;
    bool listener;
    How how;
};
constexpr Mode kModes[] = {
    {"accept", true, How::call}, {"poll for accept", true, How::poll}, {"epoll for accept", true, How::epoll},
    {"recv", false, How::call},  {"poll for recv", false, How::poll},  {"epoll for recv", false, How::epoll},
};

/// The sleeper: waits for `fd` twice, the second time step by step, and answers each time.
[[noreturn]] void wait_and_answer(const Mode &mode, int fd) {
    const int set = mode.how == How::epoll ? MUST(epoll_create1(0)) : -1;
    epoll_event event{};
    event.events = EPOLLIN;
    if (set >= 0)
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int round = 0; round < 2; ++round) {
        if (round == 1) {
            MUST(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
            MARK();
        }
        int got = -1;
        while (got < 0) { // a sharer may be faster
            if (mode.how == How::poll) {
                pollfd p{fd, POLLIN, 0};
                MUST(poll(&p, 1, -1));
            } else if (mode.how == How::epoll) {
                MUST(epoll_wait(set, &event, 1, -1));
            }
            char byte;
            if (mode.listener)
                got = accept(fd, nullptr, nullptr);
            else if (recv(fd, &byte, 1, mode.how == How::call ? 0 : MSG_DONTWAIT) == 1)
                got = fd;
        }
        send_all(got, "x");
        if (got != fd)
            close(got);
    }
    _exit(0);
}

bool asleep(pid_t pid) {
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    char text[512] = {};
    const int fd = MUST(open(path.c_str(), O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    close(fd);
    const char *end = strrchr(text, ')');
    return end && end[2] == 'S';
}

void copy_from(pid_t pid, const void *from, void *to, size_t n) {
    iovec mine{to, n}, its{const_cast<void *>(from), n};
    if (process_vm_readv(pid, &mine, 1, &its, 1, 0) <= 0)
        give_up("process_vm_readv");
}

/// About to enter a system call that waits?
bool goes_to_sleep(pid_t pid, const user_regs_struct &r) {
    timespec t{};
    switch (r.rax) {
    case SYS_epoll_pwait:
        return static_cast<int>(r.r10) != 0;
    case SYS_ppoll:
        if (r.rdx == 0)
            return true;
        copy_from(pid, reinterpret_cast<void *>(r.rdx), &t, sizeof t);
        return t.tv_sec || t.tv_nsec;
    case SYS_epoll_pwait2:
        if (r.r10 == 0)
            return true;
        copy_from(pid, reinterpret_cast<void *>(r.r10), &t, sizeof t);
        return t.tv_sec || t.tv_nsec;
    default:
        return false;
    }
}

/// Runs the stopped sleeper up to behind its next locked instruction. False: it is about to go to sleep.
bool step_over_locked(pid_t pid) {
    bool was_locked = false;
    for (;;) {
        user_regs_struct registers;
        MUST(ptrace(PTRACE_GETREGS, pid, nullptr, &registers));
        unsigned char code[16] = {};
        copy_from(pid, reinterpret_cast<void *>(registers.rip), code, sizeof code);
        if (was_locked)
            return true;
        if (enters_kernel(code) && goes_to_sleep(pid, registers))
            return false;
        was_locked = dear_instruction(code) != nullptr && !enters_kernel(code) && !only_orders_loads(code);
        MUST(ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr));
        int status = 0;
        MUST(waitpid(pid, &status, 0));
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            give_up("the sleeper did not stop");
    }
}

bool answered(int fd) {
    timeval limit{10, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    char byte = 0;
    return recv(fd, &byte, 1, 0) == 1 && byte == 'x';
}

/// One life of the sleeper, disturbed after its `nth` locked instruction. False: there were not that many.
bool disturb(const Mode &mode, int nth, bool &right) {
    const int listener = make_listener();
    Pair pair{};
    int shared = listener;
    if (!mode.listener) {
        pair = make_pair();
        shared = pair.server;
    }
    const pid_t child = fork();
    if (child == 0)
        wait_and_answer(mode, shared);
    auto call = [&] { // something for the sleeper; returns the end to hear the answer from
        if (mode.listener)
            return connect_to(listener);
        send_all(pair.client, "y");
        return pair.client;
    };
    auto hang_up = [&](int fd) {
        if (mode.listener)
            close(fd);
    };
    int fd = call();
    right = answered(fd);
    hang_up(fd);
    int status = 0;
    MUST(waitpid(child, &status, 0));
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
        give_up("the sleeper did not come to its mark");
    bool there = true;
    for (int i = 0; i < nth && there; ++i)
        there = step_over_locked(child);
    if (there) { // it comes, and is taken
        fd = call();
        if (mode.listener) {
            close(MUST(accept(listener, nullptr, nullptr)));
        } else {
            char byte;
            MUST(recv(shared, &byte, 1, 0));
        }
        hang_up(fd);
    }
    MUST(ptrace(PTRACE_DETACH, child, nullptr, nullptr));
    for (int in_a_row = 0; in_a_row < 3; sleep_ms(1)) // a short sleep on the way does not count
        in_a_row = asleep(child) ? in_a_row + 1 : 0;
    fd = call();
    right = right && answered(fd);
    hang_up(fd);
    if (!right)
        kill(child, SIGKILL);
    MUST(waitpid(child, &status, 0));
    close(listener);
    if (!mode.listener) {
        close(pair.client);
        close(pair.server);
    }
    return there;
}

} // namespace

int main() {
    bool all_right = true;
    for (const Mode &mode : kModes) {
        int places = 0, missed = 0;
        for (bool more = true; more; ++places) {
            bool right = true;
            more = disturb(mode, places + 1, right);
            missed += !right;
        }
        say("%s: not woken after %d disturbances", mode.name, missed);
        fprintf(stderr, "%s: %d places\n", mode.name, places);
        all_right = all_right && missed == 0 && places > 3;
    }
    return !all_right;
}
