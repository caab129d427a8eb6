// epoll_wait: looking, sleeping, and giving kernel descriptors their share.
#include "libsd/base/probes.hpp"
#include "libsd/control/client.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/readiness/sleep.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

constexpr int64_t kAskForBellsNs = 5'000'000;
constexpr int64_t kAskForMonitorNs = 500'000'000;

struct Wait {
    Epoll &x;
    int ep;
    epoll_event *user;
    int room;
    int64_t timeout; ///< ns, < 0: for ever
    const uint64_t *mask;
    uint64_t handled;  ///< self.handled at entry
    unsigned cleanups; ///< CleanupStack::mark() at entry
    bool plain;        ///< counted in Epoll::plain
    bool ours = false; ///< the last round found accelerated members
};

/// Of a wait that a handler has jumped out of, or that was cancelled: what it has collected, others that
/// sleep have not been told.
void unuse(void *set, size_t plain) noexcept {
    auto &x = *static_cast<Epoll *>(set);
    {
        SetGuard g(x);
        if (plain)
            --x.plain;
        if (x.bell && (x.sleepers || x.plain))
            ring_own(x);
    }
    set_unuse(x);
}

void wake_up(void *set, size_t) noexcept {
    auto &x = *static_cast<Epoll *>(set);
    SetGuard g(x);
    finish_sleep(x);
}

/// The thread was cancelled in its sleep.
void give_up_sleep(void *) noexcept {
    outer_mask = nullptr;
    CleanupStack::give_back_all();
}

long kernel_sleep(Wait &w, int64_t timeout) noexcept {
    upward.watch_thread(); // which gives the set back if it ends after a jump out of here
    return cancellable(give_up_sleep, nullptr, [&] {
        const TrueMask before(w.mask != nullptr);
        return kernel_wait(w.ep, w.user, w.room, timeout, w.mask);
    });
}

/// Should the kernel's set be looked at in this round? With the lock.
bool kernel_due(Epoll &x, bool by_time) noexcept {
    if (x.kernel_members.load(std::memory_order_relaxed) <= 0 && x.duals == 0)
        return false;
    return kernel_is_due(x.streak, by_time, x.rounds, x.kernel_look);
}

long look_at_kernel(Wait &w, int at) noexcept {
    // Twice at most: an event of our own may have taken the only room from one of the program's.
    for (int tries = 0;; ++tries) {
        long r = sys::epoll_pwait(w.ep, w.user + at, w.room - at, 0, nullptr);
        if (r <= 0)
            return r;
        Found f = sift(w.x, w.user + at, r);
        if (f.channel)
            channel_lost(w.x);
        if (f.count || r < w.room - at || tries)
            return f.count;
    }
}

/// A listener that both the kernel and we found ready is reported once.
long drop_doubles(Wait &w, const epoll_event *ours, unsigned n, long kernel_at, long kernel_count) noexcept {
    SetGuard g(w.x);
    for (EpollItem *i : w.x.hot) {
        if (!i->kernel_too || i->reported != w.x.passes)
            continue;
        bool found = false;
        for (unsigned k = 0; k < n && !found; ++k)
            found = ours[k].data.u64 == i->data;
        for (long k = 0; found && k < kernel_count; ++k)
            if (w.user[kernel_at + k].data.u64 == i->data) {
                w.user[kernel_at + k] = w.user[kernel_at + kernel_count - 1];
                --kernel_count;
                break;
            }
    }
    return kernel_count;
}

enum class Look { normal, spinning, with_kernel };

