// syscall(): calls that name a descriptor of ours are served as the function of that name; all others are
// made as they are.
#include "libsd/api/processes/credentials.hpp"
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/process.hpp"
#include "libsd/api/processes/sandbox.hpp"
#include "libsd/api/signals/signal_mask.hpp"
#include "libsd/api/sockets/poll.hpp"
#include "libsd/api/syscalls/uring.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/cpu/call_numbers.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include "libsd/vfs/streams/cancel.hpp"
#include <cstdarg>
#include <linux/membarrier.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>

using namespace sd;

namespace {

constexpr long kGetRegistrations = 1 << 9; ///< MEMBARRIER_CMD_GET_REGISTRATIONS, newer than the headers

struct Arguments {
    long number, a[6];
    int fd() const noexcept { return static_cast<int>(a[0]); }
    template <class T> T *pointer(int i) const noexcept { return reinterpret_cast<T *>(a[i]); }
    template <class T> T number_at(int i) const noexcept { return static_cast<T>(a[i]); }
};

long plain(const Arguments &c) noexcept {
    return with_errno(raw_syscall6(c.number, c.a[0], c.a[1], c.a[2], c.a[3], c.a[4], c.a[5]));
}

int as_int(long v) noexcept { return static_cast<int>(v); }

const sigset_t *mask_of(long p) noexcept { return reinterpret_cast<const sigset_t *>(p); }

/// Calls whose first argument is a descriptor of ours.
long on_our_fd(const Arguments &c) {
    const long *a = c.a;
    int fd = c.fd();
    switch (c.number) {
    case SYS_read:
        return read(fd, c.pointer<void>(1), c.number_at<size_t>(2));
    case SYS_write:
        return write(fd, c.pointer<void>(1), c.number_at<size_t>(2));
    case SYS_readv:
        return readv(fd, c.pointer<iovec>(1), as_int(a[2]));
    case SYS_writev:
        return writev(fd, c.pointer<iovec>(1), as_int(a[2]));
    case SYS_preadv2:
        return preadv2(fd, c.pointer<iovec>(1), as_int(a[2]), a[3], as_int(a[5]));
    case SYS_pwritev2:
        return pwritev2(fd, c.pointer<iovec>(1), as_int(a[2]), a[3], as_int(a[5]));
    case SYS_recvfrom:
        return recvfrom(fd, c.pointer<void>(1), c.number_at<size_t>(2), as_int(a[3]), c.pointer<sockaddr>(4),
                        c.pointer<socklen_t>(5));
    case SYS_sendto:
        return sendto(fd, c.pointer<void>(1), c.number_at<size_t>(2), as_int(a[3]), c.pointer<sockaddr>(4),
                      c.number_at<socklen_t>(5));
    case SYS_recvmsg:
        return recvmsg(fd, c.pointer<msghdr>(1), as_int(a[2]));
    case SYS_sendmsg:
        return sendmsg(fd, c.pointer<msghdr>(1), as_int(a[2]));
    case SYS_recvmmsg:
        return recvmmsg(fd, c.pointer<mmsghdr>(1), c.number_at<unsigned>(2), as_int(a[3]),
                        c.pointer<timespec>(4));
    case SYS_sendmmsg:
        return sendmmsg(fd, c.pointer<mmsghdr>(1), c.number_at<unsigned>(2), as_int(a[3]));
    case SYS_connect:
        return connect(fd, c.pointer<sockaddr>(1), c.number_at<socklen_t>(2));
    case SYS_bind:
        return bind(fd, c.pointer<sockaddr>(1), c.number_at<socklen_t>(2));
    case SYS_listen:
        return listen(fd, as_int(a[1]));
    case SYS_shutdown:
        return shutdown(fd, as_int(a[1]));
    case SYS_getsockname:
        return getsockname(fd, c.pointer<sockaddr>(1), c.pointer<socklen_t>(2));
    case SYS_getpeername:
        return getpeername(fd, c.pointer<sockaddr>(1), c.pointer<socklen_t>(2));
    case SYS_getsockopt:
        return getsockopt(fd, as_int(a[1]), as_int(a[2]), c.pointer<void>(3), c.pointer<socklen_t>(4));
    case SYS_setsockopt:
        return setsockopt(fd, as_int(a[1]), as_int(a[2]), c.pointer<void>(3), c.number_at<socklen_t>(4));
    case SYS_ioctl:
        return ioctl(fd, c.number_at<unsigned long>(1), c.pointer<void>(2));
    default:
        return plain(c);
    }
}

long with_timeout(const Arguments &c) noexcept {
    const long *a = c.a;
    long r = vfs::kPass;
    if (c.number == SYS_ppoll) {
        r = poll_updating(c.pointer<pollfd>(0), c.number_at<nfds_t>(1), c.pointer<timespec>(2), mask_of(a[3]));
    } else {
        r = select_updating(as_int(a[0]), c.pointer<fd_set>(1), c.pointer<fd_set>(2), c.pointer<fd_set>(3),
                            c.pointer<timespec>(4), c.pointer<long>(5));
    }
    const TrueMask before(r == vfs::kPass);
    return r == vfs::kPass ? plain(c) : with_errno(r);
}

/// The function may fault on a bad timeout, the system call may not.
long plain_select(const Arguments &c) {
    auto *timeout = c.pointer<timeval>(4);
    upward.expect_faults();
    if (timeval copy; timeout && sd_copy(&copy, timeout, sizeof copy))
        return plain(c);
    return select(as_int(c.a[0]), c.pointer<fd_set>(1), c.pointer<fd_set>(2), c.pointer<fd_set>(3), timeout);
}

/// libsd has registered the process for the barriers that it uses itself. The program is told what it has
/// registered.
long barrier(const Arguments &c) noexcept {
    constexpr long kOurs = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    static std::atomic<long> registered{0};
    if (!active())
        return plain(c);
    if (c.a[0] == MEMBARRIER_CMD_PRIVATE_EXPEDITED && c.a[1] == 0 &&
        !(registered & MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
        return with_errno(-EPERM);
    long r = plain(c);
    if (r == 0)
        registered |= c.a[0] & kOurs;
    if (r > 0 && c.a[0] == kGetRegistrations)
        r &= ~kOurs | registered;
    return r;
}

/// Does the child get a copy of the memory, and go on here?
bool is_plain_fork(const Arguments &c) noexcept {
    if (c.number == SYS_clone)
        return !(c.a[0] & CLONE_VM) && c.a[1] == 0;
    if (c.number != SYS_clone3)
        return c.number == cpu::kFork;
    struct {
        uint64_t flags, descriptor, child_id, parent_id, signal, stack;
    } how;
    upward.expect_faults();
    return c.number_at<size_t>(1) >= sizeof how && sd_copy(&how, c.pointer<void>(0), sizeof how) == 0 &&
           !(how.flags & CLONE_VM) && how.stack == 0;
}

/// Plain forks made through syscall(); a child that shares its parent's memory is the caller's own affair.
long forking(const Arguments &c) noexcept {
    if (!active_or_in_vfork() || !is_plain_fork(c))
        return plain(c);
    return fork_by_hand(
        [](void *context) -> long {
            const auto &call = *static_cast<const Arguments *>(context);
            return plain(call);
        },
        const_cast<Arguments *>(&c));
}

/// For calls whose names in libc are cancellation points: made by number they are none.
template <class F> long no_cancellation_point(F call) {
    const NoCancellation whole_call(!one_thread());
    return call();
}

long on_fd(const Arguments &c) { return file_of(c.fd()) ? on_our_fd(c) : plain(c); }

long make_descriptor(const Arguments &c) {
    make_room_below();
    return noted(as_int(plain(c)));
}

long dispatch(const Arguments &c) {
    const long *a = c.a;
    switch (c.number) {
    case SYS_read:
    case SYS_write:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv2:
    case SYS_pwritev2:
    case SYS_recvfrom:
    case SYS_sendto:
    case SYS_recvmsg:
    case SYS_sendmsg:
    case SYS_recvmmsg:
    case SYS_sendmmsg:
    case SYS_connect:
        return no_cancellation_point([&] { return on_fd(c); });
    case SYS_bind:
    case SYS_listen:
    case SYS_shutdown:
    case SYS_getsockname:
    case SYS_getpeername:
    case SYS_getsockopt:
    case SYS_setsockopt:
    case SYS_ioctl:
        return on_fd(c);
    case SYS_socket:
        return socket(as_int(a[0]), as_int(a[1]), as_int(a[2]));
    case SYS_accept:
        return no_cancellation_point(
            [&] { return accept(c.fd(), c.pointer<sockaddr>(1), c.pointer<socklen_t>(2)); });
    case SYS_accept4:
        return no_cancellation_point(
            [&] { return accept4(c.fd(), c.pointer<sockaddr>(1), c.pointer<socklen_t>(2), as_int(a[3])); });
    case SYS_close:
        return no_cancellation_point([&] { return close(c.fd()); });
    case SYS_close_range:
        return close_range(c.number_at<unsigned>(0), c.number_at<unsigned>(1), as_int(a[2]));
    case SYS_dup:
        return dup(c.fd());
    case cpu::kDup2:
        return dup2(c.fd(), as_int(a[1]));
    case SYS_dup3:
        return dup3(c.fd(), as_int(a[1]), as_int(a[2]));
    case SYS_fcntl:
        return no_cancellation_point([&] { return fcntl(c.fd(), as_int(a[1]), c.pointer<void>(2)); });
    case SYS_sendfile:
        return sendfile(c.fd(), as_int(a[1]), c.pointer<off_t>(2), c.number_at<size_t>(3));
    case SYS_splice:
        return no_cancellation_point([&] {
            return splice(c.fd(), c.pointer<off64_t>(1), as_int(a[2]), c.pointer<off64_t>(3),
                          c.number_at<size_t>(4), c.number_at<unsigned>(5));
        });
    case cpu::kPoll:
        return no_cancellation_point(
            [&] { return poll(c.pointer<pollfd>(0), c.number_at<nfds_t>(1), as_int(a[2])); });
    case cpu::kSelect:
        return no_cancellation_point([&] { return active() ? plain_select(c) : plain(c); });
    case SYS_ppoll:
    case SYS_pselect6:
        return no_cancellation_point([&] { return active() ? with_timeout(c) : plain(c); });
    case cpu::kEpollCreate:
        return epoll_create(as_int(a[0]));
    case SYS_epoll_create1:
        return epoll_create1(as_int(a[0]));
    case SYS_epoll_ctl:
        return epoll_ctl(c.fd(), as_int(a[1]), as_int(a[2]), c.pointer<epoll_event>(3));
    case cpu::kEpollWait:
        return no_cancellation_point(
            [&] { return epoll_wait(c.fd(), c.pointer<epoll_event>(1), as_int(a[2]), as_int(a[3])); });
    case SYS_epoll_pwait:
        return no_cancellation_point([&] {
            return epoll_pwait(c.fd(), c.pointer<epoll_event>(1), as_int(a[2]), as_int(a[3]), mask_of(a[4]));
        });
    case SYS_epoll_pwait2:
        return no_cancellation_point([&] {
            return epoll_pwait2(c.fd(), c.pointer<epoll_event>(1), as_int(a[2]), c.pointer<timespec>(3),
                                mask_of(a[4]));
        });
    // Makers of descriptors.
    case cpu::kOpen:
    case SYS_openat:
    case cpu::kCreat:
        return no_cancellation_point([&] { return make_descriptor(c); });
    case SYS_openat2:
    case cpu::kEventfd:
    case SYS_eventfd2:
    case cpu::kSignalfd:
    case SYS_signalfd4:
    case SYS_timerfd_create:
    case cpu::kInotifyInit:
    case SYS_inotify_init1:
    case SYS_fanotify_init:
    case SYS_memfd_create:
    case SYS_pidfd_open:
    case SYS_pidfd_getfd:
    case SYS_open_by_handle_at:
    case SYS_perf_event_open:
    case SYS_bpf:
    case SYS_userfaultfd:
        return make_descriptor(c);
    case SYS_io_uring_setup:
        return uring_setup(c.number_at<unsigned>(0), c.pointer<void>(1));
    case SYS_io_uring_enter:
        return uring_enter(a);
    case SYS_io_uring_register:
        return uring_register(c.fd(), c.number_at<unsigned>(1), c.pointer<void>(2), c.number_at<unsigned>(3));
    case cpu::kPipe:
        return pipe(c.pointer<int>(0));
    case SYS_pipe2:
        return pipe2(c.pointer<int>(0), as_int(a[1]));
    case SYS_socketpair:
        return socketpair(as_int(a[0]), as_int(a[1]), as_int(a[2]), c.pointer<int>(3));
    // Processes.
    case cpu::kFork:
    case SYS_clone:
    case SYS_clone3:
        return forking(c);
    case SYS_execve:
        return execve(c.pointer<char>(0), c.pointer<char *>(1), c.pointer<char *>(2));
    case SYS_execveat:
        return execveat(c.fd(), c.pointer<char>(1), c.pointer<char *>(2), c.pointer<char *>(3), as_int(a[4]));
    case SYS_prctl:
        return prctl(as_int(a[0]), a[1], a[2], a[3], a[4]);
    case SYS_seccomp:
        return sandbox_by_seccomp(c.number_at<unsigned>(0), c.number_at<unsigned>(1), c.pointer<void>(2));
    case SYS_landlock_restrict_self: {
        const long r = plain(c);
        if (r == 0)
            remember_landlock();
        return r;
    }
    case SYS_setrlimit:
        return setrlimit(static_cast<__rlimit_resource>(a[0]), c.pointer<rlimit>(1));
    case SYS_mlockall:
        return mlockall(as_int(a[0]));
    case SYS_munlockall:
        return munlockall();
    case SYS_prlimit64:
        return prlimit64(as_int(a[0]), static_cast<__rlimit_resource>(a[1]), c.pointer<rlimit64>(2),
                         c.pointer<rlimit64>(3));
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_capset: {
        const vfs::Crossing crossing(changes_for_good(c.number, a));
        return plain(c);
    }
    case SYS_chroot:
        return chroot(c.pointer<char>(0));
    case SYS_unshare:
        return unshare(as_int(a[0]));
    case SYS_setns:
        return setns(c.fd(), as_int(a[1]));
    case SYS_membarrier:
        return barrier(c);
    case SYS_rt_sigprocmask:
        return active_or_in_vfork() && a[3] == 8
                   ? with_errno(change_kernel_mask(as_int(a[0]), c.pointer<void>(1), c.pointer<void>(2)))
                   : plain(c);
    case SYS_exit_group:
        vfs::at_exit();
        return plain(c);
    default:
        return plain(c);
    }
}

} // namespace

SD_EXPORT long syscall(long number, ...) noexcept {
    Arguments c{number, {}};
    va_list list;
    va_start(list, number);
    for (long &word : c.a)
        word = va_arg(list, long);
    va_end(list);
    return dispatch(c);
}
