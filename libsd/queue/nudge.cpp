// Helping a stopped thread out of an operation; see nudge.hpp.
//
// SIGSTOP takes effect wherever a thread is, also between the busy mark and its removal, and then whoever wants the token next would wait until somebody
// sends SIGCONT. A kernel socket is never held by a stopped process, so ours should not be either. What the thread has half done
// cannot be undone safely, since it may be continued at any moment; but it can be finished: a debugger may run a stopped thread, and when
// it lets go the thread is stopped as before. No SIGCONT is involved, so nobody is told anything. Signals are held back meanwhile: those that are pending
// belong to the moment when the process is really continued.
//
// The debugger is a process made for the purpose, as a tracer gets its tracee's news through wait(), which belongs to the program. It shares our
// memory, makes system calls only, and is gone before we go on.
#include "libsd/queue/nudge.hpp"
#include "libsd/control/confine.hpp"
#include "libsd/control/sys.hpp"
#include <csignal>
#include <cstring>
#include <linux/ptrace.h>
#include <sched.h>
#include <sys/wait.h>

namespace sd {

namespace {

constexpr int64_t kRunNs = 20'000'000;    ///< an operation takes microseconds
constexpr int64_t kAttachNs = 20'000'000; ///< a thread that is not really stopped, or frozen

long trace(long request, int tid, long address, const void *data) noexcept {
    return sys::call(SYS_ptrace, request, tid, address, sys::arg(data));
}

/// Waits until the tracee stops. False: it ended, or does not.
bool wait_stop(int tid) noexcept {
    const int64_t until = sys::now_ns() + kAttachNs;
    for (;;) {
        int status = 0;
        const long r = sys::call(SYS_wait4, tid, sys::arg(&status), __WALL | WNOHANG, 0);
        if (r == tid)
            return WIFSTOPPED(status);
        if (r < 0 || sys::now_ns() > until)
            return false;
        sys::sched_yield();
    }
}

/// In the process made for it, on the stack below its maker's; ending it ends the tracing.
template <class T>
[[gnu::noinline]] void run_until_changed(int tid, const std::atomic<T> &word, T value) noexcept {
    if (trace(PTRACE_SEIZE, tid, 0, nullptr) < 0 || !wait_stop(tid))
        return;
    uint64_t before = 0, now = 0;
    const uint64_t all = ~(uint64_t{1} << (SIGKILL - 1) | uint64_t{1} << (SIGSTOP - 1));
    if (trace(PTRACE_GETSIGMASK, tid, 8, &before) < 0 || trace(PTRACE_SETSIGMASK, tid, 8, &all) < 0)
        return;
    if (word.load(std::memory_order_acquire) == value && trace(PTRACE_CONT, tid, 0, nullptr) >= 0) {
        const int64_t until = sys::now_ns() + kRunNs;
        while (word.load(std::memory_order_acquire) == value && sys::now_ns() < until)
            sys::sched_yield();
        if (trace(PTRACE_INTERRUPT, tid, 0, nullptr) < 0 || !wait_stop(tid))
            return;
    }
    // If the operation blocked signals for a moment itself, it has put back what it found by now, or will.
    if (trace(PTRACE_GETSIGMASK, tid, 8, &now) >= 0 && now == all)
        trace(PTRACE_SETSIGMASK, tid, 8, &before);
    trace(PTRACE_DETACH, tid, 0, nullptr);
}

/// A filter may end the process for a system call that it does not expect.
bool filtered() noexcept {
    if (confined())
        return true;
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/proc/self/status"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    char text[4096];
    const long n = sys::read(static_cast<int>(fd), text, sizeof text - 1);
    sys::close(static_cast<int>(fd));
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "\nSeccomp:\t0") == nullptr;
}

template <class T> void nudge_from_outside(const ThreadRecord &r, const std::atomic<T> &word, T value) noexcept {
    const int tid = static_cast<int>(r.tid.load(std::memory_order_relaxed));
    if (r.pid.load(std::memory_order_relaxed) == static_cast<uint32_t>(sys::getpid()) || filtered())
        return;
    uint64_t mask;
    sys::block_signals(&mask);
    // As vfork does it, but without SIGCHLD at the end: nobody but us notices.
    const long pid = sys::call(SYS_clone, CLONE_VM | CLONE_VFORK, 0, 0, 0, 0);
    if (pid == 0) {
        run_until_changed(tid, word, value);
        for (;;)
            sys::call(SYS_exit, 0);
    }
    if (pid > 0)
        while (sys::call(SYS_wait4, pid, 0, __WALL, 0) == -EINTR) {
        }
    sys::restore_signals(&mask);
}

} // namespace

void nudge(const ThreadRecord &r, const std::atomic<uint64_t> &word, uint64_t value) noexcept {
    nudge_from_outside(r, word, value);
}
void nudge(const ThreadRecord &r, const std::atomic<uint32_t> &word, uint32_t value) noexcept {
    nudge_from_outside(r, word, value);
}

} // namespace sd
