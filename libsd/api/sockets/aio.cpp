// POSIX asynchronous I/O on accelerated sockets. libc's helper threads read and write inside libc and would
// find an empty placeholder. Here a request that cannot be served at once is served when the program asks
// about it (aio_error, aio_suspend, lio_listio): no thread is started. A request that must wait and is to be
// announced by a signal or a thread is refused with EAGAIN.
#include "libsd/api/sockets/aio.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/fork_sections.hpp"
#include <aio.h>
#include <pthread.h>

using namespace sd;

namespace {

constexpr unsigned kMaxRequests = 128;

struct Request {
    aiocb *cb = nullptr;
    bool writing = false, busy = false;
    size_t done = 0; ///< bytes written so far
};

/// In the order in which they were made: those for one descriptor and direction are served in that order.
constinit Request pending[kMaxRequests]{};
SD_FORK_STATE constinit unsigned pending_count = 0;
SD_FORK_STATE constinit Lock pending_lock;

/// A word that libc's aio_error() reads from other threads.
void set_error(aiocb *cb, int value) noexcept {
    std::atomic_ref<int>(cb->__error_code).store(value, std::memory_order_release);
}
int error_of(const aiocb *cb) noexcept {
    return std::atomic_ref<int>(const_cast<aiocb *>(cb)->__error_code).load(std::memory_order_acquire);
}

struct ThreadNotification {
    void (*function)(sigval);
    sigval value;
};

void *run_notification(void *p) {
    ThreadNotification n = *static_cast<ThreadNotification *>(p);
    free(p);
    n.function(n.value);
    return nullptr;
}

/// A zeroed sigevent asks for signal 0, which is none.
bool is_announced(const sigevent &e) noexcept {
    return e.sigev_notify != SIGEV_NONE && !(e.sigev_notify == SIGEV_SIGNAL && e.sigev_signo == 0);
}

void announce(const sigevent &e) noexcept {
    if (!is_announced(e))
        return;
    if (e.sigev_notify == SIGEV_SIGNAL) {
        siginfo_t info{};
        info.si_signo = e.sigev_signo;
        info.si_code = SI_ASYNCIO;
        info.si_pid = getpid();
        info.si_uid = getuid();
        info.si_value = e.sigev_value;
        sys::call(SYS_rt_sigqueueinfo, sys::getpid(), e.sigev_signo, sys::arg(&info));
    } else if (e.sigev_notify == SIGEV_THREAD) { // the thread that the program asked for
        auto *n = static_cast<ThreadNotification *>(malloc(sizeof(ThreadNotification)));
        pthread_attr_t plain;
        pthread_attr_init(&plain);
        pthread_attr_setdetachstate(&plain, PTHREAD_CREATE_DETACHED);
        pthread_t thread;
        if (n) {
            *n = {e.sigev_notify_function, e.sigev_value};
            auto *attributes = static_cast<pthread_attr_t *>(e.sigev_notify_attributes);
            if (pthread_create(&thread, attributes ? attributes : &plain, run_notification, n) != 0)
                free(n);
        }
        pthread_attr_destroy(&plain);
    }
}

void finish(aiocb *cb, long result) noexcept {
    cb->__return_value = result < 0 ? -1 : result;
    set_error(cb, result < 0 ? static_cast<int>(-result) : 0);
    announce(cb->aio_sigevent);
}

/// One attempt without waiting. The result, or -EAGAIN when there is more to wait for.
long attempt(aiocb *cb, bool writing, size_t &done) noexcept {
    int fd = cb->aio_fildes;
    File *f = still_ours(fd, file_of(fd)); // null: closed, or the kernel's meanwhile
    if (!writing && cb->aio_nbytes == 0)   // answered before any socket is asked, as read() is
        return sys::read(fd, nullptr, 0);
    auto *buffer = static_cast<volatile char *>(cb->aio_buf);
    auto *at = const_cast<char *>(buffer) + done;
    // libc's helper threads have all signals blocked: nobody gets a SIGPIPE.
    long r = !f ? vfs::kPass
             : writing
                 ? vfs::send(fd, f, at, clamp_transfer(cb->aio_nbytes) - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                 : vfs::recv(fd, f, at, clamp_transfer(cb->aio_nbytes), MSG_DONTWAIT);
    if (r == vfs::kPass) // not a connection of ours: the kernel knows what to say
        r = writing ? sys::call(SYS_sendto, fd, sys::arg(at),
                                static_cast<long>(clamp_transfer(cb->aio_nbytes) - done),
                                MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0)
                    : sys::call(SYS_recvfrom, fd, sys::arg(at), static_cast<long>(cb->aio_nbytes),
                                MSG_DONTWAIT, 0, 0);
    if (r >= 0 && writing) {
        done += static_cast<size_t>(r);
        return done < clamp_transfer(cb->aio_nbytes) ? -EAGAIN : static_cast<long>(done);
    }
    return r;
}

bool same_queue(const Request &a, const Request &b) noexcept {
    return a.writing == b.writing && a.cb->aio_fildes == b.cb->aio_fildes;
}

/// Takes the place of request `i`; those behind it move up.
void remove(unsigned i) noexcept {
    for (--pending_count; i < pending_count; ++i)
        pending[i] = pending[i + 1];
}

/// Index of `cb`, or kMaxRequests. With the lock.
unsigned find(const aiocb *cb) noexcept {
    for (unsigned i = 0; i < pending_count; ++i)
        if (pending[i].cb == cb)
            return i;
    return kMaxRequests;
}

bool is_first(unsigned i) noexcept {
    for (unsigned k = 0; k < i; ++k)
        if (same_queue(pending[k], pending[i]))
            return false;
    return true;
}

/// Serves the requests of one descriptor as far as it goes.
void progress(int fd) noexcept {
    for (unsigned i = 0;; ++i) {
        Request r;
        {
            LockGuard guard(pending_lock);
            while (i < pending_count && (pending[i].cb->aio_fildes != fd || pending[i].busy || !is_first(i)))
                ++i;
            if (i >= pending_count)
                return;
            pending[i].busy = true;
            r = pending[i];
        }
        // Without the lock: it keeps signals out, and a bad buffer has to be noticed.
        long result = attempt(r.cb, r.writing, r.done);
        {
            LockGuard guard(pending_lock);
            i = find(r.cb);
            if (i == kMaxRequests)
                return;
            pending[i].busy = false;
            pending[i].done = r.done;
            if (result == -EAGAIN)
                continue;
            remove(i);
        }
        finish(r.cb, result);
        i = ~0u; // from the start: the next one of this queue is first now
    }
}

bool is_pending(const aiocb *cb) noexcept {
    LockGuard guard(pending_lock);
    return find(cb) != kMaxRequests;
}

int submit(aiocb *cb, bool writing) noexcept {
    int fd = cb->aio_fildes;
    if (cb->aio_reqprio < 0) {
        errno = EINVAL;
        return -1;
    }
    cb->__return_value = 0;
    set_error(cb, EINPROGRESS);
    bool queue = false;
    {
        LockGuard guard(pending_lock);
        Request r{cb, writing, false, 0};
        for (unsigned i = 0; i < pending_count; ++i)
            queue |= same_queue(pending[i], r);
    }
    size_t done = 0;
    long result = queue ? -EAGAIN : attempt(cb, writing, done);
    long flags = vfs::fcntl(fd, F_GETFL, 0);
    if (flags == vfs::kPass) // a kernel socket that may be joined
        flags = sys::fcntl(fd, F_GETFL);
    bool waits = result == -EAGAIN && !(flags >= 0 && (flags & O_NONBLOCK));
    if (!waits) {
        finish(cb, result == -EAGAIN && done ? static_cast<long>(done) : result);
        return 0;
    }
    LockGuard guard(pending_lock);
    if (is_announced(cb->aio_sigevent) || pending_count == kMaxRequests) {
        set_error(cb, EAGAIN);
        errno = EAGAIN;
        return -1;
    }
    pending[pending_count++] = {cb, writing, false, done};
    return 0;
}

bool ours(const aiocb *cb) noexcept {
    return cb && (file_of(cb->aio_fildes) || (pending_count && is_pending(cb)));
}

/// Waits for one of `list`, some of which are ours and pending.
int suspend(const aiocb *const list[], int count, const timespec *timeout) {
    int64_t deadline = timeout ? sys::now_ns() + timeout->tv_sec * 1'000'000'000 + timeout->tv_nsec : INT64_MAX;
    for (;;) {
        pollfd wait[kMaxRequests];
        nfds_t n = 0;
        bool others = false;
        for (int i = 0; i < count; ++i) {
            if (!list[i])
                continue;
            bool mine = is_pending(list[i]);
            if (mine)
                progress(list[i]->aio_fildes);
            if (error_of(list[i]) != EINPROGRESS)
                return 0;
            others |= !mine;
            LockGuard guard(pending_lock);
            if (unsigned k = find(list[i]); k != kMaxRequests && n < kMaxRequests)
                wait[n++] = {list[i]->aio_fildes, static_cast<short>(pending[k].writing ? POLLOUT : POLLIN), 0};
        }
        int64_t left = deadline == INT64_MAX ? INT64_MAX : deadline - sys::now_ns();
        if (left <= 0) {
            errno = EAGAIN;
            return -1;
        }
        constexpr int64_t kLook = 5'000'000; // libc's own requests finish without telling us
        if (others && left > kLook)
            left = kLook;
        timespec t{left / 1'000'000'000, left % 1'000'000'000};
        if (ppoll(wait, n, left == INT64_MAX ? nullptr : &t, nullptr) < 0)
            return -1;
    }
}

} // namespace

namespace sd {

SD_FORK_CODE void reset_aio_in_child() noexcept {
    pending_lock.reset();
    if (pending_count != 0)
        pending_count = 0; // requests are not inherited
}

} // namespace sd

SD_EXPORT int aio_read(aiocb *cb) noexcept {
    return file_of(cb->aio_fildes) ? submit(cb, false) : real.aio_read(cb);
}

SD_EXPORT int aio_write(aiocb *cb) noexcept {
    return file_of(cb->aio_fildes) ? submit(cb, true) : real.aio_write(cb);
}

SD_EXPORT int aio_error(const aiocb *cb) noexcept {
    if (pending_count && is_pending(cb))
        progress(cb->aio_fildes);
    return real.aio_error(cb);
}

SD_EXPORT int aio_suspend(const aiocb *const list[], int count, const timespec *timeout) {
    bool any = false;
    for (int i = 0; i < count && pending_count; ++i)
        any |= list[i] && is_pending(list[i]);
    return any ? suspend(list, count, timeout) : real.aio_suspend(list, count, timeout);
}

SD_EXPORT int aio_cancel(int fd, aiocb *cb) noexcept {
    if (!file_of(fd))
        return real.aio_cancel(fd, cb);
    bool cancelled = false, left = false;
    LockGuard guard(pending_lock);
    for (unsigned i = 0; i < pending_count;) {
        Request &r = pending[i];
        if (r.cb->aio_fildes != fd || (cb && r.cb != cb)) {
            ++i;
        } else if (r.busy) {
            left = true;
            ++i;
        } else {
            r.cb->__return_value = -1;
            set_error(r.cb, ECANCELED);
            cancelled = true;
            remove(i);
        }
    }
    return left ? AIO_NOTCANCELED : cancelled ? AIO_CANCELED : AIO_ALLDONE;
}

SD_EXPORT int lio_listio(int mode, aiocb *const list[], int count, sigevent *event) noexcept {
    bool any = false;
    for (int i = 0; i < count; ++i)
        any |= list[i] && list[i]->aio_lio_opcode != LIO_NOP && ours(list[i]);
    if (!any)
        return real.lio_listio(mode, list, count, event);
    if ((mode != LIO_WAIT && mode != LIO_NOWAIT) || count < 0) {
        errno = EINVAL;
        return -1;
    }
    if (mode == LIO_NOWAIT && event && is_announced(*event)) {
        errno = EAGAIN;
        return -1;
    }
    bool failed = false;
    for (int i = 0; i < count; ++i)
        if (list[i] && list[i]->aio_lio_opcode == LIO_READ)
            failed |= aio_read(list[i]) < 0;
        else if (list[i] && list[i]->aio_lio_opcode == LIO_WRITE)
            failed |= aio_write(list[i]) < 0;
    for (int i = 0; i < count && mode == LIO_WAIT; ++i) {
        const aiocb *one = list[i];
        if (!one || one->aio_lio_opcode == LIO_NOP)
            continue;
        while (aio_error(one) == EINPROGRESS)
            if (aio_suspend(&one, 1, nullptr) < 0 && errno == EINTR)
                return -1;
        failed |= error_of(one) != 0;
    }
    if (failed)
        errno = EIO;
    return failed ? -1 : 0;
}

// The 64-bit types are the same on a 64-bit processor.
SD_EXPORT int aio_read64(aiocb64 *cb) noexcept { return aio_read(reinterpret_cast<aiocb *>(cb)); }
SD_EXPORT int aio_write64(aiocb64 *cb) noexcept { return aio_write(reinterpret_cast<aiocb *>(cb)); }
SD_EXPORT int aio_error64(const aiocb64 *cb) noexcept {
    return aio_error(reinterpret_cast<const aiocb *>(cb));
}
SD_EXPORT int aio_suspend64(const aiocb64 *const list[], int count, const timespec *timeout) {
    return aio_suspend(reinterpret_cast<const aiocb *const *>(list), count, timeout);
}
SD_EXPORT int aio_cancel64(int fd, aiocb64 *cb) noexcept {
    return aio_cancel(fd, reinterpret_cast<aiocb *>(cb));
}
SD_EXPORT int lio_listio64(int mode, aiocb64 *const list[], int count, sigevent *event) noexcept {
    return lio_listio(mode, reinterpret_cast<aiocb *const *>(list), count, event);
}
