// posix_spawn. libc's own makes the child's system calls inside, in the parent's memory, where the descriptor
// table would not see them. That is fine as long as no socket of ours reaches the new program; otherwise the
// child is forked and uses the table.
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/file_actions.hpp"
#include "libsd/api/processes/loadable.hpp"
#include "libsd/api/processes/path_search.hpp"
#include "libsd/api/processes/process.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/inheritable.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include <linux/futex.h>
#include <sys/wait.h>

using namespace sd;

namespace {

/// How the parent learns what became of its child: memory that both share, and a lock in it that the kernel
/// declares ownerless when the child executes another program or dies. A pipe would stay open in whatever
/// another thread forks meanwhile, and take two numbers.
struct Report {
    /// The child's thread id while it is on its way; kWord in the kernel's robust list
    std::atomic<uint32_t> owner;
    std::atomic<int> error; ///< what stopped the child, positive
    robust_list_head head;
    robust_list entry;
};

constexpr uint32_t kGone = FUTEX_OWNER_DIED;

/// In the child. From here on the parent wakes up when this process has another image, or none.
void announce(Report &r) noexcept {
    r.entry.next = &r.head.list;
    r.head.list.next = &r.entry;
    r.head.list_op_pending = nullptr;
    r.head.futex_offset = reinterpret_cast<char *>(&r.owner) - reinterpret_cast<char *>(&r.entry);
    r.owner.store(static_cast<uint32_t>(sys::gettid()) | FUTEX_WAITERS, std::memory_order_seq_cst);
    if (sys::call(SYS_set_robust_list, sys::arg(&r.head), sizeof r.head) < 0) {
        r.owner.store(kGone, std::memory_order_seq_cst); // then nobody learns of errors
        sys::futex(&r.owner, FUTEX_WAKE, INT_MAX);
    }
}

/// In the parent. The time limit is for a child killed before it could announce itself.
void await(Report &r, pid_t child) noexcept {
    const timespec step{0, 100'000'000};
    for (uint32_t seen; !((seen = r.owner.load(std::memory_order_seq_cst)) & kGone);) {
        if (sys::futex(&r.owner, FUTEX_WAIT, seen, &step) != -ETIMEDOUT)
            continue;
        siginfo_t info{};
        const long w = sys::call(SYS_waitid, P_PID, child, sys::arg(&info), WEXITED | WNOHANG | WNOWAIT, 0);
        if (w < 0 || info.si_pid != 0)
            return;
    }
}

struct SpawnRequest {
    const char *file;
    bool search;
    char *const *arguments, *const *environment;
    const posix_spawn_file_actions_t *actions;
    const posix_spawnattr_t *attributes;
    short flags;
    uint64_t mask; ///< the caller's
    Report *report;
};

constexpr short kKnownFlags = POSIX_SPAWN_RESETIDS | POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                              POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSCHEDPARAM | POSIX_SPAWN_SETSCHEDULER |
                              POSIX_SPAWN_USEVFORK | POSIX_SPAWN_SETSID;

/// The kernel's own form, which also works for the signals libc keeps to itself.
struct KernelAction {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

/// No handler of the program may run once signals are let through again.
void reset_handlers(const SpawnRequest &q) noexcept {
    sigset_t defaults;
    sigemptyset(&defaults);
    if (q.flags & POSIX_SPAWN_SETSIGDEF)
        posix_spawnattr_getsigdefault(q.attributes, &defaults);
    uint64_t to_default;
    memcpy(&to_default, &defaults, sizeof to_default);
    for (int signal = 1; signal <= 64; ++signal) {
        KernelAction action{};
        if (!(to_default >> (signal - 1) & 1)) {
            sys::call(SYS_rt_sigaction, signal, 0, sys::arg(&action), 8);
            if (action.handler == reinterpret_cast<void *>(SIG_DFL) ||
                action.handler == reinterpret_cast<void *>(SIG_IGN))
                continue;
        }
        action = {};
        sys::call(SYS_rt_sigaction, signal, sys::arg(&action), 0, 8);
    }
}

long apply_attributes(const SpawnRequest &q) noexcept {
    if (q.flags & (POSIX_SPAWN_SETSCHEDPARAM | POSIX_SPAWN_SETSCHEDULER)) {
        sched_param parameter{};
        int policy = 0;
        posix_spawnattr_getschedparam(q.attributes, &parameter);
        posix_spawnattr_getschedpolicy(q.attributes, &policy);
        long r = q.flags & POSIX_SPAWN_SETSCHEDULER
                     ? sys::call(SYS_sched_setscheduler, 0, policy, sys::arg(&parameter))
                     : sys::call(SYS_sched_setparam, 0, sys::arg(&parameter));
        if (r < 0)
            return r;
    }
    if (q.flags & POSIX_SPAWN_SETSID)
        if (long r = sys::call(SYS_setsid); r < 0)
            return r;
    if (q.flags & POSIX_SPAWN_SETPGROUP) {
        pid_t group = 0;
        posix_spawnattr_getpgroup(q.attributes, &group);
        if (long r = sys::call(SYS_setpgid, 0, group); r < 0)
            return r;
    }
    if (q.flags & POSIX_SPAWN_RESETIDS) {
        if (long r = sys::call(SYS_setresuid, -1, sys::call(SYS_getuid), -1); r < 0)
            return r;
        if (long r = sys::call(SYS_setresgid, -1, sys::call(SYS_getgid), -1); r < 0)
            return r;
    }
    return 0;
}

pid_t terminal_group(const SpawnRequest &q) noexcept {
    pid_t group = 0;
    if (q.flags & POSIX_SPAWN_SETPGROUP)
        posix_spawnattr_getpgroup(q.attributes, &group);
    return group;
}

long execute(const SpawnRequest &q) noexcept {
    const Loading there = q.search ? loading_from_path(q.file) : loading_of(AT_FDCWD, q.file, 0);
    announce_exec(there == Loading::loads);
    SD_EXEC_ENVIRONMENT(environment, q.environment, there);
    uint64_t mask = q.mask;
    if (q.flags & POSIX_SPAWN_SETSIGMASK) {
        sigset_t wanted;
        posix_spawnattr_getsigmask(q.attributes, &wanted);
        memcpy(&mask, &wanted, sizeof mask);
    }
    sys::restore_signals(&mask);
    const auto attempt = [&q, environment](const char *path) {
        return sys::call(SYS_execve, sys::arg(path), sys::arg(q.arguments), sys::arg(environment));
    };
    const long r = q.search ? search_path(q.file, attempt) : attempt(q.file);
    exec_failed(-1);
    return r;
}

[[noreturn]] void run_child(const SpawnRequest &q) noexcept {
    announce(*q.report);
    reset_handlers(q);
    long r = apply_attributes(q);
    if (r >= 0)
        r = perform(q.actions, terminal_group(q));
    if (r >= 0)
        r = execute(q);
    q.report->error.store(static_cast<int>(-r), std::memory_order_relaxed);
    for (;;)
        sys::call(SYS_exit_group, 127);
}

/// The number of the error, as posix_spawn returns it.
int spawn_forked(SpawnRequest &q, pid_t *pid) noexcept {
    constexpr size_t kPage = 4096;
    void *page = sys::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!page)
        return ENOMEM;
    q.report = new (page) Report{};
    const int saved = errno;
    // Nothing of the program's may run in the child, and a cancellation has to wait.
    const TrueMask inherited;
    sys::block_signals(&q.mask);
    vfs::child_starts_program = true;
    const long child = fork_by_hand([](void *) -> long { return real._Fork(); }, nullptr);
    vfs::child_starts_program = false;
    if (child == 0)
        run_child(q);
    int error = child < 0 ? errno : 0;
    if (child > 0) {
        await(*q.report, static_cast<pid_t>(child));
        error = q.report->error.load(std::memory_order_relaxed);
        if (error)
            sys::call(SYS_wait4, child, 0, 0, 0);
        else if (pid)
            *pid = static_cast<pid_t>(child);
    }
    sys::restore_signals(&q.mask);
    sys::munmap(page, kPage);
    errno = saved;
    return error;
}

/// Whether sockets of ours reach the new program, and the child can be made here.
bool concerns_us(SpawnRequest &q) noexcept {
    if (!active() || !vfs::has_sockets() || !readable(q.actions))
        return false;
    if (q.attributes && posix_spawnattr_getflags(q.attributes, &q.flags) != 0)
        return false;
    if (q.flags & ~kKnownFlags)
        return false;
    return copies_sockets(q.actions) || vfs::exec_keeps_sockets();
}

} // namespace

SD_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                          const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    SpawnRequest q{path, false, argv, envp, actions, attributes, 0, 0, nullptr};
    if (concerns_us(q))
        return spawn_forked(q, pid);
    SD_EXEC_ENVIRONMENT(env, envp, loading_of(AT_FDCWD, path, 0));
    const TrueMask inherited;
    return real.posix_spawn(pid, path, actions, attributes, argv, env);
}

SD_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                           const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    SpawnRequest q{file, true, argv, envp, actions, attributes, 0, 0, nullptr};
    if (concerns_us(q))
        return spawn_forked(q, pid);
    SD_EXEC_ENVIRONMENT(env, envp, loading_from_path(file));
    const TrueMask inherited;
    return real.posix_spawnp(pid, file, actions, attributes, argv, env);
}
