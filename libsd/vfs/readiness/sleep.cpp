// The sleep itself, in ppoll; and what is seen to before and after any sleep.
#include "libsd/vfs/readiness/sleep.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/client.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/readiness/poll_by_select.hpp"
#include "libsd/vfs/streams/ring_shrink.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

Sleep::Sleep(Bell &bell, int64_t deadline) noexcept : Sleeper(bell, deadline) {
    // The flags first: a handler that sleeps meanwhile sets them anew.
    if (bell.eventfd_rang) {
        bell.eventfd_rang = false;
        drain_eventfd(bell);
    }
    if (bell.only_end_rang) {
        bell.only_end_rang = false;
        take_from_only_end(bell);
    }
    not_after(shrink_idle_rings());
}

long Sleep::in_poll(pollfd *list, size_t n, const uint64_t *mask, uint64_t handled, void (*undo)(void *),
                    void *arg) noexcept {
    const size_t bell_at = n;
    list[n++] = {bell_.efd, POLLIN, 0};
    const int foreign = bell_.foreign.set.load(std::memory_order_acquire);
    const int other = bell_.foreign.other.load(std::memory_order_acquire);
    const bool only_other = other >= 0 && bell_.foreign.used.load(std::memory_order_acquire) == 0;
    const int only_socket = foreign >= 0 ? only_end(bell_) : -1;
    if (foreign >= 0) [[unlikely]]
        list[n++] = {only_other ? other : only_socket >= 0 ? only_socket : foreign, POLLIN, 0};
    const size_t bell_end = n;
    if (const int channel = control::channel(); channel >= 0)
        list[n++] = {channel, 0, 0};
    const int64_t start = sys::now_ns();
    const int64_t ns = left(start);
    const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
    const timespec *limit = ns < 0 ? nullptr : &t;
    SD_PROBE1(sleep, ns);
    const long r = sleep_in_kernel(mask, handled, undo, arg, [&](const uint64_t *asleep) {
        long got = sys::ppoll(list, n, limit, asleep);
        // RLIMIT_NOFILE bounds the list as well: then without the monitor's channel, which is last
        if (got == -EINVAL && n > bell_end)
            got = sys::ppoll(list, n - 1, limit, asleep);
        return got == -EINVAL ? poll_by_select(list, n, limit, asleep) : got;
    });
    is_awake();
    const bool bell_rung = r > 0 && list[bell_at].revents;
    const bool others_rang = r > 0 && bell_end > bell_at + 1 && list[bell_at + 1].revents;
    const bool rung = bell_rung || others_rang;
    // Only what is readable is asked, since each is a system call; and what can wait does so until the next
    // sleep.
    bell_.eventfd_rang = bell_.eventfd_rang || bell_rung;
    if (others_rang) {
        if (only_other)
            upward.take_events();
        else if (only_socket >= 0)
            bell_.only_end_rang = true;
        else
            (void)drain_foreign_ends(bell_);
    }
    over(start, rung);
    if (r > 0 && n > bell_end && list[bell_end].revents && !blind())
        control::maintain();
    return r;
}

void Sleep::over(int64_t start, bool rung) noexcept {
    stats().sleeps.fetch_add(1, std::memory_order_relaxed);
    const int64_t slept = sys::now_ns() - start;
    SD_PROBE2(awake, slept, rung ? 1 : 0);
    Spinner::slept(bell_, slept, rung);
    look_after_orphans();
    if (blind())
        control::maintain();
}

} // namespace sd
