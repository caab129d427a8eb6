// system() and popen(). libc starts the shell through its own posix_spawn inside; here it is ours, which
// knows the sockets.
#include "libsd/api/processes/shell.hpp"
#include "libsd/api/processes/loadable.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/pool.hpp"
#include "libsd/vfs/descriptors/inheritable.hpp"
#include "libsd/vfs/streams/cancel.hpp"
#include <pthread.h>
#include <sys/wait.h>

using namespace sd;

namespace {

constexpr char kShell[] = "/bin/sh";

int start_shell(pid_t *child, const char *command, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes) noexcept {
    char name[] = "sh", option[] = "-c";
    char *const arguments[] = {name, option, const_cast<char *>(command), nullptr};
    return ::posix_spawn(child, kShell, actions, attributes, arguments, environ);
}

// --- system()

SD_FORK_STATE constinit Lock system_lock;
unsigned system_calls =
    0; ///< running now; the first one ignores the keyboard's signals, the last one lets them through again
struct sigaction before_interrupt, before_quit;

void ignore_keyboard() noexcept {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    LockGuard guard(system_lock);
    if (system_calls++ == 0) {
        ::sigaction(SIGINT, &ignore, &before_interrupt);
        ::sigaction(SIGQUIT, &ignore, &before_quit);
    }
}

void restore_keyboard() noexcept {
    LockGuard guard(system_lock);
    if (--system_calls == 0) {
        ::sigaction(SIGINT, &before_interrupt, nullptr);
        ::sigaction(SIGQUIT, &before_quit, nullptr);
    }
}

pid_t wait_for(pid_t child, int *status) {
    pid_t r;
    do
        r = ::waitpid(child, status, 0);
    while (r < 0 && errno == EINTR);
    return r;
}

/// system() is a cancellation point: the command ends with the thread.
void cancelled(void *child) noexcept {
    const auto pid = *static_cast<pid_t *>(child);
    ::kill(pid, SIGKILL);
    {
        const NoCancellation until_it_ends;
        wait_for(pid, nullptr);
    }
    restore_keyboard();
}

int run_and_wait(const char *command) {
    ignore_keyboard();
    sigset_t child_signal, mask, defaults;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child_signal, &mask);
    sigemptyset(&defaults);
    if (before_interrupt.sa_handler != SIG_IGN)
        sigaddset(&defaults, SIGINT);
    if (before_quit.sa_handler != SIG_IGN)
        sigaddset(&defaults, SIGQUIT);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &mask);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    pid_t child = -1;
    const int error = start_shell(&child, command, nullptr, &attributes);
    posix_spawnattr_destroy(&attributes);

    int status = 127 << 8; // as if the shell had exited with it
    if (error == 0) {
        with_cleanup(cancelled, &child, [&child, &status] {
            if (wait_for(child, &status) != child)
                status = -1;
            return 0;
        });
    }
    restore_keyboard();
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    if (error)
        errno = error;
    return status;
}

} // namespace

SD_EXPORT int system(const char *command) {
    // libc's own hands LD_PRELOAD on as it is.
    if (!active() || (!vfs::has_sockets() && loading_of(AT_FDCWD, kShell, 0) != Loading::stumbles))
        return lowest().system(command);
    if (!command)
        return run_and_wait("exit 0") == 0;
    return run_and_wait(command);
}

// --- popen()

