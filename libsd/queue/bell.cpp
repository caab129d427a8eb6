// Doorbells: registration with the monitor, and the decision between looking and sleeping.
#include "libsd/queue/bell.hpp"
#include "libsd/control/around_fork.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/confine.hpp"
#include "libsd/control/hidden_fd.hpp"
#include <sys/eventfd.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<Bell> pool;
SD_FORK_STATE constinit Lock list_lock;
SD_FORK_STATE Bell *all = nullptr;

// Nanoseconds. The sum is about what waking an idle core costs.
constexpr int64_t kSpin = 20'000, kYield = 40'000, kShortSpin = 1'000;
constexpr int64_t kSharedCoreYield = 800; ///< a yield longer than this means that somebody else ran (alone: 230)
constexpr unsigned kLooks = 16;           ///< between looks at the clock
constexpr int kMaxScore = 8;
constexpr int64_t kCrowdedYield = 100'000; ///< somebody used a long slice: yielding costs more than sleeping
constexpr int64_t kCrowdedFor = 20'000'000, kCrowdedLongest = 1'280'000'000;
constexpr int kStall = 8,
              kStalls = 3 * kStall; ///< so many long slices with fewer than kStall other yields between them: crowded
std::atomic<int> stalls{0};
constexpr int kProbe = 64; ///< where spinning alone did not pay it is tried this seldom
std::atomic<int64_t> crowded_until{0}, crowded_for{0};
std::atomic<int> shared_core{0}; ///< > 0: recent yields gave the core to somebody

/// Among threads that only yield to each other no yield takes long; among others, one that yields waits for their slices again and again. A
/// single long wait says nothing, and sleeping because of it would make the others wait: they would all end up asleep.
void note_stall(int64_t now, int64_t took) noexcept {
    int n = stalls.load(std::memory_order_relaxed);
    if (took <= kCrowdedYield) {
        if (n > 0)
            stalls.store(n - 1, std::memory_order_relaxed);
        return;
    }
    n += kStall;
    int64_t last = crowded_for.load(std::memory_order_relaxed);
    const bool again = last && now - crowded_until.load(std::memory_order_relaxed) < 5 * kCrowdedFor;
    if (n < (again ? kStalls - kStall : kStalls)) {
        stalls.store(n, std::memory_order_relaxed);
        return;
    }
    // Again soon after the last such time: for twice as long.
    last = !again ? kCrowdedFor : last < kCrowdedLongest ? 2 * last : last;
    crowded_for.store(last, std::memory_order_relaxed);
    // All processes try again at the same instants: one that yields among those that still sleep learns nothing.
    crowded_until.store((now + took) / last * last + last, std::memory_order_relaxed);
    stalls.store(0, std::memory_order_relaxed);
}

/// sched_yield at `now`, learning from how long it takes, which it returns.
int64_t timed_yield(int64_t now) noexcept {
    sys::sched_yield();
    const int64_t took = sys::now_ns() - now;
    note_stall(now, took);
    const int shared = shared_core.load(std::memory_order_relaxed);
    if (took > kSharedCoreYield) {
        if (shared < 64)
            shared_core.store(shared + 16, std::memory_order_relaxed);
    } else if (shared > 0) {
        shared_core.store(shared - 1, std::memory_order_relaxed);
    }
    return took;
}

void watch_nothing() noexcept {}

} // namespace

void (*watch_thread)() noexcept = watch_nothing;

namespace {

long hidden_eventfd() noexcept {
    SpareNumbers spare;
    const long fd = sys::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd < 0 ? fd : hide_fd(static_cast<int>(fd));
}

Bell *bell_of(int fd) noexcept {
    Bell *b = pool.allocate();
    if (!b) {
        close_hidden(fd);
        return nullptr;
    }
    b->efd = fd;
    for (auto &i : b->id)
        i = 0;
    b->score.store(kMaxScore, std::memory_order_relaxed);
    b->spin_score.store(kMaxScore, std::memory_order_relaxed);
    LockGuard g(list_lock);
    b->all_next = all;
    all = b;
    return b;
}

} // namespace

Bell *make_bell() noexcept {
    if (confined())
        return nullptr;
    const long fd = hidden_eventfd();
    return bell_of(fd < 0 ? -1 : static_cast<int>(fd));
}

