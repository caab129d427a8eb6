// select and poll.
#include "libsd/api/sockets/poll.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"

using namespace sd;

namespace {

/// Where the time that is left goes, as Linux reports it; the kernel ignores a timeout that cannot be
/// written.
template <class T> void report_rest(T *timeout, const timespec &asked, int64_t started) noexcept {
    int64_t left = int64_t{asked.tv_sec} * 1'000'000'000 + asked.tv_nsec - (sys::now_ns() - started);
    if (left < 0)
        left = 0;
    T value{};
    value.tv_sec = left / 1'000'000'000;
    if constexpr (requires { value.tv_usec; })
        value.tv_usec = left % 1'000'000'000 / 1000;
    else
        value.tv_nsec = left % 1'000'000'000;
    if (sd_copy(timeout, &value, sizeof value)) {
        // Read-only memory: nothing to report.
    }
}

bool valid(const timespec &t) noexcept {
    return t.tv_sec >= 0 && t.tv_nsec >= 0 && t.tv_nsec < 1'000'000'000;
}

} // namespace

namespace sd {

long poll_updating(pollfd *fds, nfds_t count, timespec *timeout, const sigset_t *mask) noexcept {
    upward.expect_faults();
    int64_t start = timeout ? sys::now_ns() : 0;
    timespec asked{};
    if (timeout && sd_copy(&asked, timeout, sizeof asked))
        return vfs::kPass;
    if (timeout && !valid(asked))
        return -EINVAL;
    long r = vfs::poll(fds, count, timeout ? &asked : nullptr, mask);
    if (timeout && r != vfs::kPass)
        report_rest(timeout, asked, start);
    return r;
}

long select_updating(int n, fd_set *r, fd_set *w, fd_set *x, timespec *timeout, const long *mask) noexcept {
    upward.expect_faults();
    int64_t start = timeout ? sys::now_ns() : 0;
    timespec asked{};
    const sigset_t *set = nullptr;
    if ((timeout && sd_copy(&asked, timeout, sizeof asked)) || (mask && sd_copy(&set, mask, sizeof set)))
        return vfs::kPass;
    if (timeout && !valid(asked))
        return -EINVAL;
    long result = vfs::select(n, r, w, x, timeout ? &asked : nullptr, set);
    if (timeout && result != vfs::kPass)
        report_rest(timeout, asked, start);
    return result;
}

} // namespace sd

SD_EXPORT int poll(pollfd *fds, nfds_t count, int timeout_ms) {
    if (active()) {
        cancellation_point();
        timespec t = from_ms(timeout_ms);
        long r = vfs::poll(fds, count, timeout_ms < 0 ? nullptr : &t, nullptr);
        if (r != vfs::kPass)
            return answer(r);
    }
    return real.poll(fds, count, timeout_ms);
}
SD_ALIAS(__poll, poll);

SD_EXPORT int __poll_chk(pollfd *fds, nfds_t count, int timeout_ms, size_t room) {
    if (room / sizeof *fds < count)
        __chk_fail();
    return poll(fds, count, timeout_ms);
}

SD_EXPORT int ppoll(pollfd *fds, nfds_t count, const timespec *timeout, const sigset_t *mask) {
    if (active() && (!timeout || valid(*timeout))) {
        cancellation_point();
        long r = vfs::poll(fds, count, timeout, mask);
        if (r != vfs::kPass)
            return answer(r);
    }
    const TrueMask before(mask != nullptr);
    return real.ppoll(fds, count, timeout, mask);
}

SD_EXPORT int __ppoll_chk(pollfd *fds, nfds_t count, const timespec *timeout, const sigset_t *mask, size_t room) {
    if (room / sizeof *fds < count)
        __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

SD_EXPORT int select(int n, fd_set *r, fd_set *w, fd_set *x, timeval *timeout) {
    if (active() && (!timeout || (timeout->tv_sec >= 0 && timeout->tv_usec >= 0))) {
        cancellation_point();
        int64_t start = timeout ? sys::now_ns() : 0;
        timespec t{};
        if (timeout)
            t = {timeout->tv_sec + timeout->tv_usec / 1'000'000, timeout->tv_usec % 1'000'000 * 1000};
        long result = vfs::select(n, r, w, x, timeout ? &t : nullptr, nullptr);
        if (result != vfs::kPass) {
            if (timeout)
                report_rest(timeout, t, start);
            return answer(result);
        }
    }
    return real.select(n, r, w, x, timeout);
}
SD_ALIAS(__select, select);

SD_EXPORT int pselect(int n, fd_set *r, fd_set *w, fd_set *x, const timespec *timeout, const sigset_t *mask) {
    if (active() && (!timeout || valid(*timeout))) {
        cancellation_point();
        long result = vfs::select(n, r, w, x, timeout, mask);
        if (result != vfs::kPass)
            return answer(result);
    }
    const TrueMask before(mask != nullptr);
    return real.pselect(n, r, w, x, timeout, mask);
}
