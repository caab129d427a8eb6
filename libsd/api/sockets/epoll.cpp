// epoll.
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"

using namespace sd;

namespace {

int made(int ep) noexcept {
    noted(ep);
    if (ep >= 0 && active())
        vfs::epoll_created(ep);
    return ep;
}

long wait(int ep, epoll_event *events, int count, const timespec *timeout, const sigset_t *mask) noexcept {
    return called_on(ep) ? vfs::epoll_wait(ep, events, count, timeout, mask) : vfs::kPass;
}

} // namespace

SD_EXPORT int epoll_create(int size) noexcept {
    return made(numbered([&] { return real.epoll_create(size); }));
}

SD_EXPORT int epoll_create1(int flags) noexcept {
    return made(numbered([&] { return real.epoll_create1(flags); }));
}

SD_EXPORT int epoll_ctl(int ep, int op, int fd, epoll_event *event) noexcept {
    if (!file_of(ep)) {
        if (!file_of(fd)) [[likely]]
            return is_hidden(fd) ? answer(-EBADF) : real.epoll_ctl(ep, op, fd, event);
        // An instance from before an exec, or made where we did not see it, meets the first socket of ours.
        vfs::import_epoll(ep);
        if (!file_of(ep))
            return real.epoll_ctl(ep, op, fd, event);
    }
    if (is_hidden(fd)) [[unlikely]]
        return answer(-EBADF);
    long r = vfs::epoll_ctl(ep, op, fd, event);
    return r == vfs::kPass ? real.epoll_ctl(ep, op, fd, event) : answer(r);
}

SD_EXPORT int epoll_wait(int ep, epoll_event *events, int count, int timeout_ms) {
    timespec t = from_ms(timeout_ms);
    long r = wait(ep, events, count, timeout_ms < 0 ? nullptr : &t, nullptr);
    return r == vfs::kPass ? real.epoll_wait(ep, events, count, timeout_ms) : answer(r);
}

SD_EXPORT int epoll_pwait(int ep, epoll_event *events, int count, int timeout_ms, const sigset_t *mask) {
    timespec t = from_ms(timeout_ms);
    long r = wait(ep, events, count, timeout_ms < 0 ? nullptr : &t, mask);
    const TrueMask before(mask && r == vfs::kPass);
    return r == vfs::kPass ? real.epoll_pwait(ep, events, count, timeout_ms, mask) : answer(r);
}

SD_EXPORT int epoll_pwait2(int ep, epoll_event *events, int count, const timespec *timeout, const sigset_t *mask) {
    timespec copy{}; // one that cannot be read is the kernel's to refuse
    long r = vfs::kPass;
    if (file_of(ep) && !(timeout && sd_copy(&copy, timeout, sizeof copy)))
        r = wait(ep, events, count, timeout ? &copy : nullptr, mask);
    const TrueMask before(mask && r == vfs::kPass);
    return r == vfs::kPass ? real.epoll_pwait2(ep, events, count, timeout, mask) : answer(r);
}
