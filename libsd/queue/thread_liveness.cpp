// Telling the dead from the slow, by what /proc says.
//
// A process that was killed and not waited for yet keeps its numbers, so sending signal 0 proves nothing; and
// a number may have been given to another process since. So the state and the time of birth are compared. In
// another pid namespace numbers mean something else: there only the monitor, which frees the records of the
// dead, can tell.
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/control/text.hpp"
#include <ctime>
#include <sys/stat.h>

namespace sd {

namespace {

struct Stat {
    char state = 0; ///< 0: there is no such thread; '?': not to be read
    uint64_t birth = 0;
};

Stat read_stat(const char *path) noexcept {
    Stat result;
    if (sandboxed()) { // no file may be opened
        result.state = '?';
        return result;
    }
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg(path), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        // ENOENT also where there is no /proc at all.
        struct stat st;
        if (fd != -ENOENT ||
            sys::call(SYS_newfstatat, AT_FDCWD, sys::arg("/proc/self/stat"), sys::arg(&st), 0) < 0)
            result.state = '?';
        return result;
    }
    char text[512];
    const long n = sys::read(static_cast<int>(fd), text, sizeof text - 1);
    sys::close(static_cast<int>(fd));
    if (n <= 0) { // ESRCH: ended while we looked
        result.state = n == -ESRCH ? '\0' : '?';
        return result;
    }
    result.state = '?';
    long at = n;
    while (at > 0 && text[at - 1] != ')') // a program's name can hold anything
        --at;
    if (at == 0 || at + 1 >= n)
        return result;
    result.state = text[at + 1];
    unsigned field = 2;
    for (; at < n && field < 22; ++at)
        field += text[at] == ' ';
    for (; field == 22 && at < n && text[at] >= '0' && text[at] <= '9'; ++at)
        result.birth = result.birth * 10 + static_cast<uint64_t>(text[at] - '0');
    return result;
}

uint32_t own_pid_namespace() noexcept {
    struct stat st;
    return sys::call(SYS_newfstatat, AT_FDCWD, sys::arg("/proc/self/ns/pid"), sys::arg(&st), 0) < 0
               ? 0
               : static_cast<uint32_t>(st.st_ino);
}

struct Identity {
    std::atomic<uint32_t> pid{0}, pid_namespace{0};
    std::atomic<uint64_t> birth{0};
};
// Of this process; a forked child finds that the number is not its own
SD_FORK_STATE constinit Identity known_identity;
SD_FORK_STATE uint64_t fork_tick = 0;

/// Time in the unit of births in /proc, USER_HZ.
uint64_t birth_now() noexcept {
    timespec t;
    ::clock_gettime(CLOCK_BOOTTIME, &t);
    return static_cast<uint64_t>(t.tv_sec) * 100 + static_cast<uint64_t>(t.tv_nsec) / 10'000'000;
}

const Identity &own_identity() noexcept {
    const auto pid = static_cast<uint32_t>(sys::getpid());
    if (known_identity.pid.load(std::memory_order_acquire) != pid) {
        known_identity.birth.store(read_stat("/proc/self/stat").birth, std::memory_order_relaxed);
        known_identity.pid_namespace.store(own_pid_namespace(), std::memory_order_relaxed);
        known_identity.pid.store(pid, std::memory_order_release);
    }
    return known_identity;
}

} // namespace

// A server that only accepts has had no use for its identity; without it each child would have to read /proc.
SD_FORK_CODE void identity_fork_prepare(bool child_may_register) noexcept {
    if (child_may_register && !sandboxed())
        own_identity();
    fork_tick = birth_now();
}

// A parent in another pid namespace has another number for its child, or none (0). The kernel takes the
// child's birth between the two looks at its clock; in another time namespace they differ.
SD_FORK_CODE void identity_fork_child() noexcept {
    const uint32_t parent = known_identity.pid.load(std::memory_order_relaxed);
    if (!parent || parent != static_cast<uint32_t>(sys::call(SYS_getppid)) || birth_now() != fork_tick)
        return; // own_identity() asks
    known_identity.birth.store(fork_tick, std::memory_order_relaxed);
    known_identity.pid.store(static_cast<uint32_t>(sys::getpid()), std::memory_order_release);
}

namespace {

bool ended(char state) noexcept { return state == 0 || state == 'Z' || state == 'X' || state == 'x'; }

} // namespace

void note_identity(ThreadRecord &r) noexcept {
    const Identity &own = own_identity();
    r.tid.store(static_cast<uint32_t>(sys::gettid()), std::memory_order_relaxed);
    r.pid.store(own.pid.load(std::memory_order_relaxed), std::memory_order_relaxed);
    r.pid_namespace.store(own.pid_namespace.load(std::memory_order_relaxed), std::memory_order_relaxed);
    r.birth.store(own.birth.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

Liveness liveness_of(const ThreadRecord &r, ThreadId id) noexcept {
    if (record_gone(r, id))
        return Liveness::gone;
    const uint32_t pid = r.pid.load(std::memory_order_relaxed), tid = r.tid.load(std::memory_order_relaxed);
    const uint64_t birth = r.birth.load(std::memory_order_relaxed);
    const uint32_t space = r.pid_namespace.load(std::memory_order_relaxed);
    if (space == 0 || space != own_identity().pid_namespace.load(std::memory_order_relaxed))
        return Liveness::runs;
    char path[64];
    char *end = append(append(append(path, "/proc/"), pid), "/stat");
    *end = '\0';
    const Stat process = read_stat(path);
    if (process.state == '?')
        return Liveness::runs;
    if (process.state == 0 || (birth && process.birth && process.birth != birth))
        return Liveness::gone;
    end = append(append(append(append(append(path, "/proc/"), pid), "/task/"), tid), "/stat");
    *end = '\0';
    const char state = read_stat(path).state;
    return ended(state) ? Liveness::gone : state == 'T' ? Liveness::stopped : Liveness::runs;
}

bool is_stopped(uint32_t pid) noexcept {
    char path[32];
    *append(append(append(path, "/proc/"), pid), "/stat") = '\0';
    return read_stat(path).state == 'T';
}

} // namespace sd
