// Waiting for a list of descriptors, some of them accelerated.
#include "libsd/vfs/readiness/poll_wait.hpp"
#include "libsd/control/client.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/vfs/paths/kernel_calls.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/readiness/sleep.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/vfs.hpp"
#include <algorithm>

namespace sd {

namespace {

constexpr short kAlwaysTold = POLLERR | POLLHUP | POLLNVAL;

/// As for epoll instances: a thread whose polls are answered without the kernel many times in a row looks
/// there by time only.
struct Busy {
    uint32_t streak;
    uint32_t rounds;
    int64_t kernel_look;
};
constinit thread_local Busy busy{};

struct Poll {
    PollList &l;
    size_t kernel_n = 0; ///< entries of l.kernel
    bool streams = false, listeners = false, sets = false;
    bool paths = false;   ///< some have sockets besides
    bool links = false;   ///< anything in shared memory to look at
    bool changed = false; ///< a number stands for something else by now: the list is to be sorted anew
    uint64_t handled;
    PinnedList pinned{l}; ///< from the first sleep on
};

bool is_set(const File *f) noexcept { return f->kind == FileKind::epoll; }

/// Listeners and epoll instances have a kernel side as well.
bool in_kernel_too(const File *f) noexcept {
    return f->kind == FileKind::listener || f->kind == FileKind::epoll;
}

/// Has it a socket, which a sleep has to look at for some of the time?
bool is_on_paths(const File *f) noexcept { return f && f->kind == FileKind::stream && has_paths(*f->ofd); }

short wanted(const pollfd &p, uint32_t events) noexcept {
    return static_cast<short>(static_cast<short>(events) & (p.events | kAlwaysTold));
}

/// Has another process given it a path that the list does not know of (vfs/paths/adopt.hpp)?
bool has_got_paths(const Poll &p, size_t i, const File &f) noexcept {
    return is_on_paths(&f) && !std::binary_search(p.l.from, p.l.from + p.kernel_n, static_cast<uint32_t>(i));
}

/// Accelerated descriptors that are ready; sets their revents.
long look_at_ours(Poll &p) noexcept {
    long ready = 0;
    for (size_t i = 0; i < p.l.n; ++i) {
        pollfd &e = p.l.all[i];
        e.revents = 0;
        if (File *f = p.l.file[i]) {
            if (f->exchanged.load(std::memory_order_relaxed) ||
                ((moved(*f) || has_got_paths(p, i, *f)) && !p.pinned.taken_away(i))) [[unlikely]] {
                p.changed = true;
                return 1;
            }
            const bool spent = p.pinned.spent(i);
            e.revents = spent ? short{0} : wanted(e, file_events(*f));
            if (is_set(f) && f->epoll->has_moved) [[unlikely]]
                follow_moved_members(*f->epoll); // the kernel tells of them from now on
            if ((spent || e.revents) && p.pinned.taken_away(i)) [[unlikely]]
                e.revents = p.pinned.look_anew(i);
            ready += e.revents != 0;
        }
    }
    return ready;
}

/// Adds what kernel_n entries of the kernel list say. Returns how many more entries of the whole list are
/// ready.
long merge(Poll &p) noexcept {
    long more = 0;
    for (size_t k = 0; k < p.kernel_n; ++k) {
        short r = p.l.kernel[k].revents;
        if (p.paths && is_on_paths(p.l.file[p.l.from[k]])) [[unlikely]]
            continue; // what it means is for look_at_ours() to say
        if (r && p.listeners && p.pinned.taken_away(p.l.from[k])) [[unlikely]]
            r = p.pinned.missed(k) ? short{0} : p.pinned.look_anew(p.l.from[k]);
        if (!r)
            continue;
        pollfd &e = p.l.all[p.l.from[k]];
        File *f = p.l.file[p.l.from[k]];
        if (f && f->kind == FileKind::epoll) // maybe it is only its doorbell
            if (Epoll &x = *f->epoll; x.has_bell.load(std::memory_order_acquire) &&
                                      !(r & ~POLLIN & ~POLLRDNORM) && !kernel_part_ready(x))
                continue;
        more += e.revents == 0;
        e.revents = static_cast<short>(e.revents | r);
    }
    return more;
}

/// Before a sleep: for which of those with paths the kernel's socket is to be looked at.
void aim_at_sockets(Poll &p, Sleep &sleep) noexcept {
    constexpr int64_t kLookAgain = 1'000'000;
    for (size_t k = 0; k < p.kernel_n; ++k) {
        const size_t i = p.l.from[k];
        File *f = p.l.file[i];
        if (!is_on_paths(f))
            continue;
        const int fd = path_socket(*f);
        const auto asked = static_cast<uint32_t>(static_cast<uint16_t>(p.l.all[i].events));
        const uint32_t events = (asked & (POLLIN | POLLRDNORM) ? EPOLLIN : 0u) | (asked & EPOLLRDHUP) |
                                (asked & (POLLOUT | POLLWRNORM) ? EPOLLOUT : 0u) | (asked & EPOLLPRI);
        short wanted = fd < 0 ? short{0} : socket_wait(fd, *f, events);
        if ((wanted & POLLIN) && low_water(*f->ofd) > 1) {
            wanted = 0;
            sleep.not_after(sys::now_ns() + kLookAgain);
        }
        p.l.kernel[k] = {wanted ? fd : -1, wanted, 0};
    }
}

/// With a mask, a signal that it lets through ends even a call that only looks.
long look_at_kernel(Poll &p, const uint64_t *mask = nullptr) noexcept {
    if (p.kernel_n == 0 && !mask)
        return 0;
    if (p.listeners)
        p.pinned.find_listeners(p.kernel_n);
    timespec zero{0, 0};
    const TrueMask before(mask != nullptr);
    long r = sys::ppoll(p.l.kernel, p.kernel_n, &zero, mask);
    return r <= 0 ? r : merge(p);
}

bool kernel_due(bool by_time) noexcept {
    return kernel_is_due(busy.streak, by_time, busy.rounds, busy.kernel_look);
}

template <class F> void for_each_link(Poll &p, F f) noexcept {
    LinkMap *last = nullptr;
    for (size_t i = 0; i < p.l.n; ++i) {
        if (LinkMap *l = p.l.link[i]; l && l != last)
            f(*(last = l), nullptr);
        File *file = p.l.file[i];
        if (!file || !p.listeners || file->kind != FileKind::listener)
            continue;
        Listener &listener = *file->listener;
        QuietGuard g(listener.lock);
        for (auto &ref : listener.links)
            f(*ref.link, &ref.link->view.header().side[1].syn_arm);
    }
}

/// Doorbell ids, announcements of new links, the doorbells of instances: everything that may need the
/// monitor. False: nobody can be counted on to ring.
bool provide(Poll &p, Bell &bell) noexcept {
    bool ok = control::connected() && bell.efd >= 0;
    for (size_t i = 0; i < p.l.n; ++i) {
        File *f = p.l.file[i];
        if (!f)
            continue;
        if (p.l.link[i]) {
            ok = bell_id(bell, *p.l.link[i]) != 0 && ok;
        } else if (f->kind == FileKind::listener) {
            LinkMap *links[64];
            unsigned n = listener_links(*f->listener, links, 64);
            ok = n <= 64 && listener_announces(*f->listener, bell) && ok;
            p.links |= n > 0;
            for (unsigned k = 0; k < n && k < 64; ++k)
                ok = bell_id(bell, *links[k]) != 0 && ok;
        } else if (is_set(f)) {
            provide_bells(*f->epoll);
        }
    }
    return ok;
}

/// Up to the barrier, with it. `p.links`: there is anything to be armed.
void arm(Poll &p, Bell &bell, Sleep &sleep) noexcept {
    const uint64_t handled = self.handled;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    bool unfenced = p.sets;
    if (p.sets)
        sleep.any_link_may_ring();
    for_each_link(p, [&](LinkMap &l, std::atomic<uint64_t> *syn) {
        if (const unsigned id = sleep.announce(l); id && syn)
            unfenced |= Sleeper::arm(*syn, id);
    });
    bool blind = false;
    for (size_t i = 0; i < p.l.n; ++i) {
        File *f = p.l.file[i];
        if (!f)
            continue;
        if (LinkMap *link = p.l.link[i]) {
            if (unsigned id = bell.id[link->index])
                unfenced |= arm_stream(*f, id, true, p.l.all[i].events & (POLLOUT | POLLWRNORM | POLLWRBAND));
        } else if (is_set(f)) {
            SetGuard g(*f->epoll);
            prepare_sleep(*f->epoll, &blind);
        }
    }
    if (blind)
        sleep.nobody_rings();
    if (!p.links || !unfenced)
        return;
    sleep.barrier();
    if (p.sets || self.handled != handled)
        return;
    for_each_link(p, [&](LinkMap &l, std::atomic<uint64_t> *syn) {
        if (const unsigned id = bell.id[l.index]; id && syn)
            Sleeper::settle(l, *syn, id);
    });
    for (size_t i = 0; i < p.l.n; ++i)
        if (LinkMap *l = p.l.file[i] ? p.l.link[i] : nullptr)
            if (const unsigned id = bell.id[l->index])
                Sleeper::settle(*l, l->view.slot(p.l.file[i]->slot).side[l->side].control.rx_arm, id);
}

void withdraw(Poll &p, Sleep &sleep) noexcept {
    for_each_link(p, [&](LinkMap &l, std::atomic<uint64_t> *) { sleep.withdraw(l); });
    if (p.sets)
        for (size_t i = 0; i < p.l.n; ++i)
            if (File *f = p.l.file[i]; f && is_set(f)) {
                SetGuard g(*f->epoll);
                finish_sleep(*f->epoll);
            }
}

/// When the first of what peers hold back is due.
int64_t earliest_corked(Poll &p) noexcept {
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < p.l.n; ++i) {
        File *f = p.l.file[i];
        if (!f || (f->kind != FileKind::stream && !is_set(f)))
            continue;
        const int64_t t = f->kind == FileKind::stream ? corked_until(*f) : set_corked_until(*f->epoll);
        first = t < first ? t : first;
    }
    return first;
}

struct Asleep {
    Poll &p;
    Sleep &sleep;
};

/// The thread was cancelled in its sleep.
void give_up_poll(void *asleep) noexcept {
    auto &a = *static_cast<Asleep *>(asleep);
    withdraw(a.p, a.sleep);
    a.p.pinned.end();
}

/// A sum that changes when a listener gets a link, which is not armed then (Listener::seen_sequence).
uint64_t links_seen(Poll &p) noexcept {
    uint64_t sum = 0;
    for (size_t i = 0; (p.listeners || p.sets) && i < p.l.n; ++i)
        if (File *f = p.l.file[i]; f && f->kind == FileKind::listener) {
            sum += f->listener->seen_sequence.load(std::memory_order_acquire);
        } else if (f && is_set(f)) {
            SetGuard g(*f->epoll);
            sum += links_seen(*f->epoll);
        }
    return sum;
}

/// Sleeps once. The number of ready entries, 0 to look again, or -errno.
long sleep_once(Poll &p, Bell &bell, int64_t deadline, const uint64_t *mask) noexcept {
    Sleep sleep(bell, deadline);
    bool heard;
    long before = 0;
    {
        // What comes before a signal is seen, and what its handler does is not: it runs at the end of this.
        const PutOff put_off;
        heard = provide(p, bell);
        if (self.deferred) [[unlikely]]
            before = look_at_ours(p);
    }
    if (before != 0 || self.handled != p.handled) [[unlikely]]
        return before != 0 ? before : -EINTR;
    if (!heard)
        sleep.nobody_rings();
    const uint64_t seen = links_seen(p);
    arm(p, bell, sleep);
    long ready = look_at_ours(p);
    long r = 0;
    if (ready == 0 && links_seen(p) == seen) {
        if (p.listeners)
            p.pinned.find_listeners(p.kernel_n);
        if (p.paths) [[unlikely]]
            aim_at_sockets(p, sleep);
        if (p.streams)
            sleep.not_after(earliest_corked(p));
        Asleep asleep{p, sleep};
        r = sleep.in_poll(p.l.kernel, p.kernel_n, mask, p.handled, give_up_poll, &asleep);
    }
    withdraw(p, sleep);
    if (r < 0)
        return r == -ECANCELED ? -EINTR : r;
    ready = look_at_ours(p);
    return r > 0 ? ready + merge(p) : ready;
}

} // namespace