bool complete_bell(Bell &b) noexcept {
    const long fd = hidden_eventfd();
    if (fd >= 0)
        b.efd = static_cast<int>(fd);
    return fd >= 0;
}

void bells_moved(int from, int to) noexcept {
    LockGuard g(list_lock);
    for (Bell *b = all; b; b = b->all_next)
        if (b->efd == from)
            b->efd = to;
}

void free_bell(Bell *b) noexcept {
    {
        LockGuard g(list_lock);
        for (Bell **p = &all; *p; p = &(*p)->all_next)
            if (*p == b) {
                *p = b->all_next;
                break;
            }
    }
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = b->id[i] ? link_by_index(i) : nullptr) {
            wire::BellRef ref{l->id, l->side, b->id[i]};
            control::request(wire::Op::unbell, &ref, sizeof ref);
        }
    close_hidden(b->efd);
    b->efd = -1;
    pool.release(b);
}

Bell *looking_bell() noexcept {
    if (!self.bell) {
        watch_thread();
        self.bell = make_bell();
    }
    return self.bell;
}

Bell *thread_bell() noexcept {
    Bell *b = looking_bell();
    if (b && b->efd < 0) [[unlikely]]
        complete_bell(*b);
    return b;
}

unsigned bell_id(Bell &b, LinkMap &l) noexcept {
    if (b.id[l.index]) [[likely]]
        return b.id[l.index];
    if (b.efd < 0 && !complete_bell(b))
        return 0;
    wire::Bell want{l.id, l.side, 0};
    auto r = control::request(wire::Op::bell, &want, sizeof want, &b.efd, 1);
    if (r.status < 0 || r.length != sizeof(wire::BellReply))
        return 0;
    uint32_t id = r.as<wire::BellReply>().id;
    if (id < kFirstDoorbell || id > kLastDoorbell)
        return 0;
    b.id[l.index] = static_cast<uint8_t>(id);
    return id;
}

void forget_link(LinkMap &l) noexcept {
    LockGuard g(list_lock);
    for (Bell *b = all; b; b = b->all_next)
        b->id[l.index] = 0;
}

void ring_own(LinkMap &l, uint32_t slot, uint64_t ids) noexcept {
    ids &= ~(uint64_t{1} | uint64_t{1} << 63);
    if (!ids)
        return;
    for (uint64_t m = ids; m; m &= m - 1) {
        const unsigned id = static_cast<unsigned>(__builtin_ctzll(m));
        l.view.ready_word(l.side, id, slot / 64).fetch_or(uint64_t{1} << (slot % 64), std::memory_order_seq_cst);
        l.view.ready_summary(l.side, id).fetch_or(uint64_t{1} << (slot / 64), std::memory_order_seq_cst);
    }
    uint64_t one = 1;
    {
        LockGuard g(list_lock);
        for (Bell *b = all; b; b = b->all_next)
            if (const unsigned id = b->id[l.index]; id && (ids >> id & 1)) {
                ids &= ~(uint64_t{1} << id);
                sys::write(b->efd, &one, sizeof one);
            }
    }
    // Waiters in other processes that share the connection. Rare, so their bells are not kept.
    for (ids &= l.view.header().side[l.side].sleep_mask.load(std::memory_order_seq_cst); ids; ids &= ids - 1) {
        const wire::BellRef ref{l.id, l.side, static_cast<uint32_t>(__builtin_ctzll(ids))};
        const auto r = control::request(wire::Op::peer_bell, &ref, sizeof ref);
        for (unsigned i = 0; i < r.fds; ++i) {
            sys::write(r.fd[i], &one, sizeof one);
            sys::close(r.fd[i]);
        }
    }
}

void restore_bells() noexcept {
    LockGuard g(list_lock);
    for (Bell *b = all; b; b = b->all_next)
        for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
            if (LinkMap *l = b->id[i] ? link_by_index(i) : nullptr) {
                wire::Bell want{l->id, l->side, b->id[i]};
                auto r = control::request(wire::Op::bell, &want, sizeof want, &b->efd, 1);
                if (r.status < 0)
                    b->id[i] = 0;
            }
}

