// Everything else that gives a descriptor out. A number whose close went past us (inside libc, in a spawned
// child's file actions) may come back for something else; what the table says about it must go.
#include "libsd/api/wrap.hpp"
#include "libsd/cpu/instructions.hpp"
#include <cstdarg>

using namespace sd;

#define SD_TAKE_MODE(mode, last)                                                                             \
    va_list list;                                                                                            \
    va_start(list, last);                                                                                    \
    mode_t mode = va_arg(list, mode_t);                                                                      \
    va_end(list)

namespace {

[[gnu::noinline]] int open_through_libc(const char *path, int flags, mode_t mode) {
    return noted(numbered([&] { return real.open(path, flags, mode); }));
}

[[gnu::noinline, gnu::cold]] int opened(const char *path, int flags, mode_t mode, long r) {
    return r == -EMFILE ? open_through_libc(path, flags, mode)
           : r < 0      ? answer(r)
                        : noted(static_cast<int>(r));
}

} // namespace

SD_EXPORT int open(const char *path, int flags, ...) {
    SD_TAKE_MODE(mode, flags);
    if (!plain_call() || cached_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
        return open_through_libc(path, flags, mode);
    const long r = sys::call4(SYS_openat, AT_FDCWD, sys::arg(path), flags, mode);
    if (r < 0 || r < fd_high.load(std::memory_order_relaxed) || next_is_ours(r)) [[unlikely]]
        return opened(path, flags, mode, r);
    return static_cast<int>(r);
}
SD_ALIAS(open64, open);
SD_ALIAS(__open, open);
SD_ALIAS(__open64, open);

SD_EXPORT int openat(int dir, const char *path, int flags, ...) {
    SD_TAKE_MODE(mode, flags);
    return noted(numbered([&] { return real.openat(dir, path, flags, mode); }));
}
SD_ALIAS(openat64, openat);

namespace {

/// The fortified names are for calls without a mode.
void check_no_mode(int flags) noexcept {
    if ((flags & O_CREAT) || (flags & __O_TMPFILE) == __O_TMPFILE)
        __chk_fail();
}

} // namespace

SD_EXPORT int __open_2(const char *path, int flags) {
    check_no_mode(flags);
    return noted(numbered([&] { return real.open(path, flags, 0); }));
}
SD_ALIAS(__open64_2, __open_2);

SD_EXPORT int __openat_2(int dir, const char *path, int flags) {
    check_no_mode(flags);
    return noted(numbered([&] { return real.openat(dir, path, flags, 0); }));
}
SD_ALIAS(__openat64_2, __openat_2);

SD_EXPORT int creat(const char *path, mode_t mode) {
    return noted(numbered([&] { return real.creat(path, mode); }));
}
SD_ALIAS(creat64, creat);

SD_EXPORT int pipe(int *ends) noexcept {
    int r = numbered([&] { return real.pipe(ends); });
    if (r == 0) {
        noted(ends[0]);
        noted(ends[1]);
    }
    return r;
}
SD_ALIAS(__pipe, pipe);

SD_EXPORT int pipe2(int *ends, int flags) noexcept {
    int r = numbered([&] { return real.pipe2(ends, flags); });
    if (r == 0) {
        noted(ends[0]);
        noted(ends[1]);
    }
    return r;
}

SD_EXPORT int eventfd(unsigned value, int flags) noexcept {
    return noted(numbered([&] { return real.eventfd(value, flags); }));
}

SD_EXPORT int signalfd(int fd, const sigset_t *mask, int flags) noexcept {
    int r = numbered([&] { return real.signalfd(fd, mask, flags); });
    return r == fd ? r : noted(r);
}

SD_EXPORT int timerfd_create(clockid_t clock, int flags) noexcept {
    return noted(numbered([&] { return real.timerfd_create(clock, flags); }));
}

SD_EXPORT int inotify_init() noexcept {
    return noted(numbered([&] { return real.inotify_init(); }));
}

SD_EXPORT int inotify_init1(int flags) noexcept {
    return noted(numbered([&] { return real.inotify_init1(flags); }));
}

SD_EXPORT int fanotify_init(unsigned flags, unsigned event_flags) noexcept {
    return noted(numbered([&] { return real.fanotify_init(flags, event_flags); }));
}

SD_EXPORT int memfd_create(const char *name, unsigned flags) noexcept {
    return noted(numbered([&] { return real.memfd_create(name, flags); }));
}

SD_EXPORT int pidfd_open(pid_t pid, unsigned flags) noexcept {
    return noted(numbered([&] { return real.pidfd_open(pid, flags); }));
}

SD_EXPORT int open_by_handle_at(int mount, file_handle *handle, int flags) {
    return noted(numbered([&] { return real.open_by_handle_at(mount, handle, flags); }));
}

SD_EXPORT DIR *opendir(const char *path) {
    DIR *d = numbered([&] { return real.opendir(path); });
    if (d)
        noted(dirfd(d));
    return d;
}

SD_EXPORT int closedir(DIR *given) {
    DIR *d = cpu::unknown(given); // declared never null, but libc answers EINVAL
    const int fd = d ? dirfd(d) : -1;
    return freed(fd, real.closedir(d));
}

SD_EXPORT int mkstemp(char *name) { return noted(lowest().mkstemp(name)); }
SD_ALIAS(mkstemp64, mkstemp);

SD_EXPORT int mkostemp(char *name, int flags) { return noted(lowest().mkostemp(name, flags)); }
SD_ALIAS(mkostemp64, mkostemp);

SD_EXPORT int mkstemps(char *name, int suffix) { return noted(lowest().mkstemps(name, suffix)); }
SD_ALIAS(mkstemps64, mkstemps);

SD_EXPORT int mkostemps(char *name, int suffix, int flags) {
    return noted(lowest().mkostemps(name, suffix, flags));
}
SD_ALIAS(mkostemps64, mkostemps);

SD_EXPORT int shm_open(const char *name, int flags, mode_t mode) {
    return noted(numbered([&] { return real.shm_open(name, flags, mode); }));
}

SD_EXPORT mqd_t mq_open(const char *name, int flags, ...) noexcept {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    mq_attr *attributes = va_arg(list, mq_attr *);
    va_end(list);
    return noted(numbered([&] { return real.mq_open(name, flags, mode, attributes); }));
}

SD_EXPORT mqd_t __mq_open_2(const char *name, int flags) noexcept {
    check_no_mode(flags);
    return noted(numbered([&] { return real.mq_open(name, flags, 0, nullptr); }));
}

SD_EXPORT int mq_close(mqd_t queue) noexcept { return freed(queue, real.mq_close(queue)); }

SD_EXPORT int posix_openpt(int flags) {
    return noted(numbered([&] { return real.posix_openpt(flags); }));
}

SD_EXPORT int getpt() {
    return noted(numbered([&] { return real.getpt(); }));
}

SD_EXPORT int openpty(int *outer, int *inner, char *name, const termios *settings, const winsize *size) noexcept {
    int r = lowest().openpty(outer, inner, name, settings, size);
    if (r == 0) {
        noted(*outer);
        noted(*inner);
    }
    return r;
}