/// One round without sleeping: the number of events written to the program's array, or -errno.
long round(Wait &w, Look how) noexcept {
    Epoll &x = w.x;
    epoll_event found[kBatch];
    unsigned n = 0;
    long from_kernel = 0;
    bool due, thorough, ask = false, kernel_first = false;
    auto room = [&](long used) { // with the lock
        const long left = w.room - used, most = x.streak < kBusyStreak || x.talks_to_itself ? kBatch : kBusyBatch;
        return static_cast<unsigned>(left < most ? left : most);
    };
    {
        SetGuard g(x);
        due = kernel_due(x, how == Look::spinning);
        if (due)
            x.kernel_first = kernel_first = !x.kernel_first;
        if (kernel_first)
            ++x.passes; // what the last pass reported may be reported again
        // Busy programs get what is dear to look at a little later.
        thorough = how == Look::with_kernel || (how == Look::normal && x.streak < kBusyStreak);
        if (!kernel_first) {
            n = scan(x, found, room(0), thorough);
            if (n && x.streak < kBusyStreak)
                ++x.streak;
        }
        // Ids are otherwise asked for before the first sleep; a set that is never idle gets them here, or it
        // would look at all its members for ever.
        if (x.wants_bells) [[unlikely]]
            if (int64_t now = sys::now_ns(); now - x.bells_at > kAskForBellsNs) {
                x.bells_at = now;
                x.wants_bells = false;
                ask = true;
            }
    }
    if (ask) [[unlikely]]
        provide_bells(x);
    if (x.has_moved) [[unlikely]]
        follow_moved_members(x);
    if (kernel_first) {
        from_kernel = look_at_kernel(w, 0);
        if (from_kernel < 0)
            return from_kernel;
        if (from_kernel < w.room) {
            SetGuard g(x);
            n = scan(x, found, room(from_kernel), thorough);
        }
    }
    long total = from_kernel;
    w.ours = n > 0;
    if (n) {
        if (sd_copy(w.user + total, found, n * sizeof *found))
            return -EFAULT;
        total += n;
    }
    if (!kernel_first && (due || (how == Look::with_kernel && n == 0)) && total < w.room) {
        from_kernel = look_at_kernel(w, static_cast<int>(total));
        if (from_kernel < 0)
            return total ? total : from_kernel;
        total += from_kernel;
    }
    if (n && from_kernel && x.duals) [[unlikely]] {
        if (kernel_first) { // the kernel's events stand in front: close the gap with the last of ours
            long kept = drop_doubles(w, found, n, 0, from_kernel);
            for (long k = kept; k < from_kernel; ++k)
                w.user[k] = w.user[--total];
        } else {
            total -= from_kernel - drop_doubles(w, found, n, n, from_kernel);
        }
    }
    return total;
}

/// Asks the monitor for what a sleep needs. Events that came before a signal, when one has come meanwhile; or
/// -EINTR: what its handler has done is not seen any more.
long provide(Wait &w) noexcept {
    long before = 0;
    {
        const PutOff put_off; // a handler runs at the end of this
        provide_bells(w.x);
        if (self.deferred) [[unlikely]]
            before = round(w, Look::normal);
    }
    return before != 0 || self.handled == w.handled ? before : -EINTR;
}

/// Sleeps once in the kernel. Events of kernel members, 0, or -errno.
long sleep_once(Wait &w, int64_t deadline) noexcept {
    Epoll &x = w.x;
    Sleep sleep(*x.bell, deadline);
    sleep.any_link_may_ring();
    bool ready, listens;
    const unsigned mark = CleanupStack::mark();
    {
        SetGuard g(x);
        x.streak = 0;
        bool blind = false;
        const uint64_t seen = links_seen(x);
        prepare_sleep(x, &blind);
        CleanupStack::push(wake_up, &x, 0, &w);
        listens = x.duals > 0;
        if (x.streams || listens) {
            fence_before_sleep(x);
            x.barrier_at = 0;
        }
        ready = any_ready_after_barrier(x) || x.has_moved || links_seen(x) != seen;
        if (blind || x.bell->efd < 0 || (x.streams && !control::connected()))
            sleep.nobody_rings();
        sleep.not_after(x.corked_until);
    }
    const int64_t start = sys::now_ns();
    // Without a monitor nobody announces it when there is one again.
    const bool asks = !sleep.blind() && listens && !control::connected();
    if (asks)
        sleep.not_after(start + kAskForMonitorNs);
    long r = ready && self.handled != w.handled ? -ECANCELED : 0;
    if (!ready) {
        upward.watch_thread();
        const int64_t left = sleep.left(start);
        SD_PROBE1(sleep, left);
        r = sleep_in_kernel(w.mask, w.handled, nothing_to_undo, nullptr, [&](const uint64_t *asleep) {
            return kernel_wait(w.ep, w.user, w.room, left, asleep);
        });
    }
    sleep.is_awake();
    {
        SetGuard g(x);
        CleanupStack::forget_to(mark);
        finish_sleep(x);
    }
    Found f{r, false, false};
    if (r > 0)
        f = sift(x, w.user, r);
    if (!ready)
        sleep.over(start, f.rung);
    if (f.channel)
        channel_lost(x);
    else if (asks)
        control::maintain();
    if (r == -ECANCELED)
        return ready ? 0 : -EINTR;
    return f.count;
}