SD_FORK_CODE void drop_bells_in_child() noexcept {
    list_lock.reset();
    pool.reset_lock();
    // The Bell objects stay with the epoll instances and threads that point to them: each gets an eventfd of its own.
    for (Bell *b = all; b; b = b->all_next) {
        for (auto &i : b->id)
            i = 0;
        if (b->efd < 0)
            continue;
        if (b == self.bell) { // many a child ends before it sleeps
            close_hidden(b->efd);
            b->efd = -1;
            continue;
        }
        SpareNumbers spare;
        long fd = sys::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (fd < 0)
            continue;
        sys::dup3(static_cast<int>(fd), b->efd, O_CLOEXEC);
        sys::close(static_cast<int>(fd));
    }
}

void drain(Bell &b) noexcept {
    uint64_t n;
    sys::read(b.efd, &n, sizeof n);
}

Spinner::Spinner(Bell &b) noexcept : bell_(b), start_(sys::now_ns()) {
    bool pays = b.score.load(std::memory_order_relaxed) > 0;
    bool shared = shared_core.load(std::memory_order_relaxed) > 0;
    looked_long_ = pays;
    spin_end_ = start_ + (shared ? 0
                          : pays ? kSpin
                                 : kShortSpin); // on a shared core looking keeps the other side away
    yield_end_ = spin_end_ + (pays ? kYield : 0);
    // Among processor-bound threads, a thread that yields waits for all their slices, while one that sleeps is run soon after it is woken.
    if (start_ < crowded_until.load(std::memory_order_relaxed)) {
        looked_long_ = false;
        only_spins_ = true;
        int spins = b.spin_score.load(std::memory_order_relaxed);
        if (spins <= 0) { // counts down to the next try
            b.spin_score.store(spins > -kProbe ? spins - 1 : 1, std::memory_order_relaxed);
            spins = 0;
        }
        spin_end_ = yield_end_ = start_ + (spins > 0 ? kSpin : 0);
    }
    at_ = start_;
    one_look_ = spin_end_ == start_;
    if (one_look_)
        n_ = kLooks - 1; // whoever we wait for waits for the core: no looking before it has had it
}

bool Spinner::again() noexcept {
    if (++n_ % kLooks != 0) {
        __builtin_ia32_pause();
        return true;
    }
    // Where somebody waits for the core there was one look since the clock was read last, which is not worth reading it again.
    const int64_t now = one_look_ ? at_ : sys::now_ns();
    if (now < spin_end_)
        return true;
    if (now >= yield_end_) {
        if (looked_long_)
            bell_.score.fetch_sub(1, std::memory_order_relaxed);
        if (only_spins_ && spin_end_ > start_)
            bell_.spin_score.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }
    one_look_ = shared_core.load(std::memory_order_relaxed) > 0;
    const int64_t took = timed_yield(now);
    yielded_ = true;
    at_ = now + took;
    if (took > kSharedCoreYield) {
        yield_end_ += took - kSharedCoreYield; // time that others used is not spent on looking
        spin_end_ = now;
    }
    n_ = kLooks - 1 -
         (one_look_ ? 0 : kLooks / 2); // look a few times between yields; once when somebody waits for the core
    return true;
}

bool give_core_away() noexcept {
    if (shared_core.load(std::memory_order_relaxed) <= 0)
        return false;
    const int64_t now = sys::now_ns();
    if (now < crowded_until.load(std::memory_order_relaxed))
        return false;
    timed_yield(now);
    return true;
}

bool core_is_shared() noexcept {
    return shared_core.load(std::memory_order_relaxed) > 0 ||
           crowded_until.load(std::memory_order_relaxed) > sys::coarse_now_ns();
}

void Spinner::paid() noexcept {
    if (n_ == 0)
        return;
    if (bell_.score.load(std::memory_order_relaxed) < kMaxScore)
        bell_.score.store(kMaxScore, std::memory_order_relaxed);
    if (!yielded_ && spin_end_ > start_ && bell_.spin_score.load(std::memory_order_relaxed) < kMaxScore)
        bell_.spin_score.store(kMaxScore, std::memory_order_relaxed);
}

void Spinner::slept(Bell &b, int64_t ns, bool event) noexcept {
    // Had we looked for as long as we can, would we have seen it? The wake-up itself is part of what was measured.
    if (event && ns < 2 * (kSpin + kYield))
        b.score.store(kMaxScore, std::memory_order_relaxed);
}

} // namespace sd
