// Helping a stopped thread out of an operation; see run_stopped.hpp.
//
// SIGSTOP takes effect wherever a thread is, also between the busy mark and its removal, and then whoever
// wants the token next would wait until somebody sends SIGCONT. A kernel socket is never held by a stopped
// process, so ours should not be either. What the thread has half done cannot be undone safely, since it may
// be continued at any moment; but it can be finished: a debugger may run a stopped thread, and when it lets
// go the thread is stopped as before. No SIGCONT is involved, so nobody is told anything. Signals are held
// back meanwhile: those that are pending belong to the moment when the process is really continued.
//
// The debugger is a process made for the purpose, as a tracer gets its tracee's news through wait(), which
// belongs to the program. It shares our memory, makes system calls only, and is gone before we go on.
#include "libsd/queue/run_stopped.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/control/text.hpp"
#include <csignal>
#include <cstring>
#include <initializer_list>
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

/// Reads a file of /proc line by line; of each the first characters.
class Lines {
  public:
    explicit Lines(const char *path) noexcept
        : fd_(static_cast<int>(sys::call(SYS_openat, AT_FDCWD, sys::arg(path), O_RDONLY | O_CLOEXEC))) {}
    ~Lines() {
        if (fd_ >= 0)
            sys::close(fd_);
    }
    Lines(const Lines &) = delete;
    Lines &operator=(const Lines &) = delete;
    /// nullptr at the end.
    const char *next() noexcept {
        for (size_t n = 0;;) {
            if (at_ == end_) {
                at_ = 0;
                end_ = fd_ < 0 ? 0 : sys::read(fd_, chunk_, sizeof chunk_);
                if (end_ <= 0) {
                    end_ = 0;
                    return nullptr;
                }
            }
            const char c = chunk_[at_++];
            if (c == '\n') {
                line_[n] = '\0';
                return line_;
            }
            if (n + 1 < sizeof line_)
                line_[n++] = c;
        }
    }

  private:
    int fd_;
    long at_ = 0, end_ = 0;
    char chunk_[512], line_[128];
};

uint64_t number(const char **p, unsigned base) noexcept {
    uint64_t value = 0;
    for (;; ++*p) {
        const char c = **p;
        const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                               : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10)
                                                      : 16;
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

/// A mapped file, as a line of /proc/PID/maps names it: 55d0-55e0 rw-s 00000000 00:01 1234 /memfd:name
struct Mapped {
    uint64_t start, end, device, inode;
    bool shared;
};

Mapped mapped(const char *line) noexcept {
    Mapped m{};
    m.start = number(&line, 16);
    m.end = number(&++line, 16);
    m.shared = strlen(line) > 5 && line[4] == 's';
    line += m.shared ? 6 : 0;
    number(&line, 16);
    m.device = *line ? number(&++line, 16) << 32 : 0;
    m.device |= *line ? number(&++line, 16) : 0;
    m.inode = *line ? number(&++line, 10) : 0;
    return m;
}

/// The file in which a word of ours lies; inode 0: in none that others could have mapped.
Mapped place_of(const void *word) noexcept {
    const auto address = reinterpret_cast<uintptr_t>(word);
    Lines lines("/proc/self/maps");
    while (const char *line = lines.next())
        if (const Mapped m = mapped(line); m.shared && m.start <= address && address < m.end)
            return m;
    return {};
}

const char *proc_path(char *path, int tid, const char *name) noexcept {
    *append(append(append(path, "/proc/"), static_cast<uint32_t>(tid)), name) = '\0';
    return path;
}

bool has_mapped(int tid, const Mapped &wanted) noexcept {
    char path[64];
    Lines lines(proc_path(path, tid, "/maps"));
    while (const char *line = lines.next())
        if (const Mapped m = mapped(line); m.shared && m.inode == wanted.inode && m.device == wanted.device)
            return true;
    return false;
}

/// Ids and capabilities, as a sum over the lines that tell them; 0: not to be read.
uint64_t standing(const char *path) noexcept {
    uint64_t sum = 0;
    Lines lines(path);
    while (const char *line = lines.next())
        for (const char *name : {"Uid:", "Gid:", "CapPrm:"})
            if (strncmp(line, name, strlen(name)) == 0)
                for (sum = sum * 31 + 1; *line; ++line)
                    sum = (sum ^ static_cast<unsigned char>(*line)) * 0x100000001b3;
    return sum;
}

/// The tracee, which is not going to be another process now.
bool is_one_of_us(int tid, const void *word) noexcept {
    char path[64];
    const Mapped place = place_of(word);
    const uint64_t own = standing("/proc/self/status");
    return place.inode != 0 && own != 0 && standing(proc_path(path, tid, "/status")) == own &&
           has_mapped(tid, place);
}

/// In the process made for it, on the stack below its maker's; ending it ends the tracing.
template <class T>
[[gnu::noinline]] void run_until_changed(int tid, const std::atomic<T> &word, T value) noexcept {
    if (trace(PTRACE_SEIZE, tid, 0, nullptr) < 0 || !wait_stop(tid) || !is_one_of_us(tid, &word))
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
    if (sandboxed())
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

template <class T>
void run_stopped_from_outside(const ThreadRecord &r, const std::atomic<T> &word, T value) noexcept {
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

void run_stopped(const ThreadRecord &r, const std::atomic<uint64_t> &word, uint64_t value) noexcept {
    run_stopped_from_outside(r, word, value);
}
void run_stopped(const ThreadRecord &r, const std::atomic<uint32_t> &word, uint32_t value) noexcept {
    run_stopped_from_outside(r, word, value);
}

} // namespace sd
