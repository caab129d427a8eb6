// The program's signal mask: what it blocks, asks for and waits for, see vfs/readiness/signal_mask.hpp.
#include "libsd/api/signals/signal_mask.hpp"
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include <pthread.h>
#include <threads.h>

using namespace sd;

namespace {

/// Both mask functions: once there are sockets of ours SIGSEGV and SIGBUS only seem to be blocked.
template <class F> int change_mask(F call, int how, const sigset_t *set, sigset_t *old) noexcept {
    if (!fault_handler_installed.load(std::memory_order_acquire))
        return call(how, set, old);
    const uint64_t before = pretended_mask;
    sigset_t real_set;
    if (set) {
        real_set = *set;
        uint64_t wanted = word_of(real_set);
        if (how != SIG_UNBLOCK)
            set_word(real_set, wanted & ~kCopyFaults);
        wanted &= kCopyFaults;
        // Known before the kernel delivers what it lets through.
        pretended_mask = how == SIG_SETMASK ? wanted : how == SIG_BLOCK ? before | wanted : before & ~wanted;
    }
    const int r = call(how, set ? &real_set : nullptr, old);
    if (r != 0)
        pretended_mask = before;
    else if (old)
        set_word(*old, word_of(*old) | before);
    return r;
}

} // namespace

void sd::let_faults_through() noexcept {
    if (!fault_handler_installed.load(std::memory_order_acquire))
        return;
    uint64_t mask = 0;
    // libc and we ourselves block everything at times, libc's own signals with the rest: that is not the
    // program's mask.
    constexpr uint64_t kOfLibc = uint64_t{3} << 31; // 32 and 33
    if (sys::call(SYS_rt_sigprocmask, SIG_BLOCK, 0, sys::arg(&mask), 8) < 0 || !(mask & kCopyFaults) ||
        (mask & kOfLibc) == kOfLibc)
        return;
    mask &= kCopyFaults;
    pretended_mask |= mask;
    sys::call(SYS_rt_sigprocmask, SIG_UNBLOCK, sys::arg(&mask), 0, 8);
}

SD_EXPORT int sigprocmask(int how, const sigset_t *set, sigset_t *old) noexcept {
    return change_mask(real.sigprocmask, how, set, old);
}

SD_EXPORT int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) noexcept {
    return change_mask(real.pthread_sigmask, how, set, old);
}

namespace sd {

long change_kernel_mask(int how, const void *set, void *old) noexcept {
    if (!fault_handler_installed.load(std::memory_order_acquire))
        return sys::call(SYS_rt_sigprocmask, how, sys::arg(set), sys::arg(old), 8);
    sigset_t wanted{}, was{};
    if (set && sd_copy(&wanted, set, 8))
        return -EFAULT;
    const auto call = [](int h, const sigset_t *s, sigset_t *o) {
        return static_cast<int>(sys::call(SYS_rt_sigprocmask, h, sys::arg(s), sys::arg(o), 8));
    };
    const int r = change_mask(call, how, set ? &wanted : nullptr, &was);
    return r == 0 && old && sd_copy(old, &was, 8) ? -EFAULT : r;
}

} // namespace sd

namespace {

int change_one(int how, int signal) noexcept {
    sigset_t one;
    sigemptyset(&one);
    return sigaddset(&one, signal) < 0 ? -1 : sigprocmask(how, &one, nullptr);
}

/// Masks of the first 32 signals.
int change_first(int how, int mask) noexcept {
    sigset_t set, old;
    sigemptyset(&set);
    sigemptyset(&old);
    set_word(set, static_cast<unsigned>(mask));
    return sigprocmask(how, &set, &old) < 0 ? -1 : static_cast<int>(word_of(old));
}

} // namespace

SD_EXPORT int sighold(int signal) noexcept { return change_one(SIG_BLOCK, signal); }
SD_EXPORT int sigrelse(int signal) noexcept { return change_one(SIG_UNBLOCK, signal); }
SD_EXPORT int sigblock(int mask) noexcept { return change_first(SIG_BLOCK, mask); }
SD_EXPORT int sigsetmask(int mask) noexcept { return change_first(SIG_SETMASK, mask); }

SD_EXPORT int sigsuspend(const sigset_t *mask) {
    const TrueMask during;
    return real.sigsuspend(mask);
}

namespace {

/// What was sent while it was blocked has been taken: a bad pointer may be answered again.
int taken(int signal) noexcept {
    if (signal == SIGSEGV || signal == SIGBUS)
        let_faults_through();
    return signal;
}

} // namespace

SD_EXPORT int sigwait(const sigset_t *set, int *signal) {
    const int r = real.sigwait(set, signal);
    if (r == 0)
        taken(*signal);
    return r;
}

SD_EXPORT int sigwaitinfo(const sigset_t *set, siginfo_t *info) { return taken(real.sigwaitinfo(set, info)); }

SD_EXPORT int sigtimedwait(const sigset_t *set, siginfo_t *info, const timespec *timeout) {
    return taken(real.sigtimedwait(set, info, timeout));
}

/// sigpause() of the standard.
extern "C" __attribute__((visibility("default"))) int __xpg_sigpause(int signal) {
    sigset_t mask;
    if (sigprocmask(SIG_BLOCK, nullptr, &mask) < 0 || sigdelset(&mask, signal) < 0)
        return -1;
    return sigsuspend(&mask);
}

// A new thread begins with the mask of the one that makes it.
SD_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                             void *argument) noexcept {
    if (active())
        threads_begin();
    const TrueMask inherited;
    return real.pthread_create(thread, attributes, start, argument);
}

SD_EXPORT int thrd_create(thrd_t *thread, thrd_start_t start, void *argument) {
    if (active())
        threads_begin();
    const TrueMask inherited;
    return real.thrd_create(thread, start, argument);
}