namespace {

struct Popened {
    FILE *stream;
    pid_t child;
    Popened *next = nullptr;
    Popened *pool_next = nullptr;
};

SD_FORK_STATE constinit Pool<Popened> popened_pool;
/// Guards the list, also while a child starts, which closes what is in it and inherits the signal mask: so
/// nothing is blocked under it.
SD_FORK_STATE constinit Lock popened_lock;
Popened *popened = nullptr;
constinit std::atomic<unsigned> popened_count{0};

struct Mode {
    bool read = false, write = false, cloexec = false;
    explicit Mode(const char *text) noexcept {
        for (; *text; ++text)
            switch (*text) {
            case 'r':
                read = true;
                break;
            case 'w':
                write = true;
                break;
            case 'e':
                cloexec = true;
                break;
            default:
                read = write = true;
            }
    }
    bool valid() const noexcept { return read != write; }
};

/// What the child does with its end of the pipe, and with the streams of earlier commands, which POSIX wants
/// closed. False: out of memory.
bool plan(posix_spawn_file_actions_t *actions, int end, int wanted) noexcept {
    if (posix_spawn_file_actions_adddup2(actions, end, wanted) != 0)
        return false;
    for (const Popened *p = popened; p; p = p->next)
        if (int fd = real.fileno(p->stream); fd >= 0 && fd != wanted)
            if (posix_spawn_file_actions_addclose(actions, fd) != 0)
                return false;
    return true;
}

/// Starts the command with `end` as its descriptor `wanted`. 0 or the number of the error.
int start(Popened *p, const char *command, int end, int wanted) noexcept {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    popened_lock.lock_unmasked();
    int error = plan(&actions, end, wanted) ? start_shell(&p->child, command, &actions, nullptr) : ENOMEM;
    if (error == 0) {
        p->next = popened;
        popened = p;
        popened_count.fetch_add(1, std::memory_order_relaxed);
    }
    popened_lock.unlock_unmasked();
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/// The stream, with the pipe's end `mine` in it, or nullptr with errno set. Both ends are close-on-exec on
/// entry and used up on return.
FILE *open_stream(const char *command, Mode mode, int mine, int theirs, int wanted) noexcept {
    Popened *p = popened_pool.allocate();
    FILE *f = p ? real.fdopen(mine, mode.read ? "r" : "w") : nullptr;
    int error = p ? errno : ENOMEM;
    if (f) {
        p->stream = f;
        error = start(p, command, theirs, wanted);
    }
    ::close(theirs);
    if (f && error == 0) {
        if (!mode.cloexec)
            sys::fcntl(mine, F_SETFD, 0);
        return f;
    }
    if (f)
        real.fclose(f);
    else
        ::close(mine);
    if (p)
        popened_pool.release(p);
    errno = error;
    return nullptr;
}

Popened *take_popened(const FILE *f) noexcept {
    if (popened_count.load(std::memory_order_relaxed) == 0) [[likely]]
        return nullptr;
    popened_lock.lock_unmasked();
    Popened *found = nullptr;
    for (Popened **p = &popened; *p; p = &(*p)->next)
        if ((*p)->stream == f) {
            found = *p;
            *p = found->next;
            popened_count.fetch_sub(1, std::memory_order_relaxed);
            break;
        }
    popened_lock.unlock_unmasked();
    return found;
}

} // namespace

SD_EXPORT FILE *popen(const char *command, const char *type) {
    if (!active_or_in_vfork())
        return lowest().popen(command, type);
    const Mode mode(type);
    if (!mode.valid()) {
        errno = EINVAL;
        return nullptr;
    }
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) < 0)
        return nullptr;
    const int mine = mode.read ? 0 : 1, wanted = mode.read ? STDOUT_FILENO : STDIN_FILENO;
    int &theirs = ends[1 - mine];
    // If the number were right already, the flag could not be taken off in the child alone.
    if (theirs == wanted) {
        const int moved = ::fcntl(theirs, F_DUPFD_CLOEXEC, 0);
        const int saved = errno;
        ::close(theirs);
        if (moved < 0) {
            ::close(ends[mine]);
            errno = saved;
            return nullptr;
        }
        theirs = moved;
    }
    return open_stream(command, mode, ends[mine], theirs, wanted);
}

namespace sd {

bool close_popened(FILE *f, int *status) {
    Popened *p = take_popened(f);
    if (!p) [[likely]]
        return false;
    const pid_t child = p->child;
    popened_pool.release(p);
    *status = real.fclose(f);
    if (*status != 0)
        return true;
    const NoCancellation until_it_ends;
    if (wait_for(child, status) != child)
        *status = -1;
    return true;
}

SD_FORK_CODE void reset_shell_in_child() noexcept {
    system_lock.reset();
    popened_pool.reset_lock();
    popened_lock.reset();
}

} // namespace sd

SD_EXPORT int pclose(FILE *f) { return active_or_in_vfork() ? ::fclose(f) : real.pclose(f); }