bool poll_classify(PollList &l) noexcept {
    bool any = false;
    // First of all: a connection that is joined makes a set ours that it is in, which may stand before it.
    const bool some_join = all_begin_in_kernel() || is_discovery_on();
    for (size_t i = 0; some_join && i < l.n; ++i)
        if (File *f = l.all[i].fd < 0 ? nullptr : file_of(l.all[i].fd))
            leave_unjoined(l.all[i].fd, *f);
    for (size_t i = 0; i < l.n; ++i) {
        File *f = l.all[i].fd < 0 ? nullptr : still_ours(l.all[i].fd, file_of(l.all[i].fd));
        if (f && (f->kind == FileKind::free || (f->kind == FileKind::fresh && f->real_socket) ||
                  (f->kind == FileKind::epoll && !f->epoll->has_bell.load(std::memory_order_acquire))))
            f = nullptr;
        l.file[i] = f;
        any |= f != nullptr;
    }
    return any;
}

namespace {

/// As poll_wait(). `*changed`: the list is to be sorted anew, and nothing else counts.
long wait_sorted(PollList &l, int64_t timeout_ns, const uint64_t *mask, uint64_t handled, bool *changed) noexcept {
    Poll p{.l = l, .handled = handled};
    const struct Report {
        ~Report() { *to = p.changed; }
        Poll &p;
        bool *to;
    } report{p, changed};
    for (size_t i = 0; i < l.n; ++i) {
        File *f = l.file[i];
        if (f) {
            p.streams |= f->kind == FileKind::stream || is_set(f);
            p.listeners |= f->kind == FileKind::listener;
            p.sets |= is_set(f);
            p.links = p.streams;
        }
        const bool paths = is_on_paths(f);
        p.paths |= paths;
        if (l.all[i].fd >= 0 && (!f || in_kernel_too(f) || paths)) {
            l.kernel[p.kernel_n] = {paths ? -1 : l.all[i].fd, l.all[i].events, 0};
            l.from[p.kernel_n++] = static_cast<uint32_t>(i);
        }
    }
    long ready = look_at_ours(p);
    if (ready) {
        if (p.kernel_n && kernel_due(false)) {
            long more = look_at_kernel(p);
            ready += more > 0 ? more : 0;
        }
        if (busy.streak < kBusyStreak)
            ++busy.streak;
        return ready;
    }
    if (timeout_ns == 0 || (p.kernel_n && p.streams)) {
        ready = look_at_kernel(p, timeout_ns == 0 ? mask : nullptr);
        if (ready != 0 || timeout_ns == 0)
            return ready;
    }
    const int64_t start = sys::now_ns();
    const int64_t deadline = timeout_ns < 0 || timeout_ns > INT64_MAX - start ? INT64_MAX : start + timeout_ns;
    Bell *bell = thread_bell();
    if (!bell)
        return -ENOMEM;
    CallMask during(mask);
    if (during.blocks_more())
        p.handled = self.handled;
    for (;;) {
        if (p.streams) {
            SpinMask swapped(mask);
            Spinner s(*bell);
            do {
                ready = look_at_ours(p);
                if (ready == 0 && self.handled != p.handled)
                    return -EINTR;
                if (ready)
                    s.paid();
                else if (p.kernel_n && kernel_due(true))
                    ready = look_at_kernel(p);
                if (ready) {
                    if (busy.streak < kBusyStreak)
                        ++busy.streak;
                    return ready;
                }
            } while (s.again());
        }
        busy.streak = 0;
        if (!p.pinned.begin()) {
            p.changed = true;
            return 0;
        }
        ready = sleep_once(p, *bell, deadline, mask);
        if (ready != 0)
            return ready;
        if (self.handled != p.handled)
            return -EINTR;
        if (deadline != INT64_MAX && sys::now_ns() >= deadline)
            return p.pinned.look_anew();
    }
}

/// The kernel has them all.
long kernel_poll(PollList &l, int64_t timeout_ns, const uint64_t *mask) noexcept {
    const timespec t{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    return cancellable([](void *) { CleanupStack::give_back_all(); }, nullptr,
                       [&] {
                           const TrueMask before(mask != nullptr);
                           return sys::ppoll(l.all, l.n, timeout_ns < 0 ? nullptr : &t, mask);
                       });
}

} // namespace

long poll_wait(PollList &l, int64_t timeout_ns, const uint64_t *mask) noexcept {
    const uint64_t handled = self.handled;
    const int64_t start = timeout_ns > 0 ? sys::now_ns() : 0;
    int64_t left = timeout_ns;
    for (;;) {
        bool changed = false;
        const long r = wait_sorted(l, left, mask, handled, &changed);
        if (!changed) [[likely]]
            return r;
        if (timeout_ns > 0) {
            left = timeout_ns - (sys::now_ns() - start);
            left = left > 0 ? left : 0;
        }
        if (!poll_classify(l)) // follows
            return kernel_poll(l, left, mask);
    }
}

} // namespace sd
