// Binding of the C library's own functions, and what stands in for them until then.
#include "libsd/api/real.hpp"

#include "libsd/api/syscalls/raw_syscall.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/hot_section.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/cpu/call_numbers.hpp"

#include <gnu/libc-version.h>
#include <sys/single_threaded.h>

#include <atomic>
#include <cstdarg>
#include <type_traits>

// The declared types carry attributes (nonnull, access) that mean nothing on a template argument.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace sd {
namespace {

template <class T> long to_long(T value) noexcept {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<long>(value);
    } else {
        return static_cast<long>(value);
    }
}

/// The signal mask as the kernel has it: 64 signals.
constexpr long kSigsetBytes = 8;

/// SD_REAL_SYS: a function whose arguments are those of the system call.
template <long Number, class F> struct RawCall;
template <long Number, class R, class... A, bool N> struct RawCall<Number, R (*)(A...) noexcept(N)> {
    static R call(A... args) noexcept(N) {
        return static_cast<R>(with_errno(raw_syscall6(Number, to_long(args)...)));
    }
};

/// SD_REAL_LIBC: binds, then calls what was bound. One that is not there is looked for at each call: before
/// glibc 2.34 it may come with a library that is loaded later (libpthread, librt, libutil).
template <auto Member, class F> struct BindFirst;
template <auto Member, class R, class... A, bool N> struct BindFirst<Member, R (*)(A...) noexcept(N)> {
    static R call(A... args) noexcept(N) {
        bind_real_symbols();
        if (const auto bound = real.*Member; bound != call) {
            return bound(args...);
        }
        errno = ENOSYS;
        if constexpr (std::is_pointer_v<R>) {
            return nullptr;
        } else if constexpr (!std::is_void_v<R>) {
            return static_cast<R>(-1);
        }
    }
};

// SD_REAL_RAW: the system call wants its arguments in another shape.

ssize_t raw_recv(int fd, void *buffer, size_t size, int flags) {
    return with_errno(raw_syscall6(SYS_recvfrom, fd, to_long(buffer), to_long(size), flags));
}

ssize_t raw_send(int fd, const void *buffer, size_t size, int flags) {
    return with_errno(raw_syscall6(SYS_sendto, fd, to_long(buffer), to_long(size), flags));
}

// The offset travels in two halves; a 64-bit kernel only looks at the first.
ssize_t raw_preadv2(int fd, const iovec *parts, int count, off_t offset, int flags) {
    return with_errno(raw_syscall6(SYS_preadv2, fd, to_long(parts), count, offset, 0, flags));
}

ssize_t raw_pwritev2(int fd, const iovec *parts, int count, off_t offset, int flags) {
    return with_errno(raw_syscall6(SYS_pwritev2, fd, to_long(parts), count, offset, 0, flags));
}

int raw_pselect(int count, fd_set *r, fd_set *w, fd_set *x, const timespec *timeout, const sigset_t *mask) {
    // The kernel writes the rest of the timeout back; callers of pselect must not see that.
    timespec copy = timeout != nullptr ? *timeout : timespec{};
    const struct {
        const sigset_t *mask;
        long bytes;
    } sixth = {mask, kSigsetBytes};
    return static_cast<int>(with_errno(raw_syscall6(SYS_pselect6, count, to_long(r), to_long(w), to_long(x),
                                                    timeout != nullptr ? to_long(&copy) : 0, to_long(&sixth))));
}

int raw_ppoll(pollfd *fds, nfds_t count, const timespec *timeout, const sigset_t *mask) {
    timespec copy = timeout != nullptr ? *timeout : timespec{};
    return static_cast<int>(
        with_errno(raw_syscall6(SYS_ppoll, to_long(fds), to_long(count),
                                timeout != nullptr ? to_long(&copy) : 0, to_long(mask), kSigsetBytes)));
}

