// Processes: forks that libc does not announce, executing other programs, leaving the network namespace, the
// end.
#include "libsd/api/processes/process.hpp"
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/loadable.hpp"
#include "libsd/api/processes/shell.hpp"
#include "libsd/api/processes/vfork_memory.hpp"
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/sockets/aio.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/hot_section.hpp"
#include "libsd/vfs/descriptors/inheritable.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/vfs/family/prepare_sandbox.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include <alloca.h>
#include <cstdarg>
#include <sched.h>

using namespace sd;

// Collects the arguments of execl and its like, up to the null pointer, into an array in the caller's frame.
// `list` stands behind it then.
#define SD_COLLECT_ARGUMENTS(argv, list, first)                                                              \
    va_list list;                                                                                            \
    va_start(list, first);                                                                                   \
    size_t argv##_count = 1;                                                                                 \
    while (va_arg(list, char *))                                                                             \
        ++argv##_count;                                                                                      \
    va_end(list);                                                                                            \
    auto argv = static_cast<char **>(alloca((argv##_count + 1) * sizeof(char *)));                           \
    va_start(list, first);                                                                                   \
    argv[0] = const_cast<char *>(first);                                                                     \
    for (size_t i = 1; i <= argv##_count; ++i)                                                               \
    argv[i] = va_arg(list, char *)

namespace sd {

long fork_by_hand(long (*make)(void *), void *context) noexcept {
    vfs::fork_prepare();
    long r = make(context);
    if (r == 0) {
        vfs::fork_child();
    } else {
        vfs::fork_parent();
    }
    return r;
}

} // namespace sd

SD_EXPORT pid_t _Fork() noexcept {
    if (!active_or_in_vfork())
        return real._Fork();
    return static_cast<pid_t>(fork_by_hand([](void *) -> long { return real._Fork(); }, nullptr));
}

namespace {

struct CloneCall {
    int (*function)(void *);
    void *stack;
    int flags;
    void *argument;
    pid_t *parent_tid;
    void *tls;
    pid_t *child_tid;
    const VforkMemory *memory = nullptr;
};

/// Where the child begins, with a copy of the call's arguments.
int begin_clone(void *context) noexcept {
    const CloneCall call = *static_cast<const CloneCall *>(context);
    vfs::fork_child();
    return call.function(call.argument);
}

int begin_in_parents_memory(void *context) noexcept {
    const CloneCall call = *static_cast<const CloneCall *>(context);
    sys::restore_signals(&call.memory->mask);
    return call.function(call.argument);
}

} // namespace

// A process that runs in its parent's memory until it executes something gets a copy unless vfork_begin()
// allows it, as with vfork(). One that shares memory for good is left alone, like a thread.
SD_EXPORT int clone(int (*function)(void *), void *stack, int flags, void *argument, ...) noexcept {
    va_list list;
    va_start(list, argument);
    CloneCall call{
        function, stack, flags, argument, va_arg(list, pid_t *), va_arg(list, void *), va_arg(list, pid_t *)};
    va_end(list);
    const bool vforks = (flags & CLONE_VM) && (flags & CLONE_VFORK);
    if ((flags & CLONE_VM) && !vforks && !(flags & CLONE_THREAD))
        memory_is_shared();
    if (!active_or_in_vfork() || (flags & (CLONE_THREAD | CLONE_FILES)) || ((flags & CLONE_VM) && !vforks) ||
        !function || !stack)
        return real.clone(function, stack, flags, argument, call.parent_tid, call.tls, call.child_tid);
    // Dispositions that stay the parent's must not be put back.
    if (VforkMemory *memory = vforks && !(flags & CLONE_SIGHAND) ? vfork_begin() : nullptr) {
        call.memory = memory;
        const int child =
            real.clone(begin_in_parents_memory, stack, flags, &call, call.parent_tid, call.tls, call.child_tid);
        vfork_end(memory);
        return child;
    }
    call.flags &= ~CLONE_VM;
    vfs::child_starts_program = vforks;
    vfs::fork_prepare();
    vfs::child_starts_program = false;
    const int r = real.clone(begin_clone, stack, call.flags, &call, call.parent_tid, call.tls, call.child_tid);
    const int saved = errno;
    vfs::fork_parent();
    errno = saved;
    return r;
}
SD_ALIAS(__clone, clone);

SD_EXPORT int execve(const char *path, char *const argv[], char *const envp[]) noexcept {
    const Loading there = loading_of(AT_FDCWD, path, 0);
    announce_exec(!vfs::has_sockets() || there == Loading::loads);
    SD_EXEC_ENVIRONMENT(env, envp, there);
    const TrueMask inherited;
    return exec_failed(real.execve(path, argv, env));
}

SD_EXPORT int execv(const char *path, char *const argv[]) noexcept { return execve(path, argv, environ); }

SD_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[]) noexcept {
    const Loading there = loading_from_path(file);
    announce_exec(!vfs::has_sockets() || there == Loading::loads);
    SD_EXEC_ENVIRONMENT(env, envp, there);
    const TrueMask inherited;
    return exec_failed(real.execvpe(file, argv, env));
}

SD_EXPORT int execvp(const char *file, char *const argv[]) noexcept { return execvpe(file, argv, environ); }

SD_EXPORT int execl(const char *path, const char *first, ...) noexcept {
    SD_COLLECT_ARGUMENTS(argv, list, first);
    va_end(list);
    return execve(path, argv, environ);
}

SD_EXPORT int execlp(const char *file, const char *first, ...) noexcept {
    SD_COLLECT_ARGUMENTS(argv, list, first);
    va_end(list);
    return execvpe(file, argv, environ);
}

SD_EXPORT int execle(const char *path, const char *first, ...) noexcept {
    SD_COLLECT_ARGUMENTS(argv, list, first);
    char *const *envp = va_arg(list, char *const *);
    va_end(list);
    return execve(path, argv, envp);
}

SD_EXPORT int fexecve(int fd, char *const argv[], char *const envp[]) noexcept {
    const Loading there = loading_of(fd, "", AT_EMPTY_PATH);
    announce_exec(!vfs::has_sockets() || there == Loading::loads);
    SD_EXEC_ENVIRONMENT(env, envp, there);
    const TrueMask inherited;
    return exec_failed(real.fexecve(fd, argv, env));
}

SD_EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags) noexcept {
    const Loading there = loading_of(dir, path, flags);
    announce_exec(!vfs::has_sockets() || there == Loading::loads);
    SD_EXEC_ENVIRONMENT(env, envp, there);
    const TrueMask inherited;
    return exec_failed(real.execveat(dir, path, argv, env, flags));
}

namespace {

/// libc put something else on 0 to 2 inside.
void standard_replaced() noexcept {
    for (int fd = 0; fd < 3; ++fd)
        noted(fd);
}

} // namespace

// libc starts a shell with whatever is open here.
SD_EXPORT int wordexp(const char *words, wordexp_t *result, int flags) {
    return lowest().wordexp(words, result, flags);
}

SD_EXPORT int daemon(int keep_directory, int keep_standard) noexcept {
    int r = real.daemon(keep_directory, keep_standard);
    if (r == 0 && !keep_standard)
        standard_replaced();
    return r;
}

SD_EXPORT int login_tty(int fd) noexcept {
    int r = real.login_tty(fd);
    if (r == 0) {
        standard_replaced();
        noted(fd);
    }
    return r;
}

SD_EXPORT int forkpty(int *outer, char *name, const termios *settings, const winsize *size) noexcept {
    int r = lowest().forkpty(outer, name, settings, size);
    if (r > 0)
        noted(*outer);
    else if (r == 0)
        standard_replaced();
    return r;
}

// The monitor's socket is not to be found in there. Becoming another user is not watched: the system's
// monitor may be reached by everybody, and who uses a private one has been started by sdrun, whose channel
// stays.
SD_EXPORT int chroot(const char *path) noexcept {
    if (active())
        control::keep_door();
    return real.chroot(path);
}

SD_EXPORT int unshare(int flags) noexcept {
    const vfs::Crossing crossing(active() && (flags & (CLONE_NEWUSER | CLONE_NEWNS)));
    if (!(flags & CLONE_NEWNET))
        return real.unshare(flags);
    vfs::prepare_namespace_change();
    const int r = real.unshare(flags);
    if (r == 0)
        vfs::namespace_has_changed();
    return r;
}

SD_EXPORT int setns(int fd, int type) noexcept {
    const vfs::Crossing crossing(active() && (type == 0 || (type & (CLONE_NEWUSER | CLONE_NEWNS))));
    if (type != 0 && !(type & CLONE_NEWNET))
        return real.setns(fd, type);
    vfs::prepare_namespace_change();
    const int r = real.setns(fd, type);
    if (r == 0)
        vfs::namespace_has_changed();
    return r;
}

SD_EXPORT void _exit(int status) {
    vfs::at_exit();
    for (;;)
        sys::call(SYS_exit_group, status);
}
SD_ALIAS(_Exit, _exit);

namespace sd {
SD_HOT_STATE constinit std::atomic<bool> cancellation_asked{false};
} // namespace sd

SD_EXPORT int pthread_cancel(pthread_t thread) {
    cancellation_asked.store(true, std::memory_order_relaxed);
    return real.pthread_cancel(thread);
}
