// The file actions of posix_spawn.
#include "libsd/api/processes/file_actions.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/inheritable.hpp"
#include <climits>
#include <sys/resource.h>

namespace sd {

namespace {

enum class Tag : int { close, dup2, open, chdir, fchdir, closefrom, tcsetpgrp };

/// One entry as glibc has it.
struct Action {
    Tag tag;
    union {
        struct {
            int fd;
        } close, fchdir, closefrom, tcsetpgrp;
        struct {
            int from, to;
        } dup2;
        struct {
            int fd;
            char *path;
            int flags;
            mode_t mode;
        } open;
        struct {
            char *path;
        } chdir;
    };
};

struct Array {
    const Action *at;
    int count;
};

Array array_of(const posix_spawn_file_actions_t *a) noexcept {
    return {reinterpret_cast<const Action *>(a->__actions), a->__used};
}

/// Builds one object of every kind of action and looks whether it reads as expected.
bool check_layout(bool *built) noexcept {
    constexpr int kFlags = O_WRONLY | O_CREAT;
    constexpr mode_t kMode = 0213;
    posix_spawn_file_actions_t a;
    if (posix_spawn_file_actions_init(&a) != 0)
        return false;
    *built = posix_spawn_file_actions_addclose(&a, 2) == 0 && posix_spawn_file_actions_adddup2(&a, 1, 2) == 0 &&
             posix_spawn_file_actions_addopen(&a, 2, "one", kFlags, kMode) == 0;
    int expected = 3;
    // These came one after the other: chdir and fchdir with glibc 2.29, closefrom with 2.34, tcsetpgrp with
    // 2.35.
    const auto add = [&](auto function, auto argument) {
        if (*built && function) {
            *built = function(&a, argument) == 0;
            ++expected;
        }
    };
    add(posix_spawn_file_actions_addchdir_np, "two");
    add(posix_spawn_file_actions_addfchdir_np, 1);
    add(posix_spawn_file_actions_addclosefrom_np, 2);
    add(posix_spawn_file_actions_addtcsetpgrp_np, 1);
    const auto [at, count] = array_of(&a);
    const bool right = *built && count == expected && at[0].tag == Tag::close && at[0].close.fd == 2 &&
                       at[1].tag == Tag::dup2 && at[1].dup2.from == 1 && at[1].dup2.to == 2 &&
                       at[2].tag == Tag::open && at[2].open.fd == 2 && strcmp(at[2].open.path, "one") == 0 &&
                       at[2].open.flags == kFlags && at[2].open.mode == kMode &&
                       (count < 4 || (at[3].tag == Tag::chdir && strcmp(at[3].chdir.path, "two") == 0)) &&
                       (count < 5 || (at[4].tag == Tag::fchdir && at[4].fchdir.fd == 1)) &&
                       (count < 6 || (at[5].tag == Tag::closefrom && at[5].closefrom.fd == 2)) &&
                       (count < 7 || (at[6].tag == Tag::tcsetpgrp && at[6].tcsetpgrp.fd == 1));
    posix_spawn_file_actions_destroy(&a);
    return right;
}

bool layout_known() noexcept {
    enum : int { unknown, yes, no };
    static constinit std::atomic<int> known{unknown};
    if (known.load(std::memory_order_relaxed) == unknown) {
        bool built = false;
        const bool right = check_layout(&built);
        if (built) // else memory or the limit on numbers was in the way, this time
            known.store(right ? yes : no, std::memory_order_relaxed);
    }
    return known.load(std::memory_order_relaxed) == yes;
}

// The child's system calls. Not the interposed functions: those also see to stdio, whose locks another thread
// of the parent may have held.

long close_in_child(int fd) noexcept {
    const long r = vfs::close(fd);
    return r == vfs::kPass ? sys::close(fd) : r;
}

/// libc takes an error for one only where the number is out of range.
long close_action(int fd) noexcept {
    const long r = close_in_child(fd);
    if (r >= 0)
        return 0;
    rlimit limit{};
    sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&limit));
    return fd < 0 || static_cast<rlim_t>(fd) >= limit.rlim_cur ? r : 0;
}

long dup2_action(int from, int to) noexcept {
    if (from != to)
        return vfs::dup_to(from, to, 0, true);
    // The same number asks for FD_CLOEXEC to be taken away.
    if (is_hidden(from))
        return -EBADF;
    const long flags = sys::fcntl(from, F_GETFD);
    return flags < 0 ? flags : sys::fcntl(from, F_SETFD, flags & ~FD_CLOEXEC);
}

long open_action(const Action &a) noexcept {
    close_in_child(a.open.fd);
    const long opened = sys::call(SYS_openat, AT_FDCWD, sys::arg(a.open.path), a.open.flags, a.open.mode);
    if (opened < 0)
        return opened;
    forget_fd(static_cast<int>(opened));
    if (opened == a.open.fd)
        return 0;
    const long r = vfs::dup_to(static_cast<int>(opened), a.open.fd, 0, true);
    return r < 0 ? r : sys::close(static_cast<int>(opened));
}

long perform_one(const Action &a, pid_t group) noexcept {
    switch (a.tag) {
    case Tag::close:
        return close_action(a.close.fd);
    case Tag::dup2:
        return dup2_action(a.dup2.from, a.dup2.to);
    case Tag::open:
        return open_action(a);
    case Tag::chdir:
        return sys::call(SYS_chdir, sys::arg(a.chdir.path));
    case Tag::fchdir:
        return is_hidden(a.fchdir.fd) ? -EBADF : sys::call(SYS_fchdir, a.fchdir.fd);
    case Tag::closefrom:
        return vfs::close_range(static_cast<unsigned>(a.closefrom.fd), UINT_MAX, 0);
    case Tag::tcsetpgrp:
        if (is_hidden(a.tcsetpgrp.fd))
            return -EBADF;
        if (group == 0)
            group = static_cast<pid_t>(sys::call(SYS_getpgid, 0));
        return sys::ioctl(a.tcsetpgrp.fd, TIOCSPGRP, &group);
    }
    return -EINVAL;
}

} // namespace

bool readable(const posix_spawn_file_actions_t *actions) noexcept {
    if (!actions || actions->__used == 0)
        return true;
    if (!layout_known())
        return false;
    const auto [at, count] = array_of(actions);
    for (int i = 0; i < count; ++i)
        if (at[i].tag < Tag::close || at[i].tag > Tag::tcsetpgrp)
            return false;
    return true;
}

bool copies_sockets(const posix_spawn_file_actions_t *actions) noexcept {
    if (!actions)
        return false;
    const auto [at, count] = array_of(actions);
    for (int i = 0; i < count; ++i)
        if (at[i].tag == Tag::dup2 && vfs::is_socket_of_ours(file_of(at[i].dup2.from)))
            return true;
    return false;
}

long perform(const posix_spawn_file_actions_t *actions, pid_t group) noexcept {
    if (!actions)
        return 0;
    const auto [at, count] = array_of(actions);
    for (int i = 0; i < count; ++i)
        if (long r = perform_one(at[i], group); r < 0)
            return r;
    return 0;
}

} // namespace sd