int raw_epoll_pwait(int epoll, epoll_event *events, int count, int timeout, const sigset_t *mask) {
    return static_cast<int>(with_errno(
        raw_syscall6(SYS_epoll_pwait, epoll, to_long(events), count, timeout, to_long(mask), kSigsetBytes)));
}

int raw_epoll_pwait2(int epoll, epoll_event *events, int count, const timespec *timeout, const sigset_t *mask) {
    return static_cast<int>(with_errno(raw_syscall6(SYS_epoll_pwait2, epoll, to_long(events), count,
                                                    to_long(timeout), to_long(mask), kSigsetBytes)));
}

int raw_signalfd(int fd, const sigset_t *mask, int flags) noexcept {
    return static_cast<int>(with_errno(raw_syscall6(SYS_signalfd4, fd, to_long(mask), kSigsetBytes, flags)));
}

int raw_sigprocmask(int how, const sigset_t *set, sigset_t *old) noexcept {
    return static_cast<int>(
        with_errno(raw_syscall6(SYS_rt_sigprocmask, how, to_long(set), to_long(old), kSigsetBytes)));
}

int raw_sigsuspend(const sigset_t *mask) {
    return static_cast<int>(with_errno(raw_syscall6(SYS_rt_sigsuspend, to_long(mask), kSigsetBytes)));
}

int raw_pthread_sigmask(int how, const sigset_t *set, sigset_t *old) noexcept {
    return static_cast<int>(-raw_syscall6(SYS_rt_sigprocmask, how, to_long(set), to_long(old), kSigsetBytes));
}

// Variadic functions: the words behind the last named argument are passed on whether the caller gave them or
// not, as the C library does. Reading an absent one gives a value that the kernel ignores.

template <int Count> struct Words { long at[Count]; };
#define SD_TAKE_WORDS(words, last)                                                                           \
    va_list list;                                                                                            \
    va_start(list, last);                                                                                    \
    for (long &word : (words).at) {                                                                          \
        word = va_arg(list, long);                                                                           \
    }                                                                                                        \
    va_end(list)

int raw_fcntl(int fd, int command, ...) {
    Words<1> extra;
    SD_TAKE_WORDS(extra, command);
    return static_cast<int>(with_errno(raw_syscall6(SYS_fcntl, fd, command, extra.at[0])));
}

int raw_ioctl(int fd, unsigned long request, ...) noexcept {
    Words<1> extra;
    SD_TAKE_WORDS(extra, request);
    return static_cast<int>(with_errno(raw_syscall6(SYS_ioctl, fd, to_long(request), extra.at[0])));
}

int raw_open(const char *path, int flags, ...) {
    Words<1> mode;
    SD_TAKE_WORDS(mode, flags);
    return static_cast<int>(with_errno(raw_syscall6(SYS_openat, AT_FDCWD, to_long(path), flags, mode.at[0])));
}

int raw_openat(int dir, const char *path, int flags, ...) {
    Words<1> mode;
    SD_TAKE_WORDS(mode, flags);
    return static_cast<int>(with_errno(raw_syscall6(SYS_openat, dir, to_long(path), flags, mode.at[0])));
}

mqd_t raw_mq_open(const char *name, int flags, ...) noexcept {
    Words<2> extra;
    SD_TAKE_WORDS(extra, flags);
    if (name[0] != '/') {
        errno = EINVAL;
        return -1;
    }
    return static_cast<mqd_t>(
        with_errno(raw_syscall6(SYS_mq_open, to_long(name + 1), flags, extra.at[0], extra.at[1])));
}