long spin(Wait &w) noexcept {
    SpinMask swapped(w.mask);
    for (Spinner s(*w.x.bell);;) {
        long r = round(w, Look::spinning);
        if (r != 0) {
            if (w.ours) // kernel members would have woken us without the looking
                s.paid();
            return r;
        }
        if (self.handled != w.handled)
            return -EINTR;
        if (!s.again())
            return 0;
    }
}

/// Listeners nobody has a link to, and nothing else: there is nothing to look at until the doorbell says that
/// there is a link, or another thread that it has added something.
bool only_kernel_can_have_news(Epoll &x) noexcept {
    if (x.links.size() || x.hot.size() != x.duals || !control::connected() || x.channel_epoch != control::epoch())
        return false;
    for (EpollItem *i : x.hot) {
        if (i->file->kind != FileKind::listener || i->bell_epoch != control::epoch() + 1)
            return false;
        Listener &l = *i->file->listener;
        QuietGuard lg(l.lock);
        if (l.links.size() || l.seg->link_sequence.load(std::memory_order_acquire) != l.seen_sequence)
            return false;
    }
    return true;
}

long wait_accelerated(Wait &w) noexcept {
    Epoll &x = w.x;
    for (;;) {
        const unsigned mark = CleanupStack::mark();
        rdma::MaySleep may_sleep; // a connection may be added meanwhile, see hand_over()
        may_sleep.begins();
        {
            SetGuard g(x);
            if (!only_kernel_can_have_news(x))
                break;
            ++x.sleepers;
            CleanupStack::push(wake_up, &x, 0, &w);
        }
        // As cheap as without us: servers whose clients are not accelerated live here.
        const int64_t start = w.timeout > 0 ? sys::now_ns() : 0;
        long r = kernel_sleep(w, w.timeout);
        may_sleep.is_awake();
        {
            SetGuard g(x);
            CleanupStack::forget_to(mark);
            finish_sleep(x);
        }
        if (r <= 0)
            return r;
        Found f = sift(x, w.user, r);
        if (f.channel)
            channel_lost(x);
        if (f.count)
            return f.count;
        if (w.timeout > 0 && (w.timeout -= sys::now_ns() - start) < 0)
            w.timeout = 0;
    }
    long r = round(w, w.timeout == 0 ? Look::with_kernel : Look::normal);
    if (r != 0 || w.timeout == 0)
        return r;
    const int64_t start = sys::now_ns();
    const int64_t deadline = w.timeout < 0 || w.timeout > INT64_MAX - start ? INT64_MAX : start + w.timeout;
    CallMask during(w.mask);
    if (during.blocks_more())
        w.handled = self.handled;
    for (;;) {
        if (x.streams) {
            r = spin(w);
            if (r != 0)
                return r;
        }
        r = provide(w);
        if (r != 0)
            return r;
        r = sleep_once(w, deadline);
        if (r < 0)
            return r;
        if (r > 0) { // ours that came meanwhile go with them
            if (r < w.room) {
                epoll_event found[kBatch];
                unsigned n;
                {
                    SetGuard g(x);
                    n = scan(x, found,
                             static_cast<unsigned>(w.room - r < static_cast<long>(kBatch) ? w.room - r : kBatch),
                             true);
                }
                long kept = n && x.duals ? drop_doubles(w, found, n, 0, r) : r;
                if (n && sd_copy(w.user + kept, found, n * sizeof *found))
                    return kept;
                r = kept + n;
            }
            return r;
        }
        r = round(w, Look::normal);
        if (r != 0)
            return r;
        if (self.handled != w.handled)
            return -EINTR;
        if (deadline != INT64_MAX && sys::now_ns() >= deadline)
            return 0;
    }
}

