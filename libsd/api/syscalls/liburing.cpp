// io_uring as programs use it with liburing. That library makes its system calls itself, so what it exports
// is interposed: submissions are looked through before it hands them to the kernel (uring.cpp). Its errors
// are negative results, not errno.
#include "libsd/api/syscalls/uring.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/objects.hpp"
#include <csignal>
#include <dlfcn.h>
#include <initializer_list>
#include <linux/io_uring.h>

namespace sd {

namespace {

/// liburing's own structures, whose layout is part of its binary interface (liburing.h).
struct Submissions {
    unsigned *head, *tail, *mask, *entries, *flags, *dropped, *array;
    io_uring_sqe *entry;
    unsigned first_new, end; ///< those in between are filled in and not handed over yet
    size_t bytes;
    void *memory;
    unsigned more[4];
};
struct Completions {
    unsigned *head, *tail, *mask, *entries, *flags, *overflow;
    io_uring_cqe *entry;
    size_t bytes;
    void *memory;
    unsigned more[4];
};

} // namespace

} // namespace sd

struct io_uring {
    sd::Submissions submissions;
    sd::Completions completions;
    unsigned flags;
    int fd;
};

namespace sd {

namespace {

/// liburing's function. The library may have been loaded for one module only, so it is asked for by its name.
void *behind(const char *name) noexcept {
    Sought sought{name, gnu_hash(name), nullptr};
    find_behind(&sought, 1);
    if (sought.found)
        return sought.found;
    for (const char *library : {"liburing.so.2", "liburing.so.1"})
        if (void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
            void *found = real.dlsym(handle, name);
            real.dlclose(handle); // whoever calls us keeps it
            if (found)
                return found;
        }
    return nullptr;
}

/// Calls liburing's function of this name.
template <class... A> int pass_on(const char *name, std::atomic<void *> &known, A... arguments) noexcept {
    void *f = known.load(std::memory_order_relaxed);
    if (!f) {
        f = behind(name);
        known.store(f, std::memory_order_relaxed);
    }
    return f ? reinterpret_cast<int (*)(A...)>(f)(arguments...) : -ENOSYS;
}

#define SD_PASS_ON(name, ...)                                                                                \
    [&] {                                                                                                    \
        static constinit std::atomic<void *> known{nullptr};                                                 \
        return pass_on(#name, known, __VA_ARGS__);                                                           \
    }()

void look_through(const io_uring *ring) noexcept {
    if (fd_high.load(std::memory_order_relaxed) == 0)
        return;
    const Submissions &s = ring->submissions;
    const unsigned shift = ring->flags & IORING_SETUP_SQE128 ? 1 : 0;
    for (unsigned i = s.first_new; i != s.end; ++i)
        uring_serve(s.entry[(i & *s.mask) << shift]);
}

int ring_made(int result, const io_uring *ring) noexcept {
    if (result >= 0)
        noted(ring->fd);
    return result;
}

/// Of a function that tells its error by errno.
int as_result(long r) noexcept { return r < 0 ? -errno : static_cast<int>(r); }

} // namespace

} // namespace sd

using namespace sd;

SD_EXPORT int io_uring_queue_init(unsigned entries, io_uring *ring, unsigned flags) {
    if (uring_refused(flags))
        return -EPERM;
    make_room_below();
    return ring_made(SD_PASS_ON(io_uring_queue_init, entries, ring, flags), ring);
}

SD_EXPORT int io_uring_queue_init_params(unsigned entries, io_uring *ring, io_uring_params *p) {
    if (uring_refused(p->flags))
        return -EPERM;
    make_room_below();
    return ring_made(SD_PASS_ON(io_uring_queue_init_params, entries, ring, p), ring);
}

SD_EXPORT int io_uring_queue_init_mem(unsigned entries, io_uring *ring, io_uring_params *p, void *memory,
                                      size_t bytes) {
    if (uring_refused(p->flags))
        return -EPERM;
    make_room_below();
    return ring_made(SD_PASS_ON(io_uring_queue_init_mem, entries, ring, p, memory, bytes), ring);
}

SD_EXPORT int io_uring_submit(io_uring *ring) {
    look_through(ring);
    return SD_PASS_ON(io_uring_submit, ring);
}

SD_EXPORT int io_uring_submit_and_wait(io_uring *ring, unsigned wait_for) {
    look_through(ring);
    return SD_PASS_ON(io_uring_submit_and_wait, ring, wait_for);
}

SD_EXPORT int io_uring_submit_and_wait_timeout(io_uring *ring, io_uring_cqe **completion, unsigned wait_for,
                                               __kernel_timespec *timeout, sigset_t *mask) {
    look_through(ring);
    return SD_PASS_ON(io_uring_submit_and_wait_timeout, ring, completion, wait_for, timeout, mask);
}

SD_EXPORT int io_uring_submit_and_get_events(io_uring *ring) {
    look_through(ring);
    return SD_PASS_ON(io_uring_submit_and_get_events, ring);
}

SD_EXPORT int io_uring_register_files(io_uring *ring, const int *fds, unsigned count) {
    uring_keep(fds, count);
    return SD_PASS_ON(io_uring_register_files, ring, fds, count);
}

SD_EXPORT int io_uring_register_files_tags(io_uring *ring, const int *fds, const __u64 *tags, unsigned count) {
    uring_keep(fds, count);
    return SD_PASS_ON(io_uring_register_files_tags, ring, fds, tags, count);
}

SD_EXPORT int io_uring_register_files_update(io_uring *ring, unsigned from, const int *fds, unsigned count) {
    uring_keep(fds, count);
    return SD_PASS_ON(io_uring_register_files_update, ring, from, fds, count);
}

SD_EXPORT int io_uring_register_files_update_tag(io_uring *ring, unsigned from, const int *fds,
                                                 const __u64 *tags, unsigned count) {
    uring_keep(fds, count);
    return SD_PASS_ON(io_uring_register_files_update_tag, ring, from, fds, tags, count);
}

// The bare system calls under liburing's names.

SD_EXPORT int io_uring_setup(unsigned entries, io_uring_params *p) {
    return as_result(uring_setup(entries, p));
}

SD_EXPORT int io_uring_enter2(unsigned fd, unsigned submitted, unsigned wait_for, unsigned flags,
                              sigset_t *mask, size_t bytes) {
    const long a[6] = {
        fd, submitted, wait_for, flags, reinterpret_cast<long>(mask), static_cast<long>(bytes)};
    return as_result(uring_enter(a));
}

SD_EXPORT int io_uring_enter(unsigned fd, unsigned submitted, unsigned wait_for, unsigned flags, sigset_t *mask) {
    return io_uring_enter2(fd, submitted, wait_for, flags, mask, 8);
}

SD_EXPORT int io_uring_register(unsigned fd, unsigned operation, const void *what, unsigned count) {
    return as_result(uring_register(static_cast<int>(fd), operation, const_cast<void *>(what), count));
}