long raw_syscall(long number, ...) noexcept {
    Words<6> extra;
    SD_TAKE_WORDS(extra, number);
    const long(&a)[6] = extra.at;
    return with_errno(raw_syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

/// Before anything is bound: binds first, as the system call itself would come back twice in this frame.
int raw_clone(int (*function)(void *), void *stack, int flags, void *argument, ...) noexcept {
    Words<3> extra;
    SD_TAKE_WORDS(extra, argument);
    bind_real_symbols();
    if (real.clone == raw_clone) {
        errno = ENOSYS;
        return -1;
    }
    return real.clone(function, stack, flags, argument, extra.at[0], extra.at[1], extra.at[2]);
}

} // namespace

constinit Real real = {
#define SD_REAL_SYS(name, number) .name = RawCall<number, decltype(Real::name)>::call,
#define SD_REAL_RAW(name) .name = raw_##name,
#define SD_REAL_LIBC(name) .name = BindFirst<&Real::name, decltype(Real::name)>::call,
#include "libsd/api/real.def"
#undef SD_REAL_SYS
#undef SD_REAL_RAW
#undef SD_REAL_LIBC
};

// The first of them in the library, so it brings the alignment.
alignas(64) SD_HOT_STATE constinit std::atomic<bool> libc_is_next{false};

namespace {

enum Index : size_t {
#define SD_REAL_SYS(name, number) at_##name,
#define SD_REAL_RAW(name) at_##name,
#define SD_REAL_LIBC(name) at_##name,
#include "libsd/api/real.def"
#undef SD_REAL_SYS
#undef SD_REAL_RAW
#undef SD_REAL_LIBC
    kFunctions
};

/// What is bound, in the order of the pointers.
struct Names {
    Sought sought[kFunctions];
};
constexpr Names kNames = {{
#define SD_REAL_SYS(name, number) {#name, gnu_hash(#name), nullptr},
#define SD_REAL_RAW(name) {#name, gnu_hash(#name), nullptr},
#define SD_REAL_LIBC(name) {#name, gnu_hash(#name), nullptr},
#include "libsd/api/real.def"
#undef SD_REAL_SYS
#undef SD_REAL_RAW
#undef SD_REAL_LIBC
}};

/// Leaves what stands for the function until now where there is none.
template <class F> void bind_one(F &slot, const Sought &s) noexcept {
    if (s.found != nullptr) {
        std::atomic_ref<F>(slot).store(reinterpret_cast<F>(s.found), std::memory_order_relaxed);
    }
}

struct Look {
    const void *const *functions;
    bool all;
};

SD_START_CODE int look_in_object(dl_phdr_info *info, size_t, void *context) noexcept {
    Look &l = *static_cast<Look *>(context);
    const auto has = [info](const void *p) { return contains(*info, reinterpret_cast<uintptr_t>(p)); };
    if (!has(reinterpret_cast<const void *>(::gnu_get_libc_version))) {
        return 0;
    }
    l.all = has(l.functions[0]) && has(l.functions[1]) && has(l.functions[2]);
    return 1;
}

/// Whether all of these lie in the C library.
SD_START_CODE bool in_libc(const void *const (&functions)[3]) noexcept {
    Look look = {functions, false};
    dl_iterate_phdr(look_in_object, &look);
    return look.all;
}

} // namespace

SD_START_CODE void bind_real_symbols() noexcept {
    Names names = kNames;
    find_behind(names.sought, kFunctions);
#define SD_REAL_SYS(name, number) bind_one(real.name, names.sought[at_##name]);
#define SD_REAL_RAW(name) bind_one(real.name, names.sought[at_##name]);
#define SD_REAL_LIBC(name) bind_one(real.name, names.sought[at_##name]);
#include "libsd/api/real.def"
#undef SD_REAL_SYS
#undef SD_REAL_RAW
#undef SD_REAL_LIBC
    // Where the C library does not say whether there are threads, close() has to be its own in any case.
    libc_is_next.store(
        &::__libc_single_threaded != nullptr &&
            in_libc({reinterpret_cast<const void *>(real.open), reinterpret_cast<const void *>(real.close),
                     reinterpret_cast<const void *>(real.dup)}),
        std::memory_order_relaxed);
}

} // namespace sd