/// The wait has noticed that there are accelerated members, or ends: nobody has to ring for it any more.
void leave_plain(Wait &w) noexcept {
    SetGuard g(w.x);
    --w.x.plain;
    w.plain = false;
    CleanupStack::forget_to(w.cleanups);
    CleanupStack::push(unuse, &w.x, 0, &w);
}

/// No accelerated member: the kernel does it all.
long wait_plain(Wait &w) noexcept {
    const int64_t start = w.timeout > 0 ? sys::now_ns() : 0;
    const int64_t whole = w.timeout;
    bool again = true;
    for (;;) {
        long r = kernel_sleep(w, w.timeout);
        if (r < 0 || !w.x.has_bell.load(std::memory_order_acquire))
            return r;
        if (r > 0) {
            Found f = sift(w.x, w.user, r);
            if (f.channel)
                channel_lost(w.x);
            if (f.count)
                return f.count;
        }
        if (w.x.ours) {
            if (whole > 0 && (w.timeout = whole - (sys::now_ns() - start)) < 0)
                w.timeout = 0;
            leave_plain(w);
            return wait_accelerated(w);
        }
        if (r > 0 && r == w.room && again) { // as in look_at_kernel
            again = false;
            continue;
        }
        if (whole > 0) {
            w.timeout = whole - (sys::now_ns() - start);
            if (w.timeout <= 0)
                return 0;
        } else if (whole == 0 || r == 0) {
            return 0;
        }
    }
}

} // namespace

namespace vfs {

long epoll_wait(int ep, epoll_event *e, int n, const timespec *timeout, const sigset_t *mask) noexcept {
    File *f = file_of(ep);
    if (!f || f->kind != FileKind::epoll)
        return kPass;
    if (n <= 0 || n > static_cast<int>(INT32_MAX / sizeof(epoll_event)))
        return -EINVAL;
    if (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec > 999'999'999))
        return -EINVAL;
    uint64_t asked;
    if (mask && sd_copy(&asked, mask, sizeof asked))
        return -EFAULT;
    CleanupStack::drop_abandoned(__builtin_frame_address(0));
    Epoll &x = *f->epoll;
    int64_t ns = -1;
    if (timeout)
        ns = timeout->tv_sec > 9'000'000'000 ? INT64_MAX : timeout->tv_sec * 1'000'000'000 + timeout->tv_nsec;
    bool open, plain = false;
    {
        SetGuard g(x);
        open = is_open(x, *f, ep);
        if (open) {
            begin_use(x);
            ++x.users; // before `ours` is read: see count_ours()
            plain = x.ours == 0;
            if (plain)
                ++x.plain;
        }
    }
    if (!open) [[unlikely]] // closed just now
        return epoll_wait(ep, e, n, timeout, mask);
    Wait w{x, ep, e, n, ns, mask ? &asked : nullptr, self.handled, CleanupStack::mark(), plain};
    CleanupStack::push(unuse, &x, plain, &w);
    const long r = plain ? wait_plain(w) : wait_accelerated(w);
    if (w.plain)
        leave_plain(w);
    if (x.sleepers || x.plain) [[unlikely]] {
        SetGuard g(x);
        hand_over(x);
    }
    CleanupStack::forget_to(w.cleanups);
    set_unuse(x);
    return r;
}

} // namespace vfs

} // namespace sd
