// System calls without libc: libsd interposes libc's own wrappers, so below the api layer nothing may call
// those. Every function returns the value or -errno and leaves errno alone; all are async-signal-safe.
#pragma once
#include "libsd/cpu/system_call.hpp"
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

namespace sd::sys {

using cpu::call;
using cpu::call1;
using cpu::call4;
template <class T> long arg(T *p) noexcept { return reinterpret_cast<long>(p); }

inline long close(int fd) noexcept { return call(SYS_close, fd); }
inline long read(int fd, void *p, size_t n) noexcept {
    return call(SYS_read, fd, arg(p), static_cast<long>(n));
}
inline long write(int fd, const void *p, size_t n) noexcept {
    return call(SYS_write, fd, arg(p), static_cast<long>(n));
}
inline long fcntl(int fd, int cmd, long a = 0) noexcept { return call(SYS_fcntl, fd, cmd, a); }
inline long ioctl(int fd, unsigned long cmd, void *p) noexcept {
    return call(SYS_ioctl, fd, static_cast<long>(cmd), arg(p));
}
[[nodiscard]] inline long socket(int d, int t, int p) noexcept { return call(SYS_socket, d, t, p); }
[[nodiscard]] inline long connect(int fd, const void *a, socklen_t n) noexcept {
    return call(SYS_connect, fd, arg(a), n);
}
[[nodiscard]] inline long bind(int fd, const void *a, socklen_t n) noexcept {
    return call(SYS_bind, fd, arg(a), n);
}
[[nodiscard]] inline long getsockname(int fd, void *a, socklen_t *n) noexcept {
    return call(SYS_getsockname, fd, arg(a), arg(n));
}
[[nodiscard]] inline long getpeername(int fd, void *a, socklen_t *n) noexcept {
    return call(SYS_getpeername, fd, arg(a), arg(n));
}
[[nodiscard]] inline long getsockopt(int fd, int l, int o, void *v, socklen_t *n) noexcept {
    return call(SYS_getsockopt, fd, l, o, arg(v), arg(n));
}
inline long setsockopt(int fd, int l, int o, const void *v, socklen_t n) noexcept {
    return call(SYS_setsockopt, fd, l, o, arg(v), n);
}
[[nodiscard]] inline long accept4(int fd, void *a, socklen_t *n, int flags) noexcept {
    return call(SYS_accept4, fd, arg(a), arg(n), flags);
}
[[nodiscard]] inline long sendmsg(int fd, const msghdr *m, int flags) noexcept {
    return call(SYS_sendmsg, fd, arg(m), flags);
}
[[nodiscard]] inline long recvmsg(int fd, msghdr *m, int flags) noexcept {
    return call(SYS_recvmsg, fd, arg(m), flags);
}
[[nodiscard]] inline long dup3(int from, int to, int flags) noexcept {
    return call(SYS_dup3, from, to, flags);
}
[[nodiscard]] inline long eventfd(unsigned v, int flags) noexcept { return call(SYS_eventfd2, v, flags); }
[[nodiscard]] inline long memfd_create(const char *name, unsigned flags) noexcept {
    return call(SYS_memfd_create, arg(name), flags);
}
[[nodiscard]] inline long ftruncate(int fd, size_t n) noexcept {
    return call(SYS_ftruncate, fd, static_cast<long>(n));
}
inline long ppoll(pollfd *p, size_t n, const timespec *t, const void *mask) noexcept {
    timespec copy;
    if (t)
        copy = *t; // the kernel writes the rest back; the caller's value must stay
    return call(SYS_ppoll, arg(p), static_cast<long>(n), arg(t ? &copy : nullptr), arg(mask), 8);
}
[[nodiscard]] inline long epoll_create1(int flags) noexcept { return call(SYS_epoll_create1, flags); }
inline long epoll_ctl(int ep, int op, int fd, epoll_event *e) noexcept {
    return call(SYS_epoll_ctl, ep, op, fd, arg(e));
}
[[nodiscard]] inline long epoll_pwait(int ep, epoll_event *e, int n, int timeout_ms, const void *mask) noexcept {
    return call(SYS_epoll_pwait, ep, arg(e), n, timeout_ms, arg(mask), 8);
}
inline long sched_yield() noexcept { return call(SYS_sched_yield); }
inline long membarrier(int cmd) noexcept { return call(SYS_membarrier, cmd, 0, 0); }
[[nodiscard]] inline long getpid() noexcept { return call(SYS_getpid); }
[[nodiscard]] inline long gettid() noexcept { return call(SYS_gettid); }
inline long tgkill(int pid, int tid, int sig) noexcept { return call(SYS_tgkill, pid, tid, sig); }
inline long futex(const void *word, int op, uint32_t value, const timespec *t = nullptr) noexcept {
    return call(SYS_futex, arg(word), op, value, arg(t), 0, 0);
}
/// Waits for `ns`, or until a signal handler has run. Not by nanosleep: it would spoil one of the program's
/// that a tracer has stopped, and that is to go on (vfs/paths/forced_step.cpp).
inline void nap(int64_t ns) noexcept {
    constexpr uint32_t nothing = 0; // nobody wakes it
    const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
    futex(&nothing, 128 /*FUTEX_WAIT_PRIVATE*/, nothing, &t);
}
/// Maps memory; nullptr on failure.
inline void *mmap(void *at, size_t n, int prot, int flags, int fd, size_t off) noexcept {
    long r = call(SYS_mmap, arg(at), static_cast<long>(n), prot, flags, fd, static_cast<long>(off));
    return r < 0 && r > -4096 ? nullptr : reinterpret_cast<void *>(r);
}
inline long munmap(void *p, size_t n) noexcept { return call(SYS_munmap, arg(p), static_cast<long>(n)); }
inline long madvise(void *p, size_t n, int advice) noexcept {
    return call(SYS_madvise, arg(p), static_cast<long>(n), advice);
}
/// Blocks every signal; `old` gets the previous mask (8 bytes).
inline void block_signals(uint64_t *old) noexcept {
    uint64_t all = ~0ull;
    call(SYS_rt_sigprocmask, 0 /*SIG_BLOCK*/, arg(&all), arg(old), 8);
}
inline void restore_signals(const uint64_t *old) noexcept {
    call(SYS_rt_sigprocmask, 2 /*SIG_SETMASK*/, arg(old), 0, 8);
}

/// CLOCK_MONOTONIC in nanoseconds, through the vDSO (clock_gettime is not interposed).
inline int64_t now_ns() noexcept {
    timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// The same clock as of its last tick (some milliseconds ago), for what is only about how old things are; a
/// third of the cost.
inline int64_t coarse_now_ns() noexcept {
    timespec t;
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

} // namespace sd::sys
