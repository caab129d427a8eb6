// The kernel's half of an epoll instance: our own registrations in it, and what it returns.
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"

namespace sd {

char waker_data[2 + kNestedSets];
// Threads that wait on one instance must not register its doorbell twice.
SD_FORK_STATE constinit Lock provide_lock;

namespace {

constexpr long kPwait2 = 441;
constexpr unsigned kAtOnce = 32;

/// Another process has a doorbell in the set, from before or after a fork, and it has not answered it yet. Do
/// not spin until it does.
void wait_for_relative() noexcept {
    timespec t{0, 200'000};
    sys::ppoll(nullptr, 0, &t, nullptr);
}

/// Keeps a nested set in memory; its member item, seen with the outer lock, says that it is alive.
void use_inner(Epoll &x) noexcept {
    SetGuard g(x);
    ++x.users;
}

/// The kernel says that the nested set is readable, maybe only for its doorbell. True: report it.
bool nested_is_ready(Epoll &x, unsigned place, epoll_event *e) noexcept {
    EpollItem *i;
    Epoll *inner = nullptr;
    {
        SetGuard g(x);
        i = x.nested[place];
        if (i && i->file->kind == FileKind::epoll && (inner = i->file->epoll))
            use_inner(*inner);
    }
    if (!inner)
        return false;
    const bool kernels = kernel_part_ready(*inner);
    bool ready = kernels;
    uint64_t arrivals;
    {
        SetGuard g(*inner);
        if (!ready || inner->watched)
            ready |= any_ready(*inner);
        arrivals = inner->arrivals;
    }
    set_unuse(*inner);
    if (!ready)
        return false;
    SetGuard g(x);
    if (x.nested[place] != i || i->off || i->reported == x.passes)
        return false;
    if (i->events & kEdge) {
        // The kernel's edge may be that of the doorbell, which also rings for what is no news.
        if (!kernels && !i->due && arrivals == i->rx_at)
            return false;
        i->due = false;
        i->rx_at = arrivals;
        i->level |= EPOLLIN & i->events;
    }
    if (i->events & EPOLLONESHOT)
        i->off = true;
    i->reported = x.passes;
    e->events = EPOLLIN & i->events;
    e->data.u64 = i->data;
    return e->events != 0;
}

/// A one-shot listener was reported by the kernel's half: ours is silent from now on, too.
void note_one_shot(Epoll &x, const epoll_event *e, long n) noexcept {
    SetGuard g(x);
    for (EpollItem *i : x.items)
        if (i->kernel_too && (i->events & EPOLLONESHOT) && !i->off && i->file->kind == FileKind::listener)
            for (long k = 0; k < n; ++k)
                if (e[k].data.u64 == i->data)
                    i->off = true;
}

} // namespace

long kernel_wait(int ep, epoll_event *e, int n, int64_t ns, const void *mask) noexcept {
    if (ns <= 0)
        return sys::epoll_pwait(ep, e, n, ns < 0 ? -1 : 0, mask);
    static std::atomic<bool> no_pwait2{false};
    const int64_t ms = (ns + 999'999) / 1'000'000;
    if (ns % 1'000'000 != 0 && !no_pwait2.load(std::memory_order_relaxed)) {
        timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
        long r = sys::call(kPwait2, ep, sys::arg(e), n, sys::arg(&t), sys::arg(mask), 8);
        if (r != -ENOSYS && r != -EPERM) // EPERM: a sandbox that does not know the call
            return r;
        no_pwait2.store(true, std::memory_order_relaxed);
    }
    return sys::epoll_pwait(ep, e, n, ms > INT32_MAX ? INT32_MAX : static_cast<int>(ms), mask);
}

void register_wakers(Epoll &x) noexcept {
    const int ep = set_fd(x);
    if (ep < 0 || !x.bell)
        return;
    epoll_event e{};
    if (!x.channel_known) {
        e.events = EPOLLIN;
        e.data.u64 = waker_word(kBellWord);
        sys::epoll_ctl(ep, EPOLL_CTL_ADD, x.bell->efd, &e);
        x.foreign_known = false;
    }
    if (const int foreign = x.bell->foreign.set.load(std::memory_order_acquire);
        foreign >= 0 && !x.foreign_known) [[unlikely]] {
        e.events = EPOLLIN;
        e.data.u64 = waker_word(kBellWord);
        sys::epoll_ctl(ep, EPOLL_CTL_ADD, foreign, &e);
        x.foreign_known = true;
    }
    x.channel_epoch = control::epoch();
    x.channel_known = true;
    if (int c = control::channel(); c >= 0) {
        e.events = 0; // errors and hang-ups only
        e.data.u64 = waker_word(kChannelWord);
        sys::epoll_ctl(ep, EPOLL_CTL_ADD, c, &e);
        x.channel_fd = c;
    }
}

void channel_lost(Epoll &x) noexcept {
    const bool well = control::maintain();
    SetGuard g(x);
    const bool current = well && x.channel_fd == control::channel() && x.channel_epoch == control::epoch();
    if (x.channel_fd >= 0 && !current) {
        sys::epoll_ctl(set_fd(x), EPOLL_CTL_DEL, x.channel_fd, nullptr);
        x.channel_fd = -1;
        x.channel_epoch = control::epoch() - 1; // so that the next one is registered
    }
}

void provide_bells(Epoll &x) noexcept {
    LinkMap *link[kAtOnce];
    struct {
        EpollItem *item;
        Listener *listener;
    } announce[kAtOnce];
    Epoll *inner[kNestedSets];
    unsigned links = 0, listeners = 0, inners = 0;
    Bell *bell;
    {
        SetGuard g(x);
        bell = x.bell;
        if (!bell)
            return;
        if (bell->efd < 0 && complete_bell(*bell)) [[unlikely]]
            x.channel_known = false;
        if (!x.channel_known || x.channel_epoch != control::epoch())
            register_wakers(x);
        auto want = [&](LinkMap &l) {
            if (!bell->id[l.index] && links < kAtOnce)
                link[links++] = &l;
        };
        for (auto &e : x.links)
            want(*e.link);
        if (x.duals)
            for (EpollItem *i : x.items) {
                if (!i->kernel_too)
                    continue;
                if (i->file->kind == FileKind::listener) {
                    Listener &l = *i->file->listener;
                    if (i->bell_epoch != control::epoch() + 1 && control::connected() && listeners < kAtOnce) {
                        i->bell_epoch = control::epoch() + 1;
                        announce[listeners++] = {i, &l};
                    }
                    QuietGuard lg(l.lock);
                    for (auto &ref : l.links)
                        want(*ref.link);
                } else if (Epoll *n = i->file->epoll; n && inners < kNestedSets) {
                    use_inner(*n);
                    inner[inners++] = n;
                }
            }
    }
    // Links and listeners are type-stable: one that goes meanwhile makes the monitor refuse.
    if (links) {
        QuietGuard one(provide_lock);
        for (unsigned k = 0; k < links; ++k)
            bell_id(*bell, *link[k]);
        if (bell->foreign.set.load(std::memory_order_relaxed) >= 0) [[unlikely]] {
            SetGuard g(x);
            if (!x.foreign_known && x.bell == bell)
                register_wakers(x);
        }
    }
    for (unsigned k = 0; k < listeners; ++k) {
        if (listener_bell(*announce[k].listener, *bell) == 0)
            continue;
        SetGuard g(x);
        for (EpollItem *i : x.items)
            if (i == announce[k].item)
                i->bell_epoch = 0;
    }
    for (unsigned k = 0; k < inners; ++k) {
        provide_bells(*inner[k]);
        set_unuse(*inner[k]);
    }
}

bool kernel_part_ready(Epoll &x) noexcept {
    {
        SetGuard g(x);
        if (x.bell && x.sleepers == 0)
            drain(*x.bell), drain_sockets(x);
    }
    pollfd p{set_fd(x), POLLIN, 0};
    timespec zero{0, 0};
    return p.fd >= 0 && sys::ppoll(&p, 1, &zero, nullptr) > 0 && (p.revents & POLLIN);
}

Found sift(Epoll &x, epoll_event *e, long n) noexcept {
    Found f{0, false, false};
    for (long k = 0; k < n; ++k) {
        int w = waker_number(e[k].data.u64);
        if (w < 0) [[likely]] {
            if (f.count != k)
                e[f.count] = e[k];
            ++f.count;
        } else if (w == static_cast<int>(kBellWord)) {
            f.rung = true;
        } else if (w == static_cast<int>(kChannelWord)) {
            f.channel = true;
        } else if (epoll_event nested; nested_is_ready(x, static_cast<unsigned>(w) - kNestedWord, &nested)) {
            e[f.count++] = nested;
        }
    }
    if (f.rung && x.sockets >= 0) [[unlikely]] {
        SetGuard g(x);
        drain_sockets(x);
    }
    if (f.rung && !drain(*x.bell) && (x.born != forks_done.load(std::memory_order_relaxed)))
        wait_for_relative();
    if (x.duals && f.count)
        note_one_shot(x, e, f.count);
    return f;
}

} // namespace sd
