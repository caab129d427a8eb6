// Doorbells: making them, and their registration with the monitor.
#include "libsd/queue/bell.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sandbox_state.hpp"
#include <sys/eventfd.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<Bell> bell_pool;
SD_FORK_STATE constinit Lock list_lock;
SD_FORK_STATE Bell *all_bells = nullptr;

// Programs that make a thread or an epoll instance for each request would ask the monitor for ids each time,
// which takes as long as it takes to be run on a busy machine. A few bells are kept instead, with their ids;
// only a few, since a side of a link has 62 ids for all its processes. They are in the list of all, so that
// they follow links that go and monitors that come; what is left ready under their ids costs the next user a
// look in vain.
constexpr unsigned kMostIdle = 2;
SD_FORK_STATE Bell *idle = nullptr; ///< under list_lock
SD_FORK_STATE unsigned idle_count = 0;

/// Going into a sandbox.
std::atomic<bool> no_foreign_ends{false};

/// At a low number.
SD_FORK_CODE long new_eventfd() noexcept {
    const long fd = sys::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd != -EMFILE)
        return fd;
    SpareNumbers spare;
    return sys::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

SD_FORK_CODE long hidden_eventfd() noexcept {
    const long fd = new_eventfd();
    return fd < 0 ? fd : hide_fd(static_cast<int>(fd));
}

/// A forked child's, too: so no page is written that has nothing to be forgotten.
void forget_registrations(Bell &b) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (b.id[i])
            b.id[i] = 0;
    if (b.announced)
        b.announced = false;
}

void forget_scores(Bell &b) noexcept {
    b.balance.store(kFullBalance, std::memory_order_relaxed);
    b.short_sleeps.store(0, std::memory_order_relaxed);
    b.spin_score.store(kFullScore, std::memory_order_relaxed);
}

Bell *bell_of(int fd) noexcept {
    Bell *b = bell_pool.allocate();
    if (!b) {
        close_hidden(fd);
        return nullptr;
    }
    b->efd = fd;
    forget_registrations(*b);
    forget_scores(*b);
    LockGuard g(list_lock);
    b->all_next = all_bells;
    all_bells = b;
    return b;
}

Bell *take_idle() noexcept {
    LockGuard g(list_lock);
    Bell *b = idle;
    if (b) {
        idle = b->pool_next;
        --idle_count;
    }
    return b;
}

bool keep_idle(Bell &b) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = b.id[i] ? link_by_index(i) : nullptr) {
            auto &mask = l->view.header().side[l->side].sleep_mask;
            const uint64_t bit = uint64_t{1} << b.id[i];
            if (mask.load(std::memory_order_relaxed) & bit)
                mask.fetch_and(~bit, std::memory_order_relaxed);
        }
    LockGuard g(list_lock);
    if (b.efd < 0 || idle_count == kMostIdle)
        return false;
    b.pool_next = idle;
    idle = &b;
    ++idle_count;
    return true;
}

void end_bell(Bell &b) noexcept {
    {
        LockGuard g(list_lock);
        for (Bell **p = &all_bells; *p; p = &(*p)->all_next)
            if (*p == &b) {
                *p = b.all_next;
                break;
            }
    }
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = b.id[i] ? link_by_index(i) : nullptr) {
            wire::BellRef ref{l->id, l->side, b.id[i]};
            control::request(wire::Op::unbell, &ref, sizeof ref);
        }
    if (b.announced && b.efd >= 0)
        control::request(wire::Op::mute_bell, nullptr, 0, &b.efd, 1);
    close_hidden(b.efd);
    b.efd = -1;
    close_foreign_ends(b);
    bell_pool.release(&b);
}

bool end_idle() noexcept {
    Bell *b = take_idle();
    if (b)
        end_bell(*b);
    return b != nullptr;
}

} // namespace

Bell *make_bell() noexcept {
    if (sandboxed())
        return nullptr;
    if (Bell *b = take_idle()) {
        drain(*b);
        forget_scores(*b);
        return b;
    }
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
    for (Bell *b = all_bells; b; b = b->all_next) {
        if (b->efd == from)
            b->efd = to;
        else
            foreign_ends_moved(*b, from, to);
    }
}

void free_bell(Bell *b, bool alone) noexcept {
    if (!alone || !keep_idle(*b))
        end_bell(*b);
}

Bell *looking_bell() noexcept {
    if (!self.bell) {
        upward.watch_thread();
        self.bell = make_bell();
    }
    return self.bell;
}

Bell *thread_bell() noexcept {
    Bell *b = looking_bell();
    if (b && b->efd < 0) [[unlikely]]
        (void)complete_bell(*b); // else it has none, as the callers see
    return b;
}

unsigned bell_id(Bell &b, LinkMap &l) noexcept {
    if (b.id[l.index]) [[likely]]
        return b.id[l.index];
    if (b.efd < 0 && !complete_bell(b))
        return 0;
    wire::Bell want{l.id, l.side, 0};
    auto r = control::request(wire::Op::bell, &want, sizeof want, &b.efd, 1);
    while ((r.status == -ENOSPC || r.status == -EMFILE) && end_idle()) // no id left, or no more for us
        r = control::request(wire::Op::bell, &want, sizeof want, &b.efd, 1);
    if (r.status < 0 || r.length != sizeof(wire::BellReply))
        return 0;
    uint32_t id = r.as<wire::BellReply>().id;
    if (id < kFirstDoorbell || id > kLastDoorbell)
        return 0;
    b.id[l.index] = static_cast<uint8_t>(id);
    if (const int also = l.transport->sleep_on(l); also >= 0) [[unlikely]]
        watch_as_well(b, also);
    if (r.as<wire::BellReply>().foreign) [[unlikely]]
        if (!no_foreign_ends.load(std::memory_order_relaxed))
            provide_foreign_ends(b, l, id);
    return id;
}

void close_all_foreign_ends() noexcept {
    no_foreign_ends.store(true, std::memory_order_relaxed);
    LockGuard g(list_lock);
    for (Bell *b = all_bells; b; b = b->all_next)
        close_foreign_ends(*b);
}

void forget_link(LinkMap &l) noexcept {
    LockGuard g(list_lock);
    for (Bell *b = all_bells; b; b = b->all_next)
        b->id[l.index] = 0;
}

void ring_own(LinkMap &l, uint32_t slot, uint64_t ids) noexcept {
    ids &= kUsableDoorbells;
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
        for (Bell *b = all_bells; b; b = b->all_next)
            if (const unsigned id = b->id[l.index]; id && (ids >> id & 1)) {
                ids &= ~(uint64_t{1} << id);
                sys::write(b->efd, &one, sizeof one);
            }
    }
    // Waiters in other processes that share the connection. Rare, so their bells are not kept.
    for (ids &= l.view.header().side[l.side].sleep_mask.load(std::memory_order_seq_cst); ids; ids &= ids - 1) {
        const wire::BellRef ref{l.id, l.side, static_cast<uint32_t>(__builtin_ctzll(ids))};
        const auto r = control::request(wire::Op::peer_bell, &ref, sizeof ref);
        if (r.status == -EXDEV)
            control::tell(wire::Op::ring, &ref, sizeof ref);
        for (unsigned i = 0; i < r.fds; ++i) {
            sys::write(r.fd[i], &one, sizeof one);
            sys::close(r.fd[i]);
        }
    }
}

namespace {

void ring_each() noexcept {
    uint64_t one = 1;
    for (Bell *b = all_bells; b; b = b->all_next)
        if (b->efd >= 0)
            sys::write(b->efd, &one, sizeof one);
}

} // namespace

void ring_all_own() noexcept {
    LockGuard g(list_lock);
    ring_each();
}

void restore_bells() noexcept {
    LockGuard g(list_lock);
    for (Bell *b = all_bells; b; b = b->all_next)
        for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
            if (LinkMap *l = b->id[i] ? link_by_index(i) : nullptr) {
                wire::Bell want{l->id, l->side, b->id[i]};
                auto r = control::request(wire::Op::bell, &want, sizeof want, &b->efd, 1);
                if (r.cause == Cause::no_monitor)
                    return; // or none that answers in time: the next one is told of all
                if (r.status < 0)
                    b->id[i] = 0; // somebody else's by now: who waits arms with another one
                else if (r.length == sizeof(wire::BellReply) && r.as<wire::BellReply>().foreign &&
                         !no_foreign_ends.load(std::memory_order_relaxed))
                    provide_foreign_ends(*b, *l, b->id[i]);
            }
    // Other threads may have slept meanwhile, with an id that was not known yet or is not theirs any more.
    ring_each();
}

SD_FORK_CODE void drop_bells_in_child() noexcept {
    list_lock.reset();
    bell_pool.reset_lock();
    while (Bell *b = take_idle()) {
        forget_registrations(*b);
        drop_foreign_ends_in_child(*b);
        end_bell(*b);
    }
    // The Bell objects stay with the epoll instances and threads that point to them: each gets an eventfd of
    // its own.
    for (Bell *b = all_bells; b; b = b->all_next) {
        forget_registrations(*b);
        drop_foreign_ends_in_child(*b);
        if (b->efd < 0)
            continue;
        if (b == self.bell) { // many a child ends before it sleeps
            close_hidden(b->efd);
            b->efd = -1;
            continue;
        }
        const long fd = new_eventfd();
        if (fd < 0)
            continue;
        (void)sys::dup3(static_cast<int>(fd), b->efd, O_CLOEXEC); // the number is open, so it cannot fail
        sys::close(static_cast<int>(fd));
    }
}

bool drain_eventfd(const Bell &b) noexcept {
    uint64_t n;
    return sys::read(b.efd, &n, sizeof n) > 0;
}

bool drain(Bell &b) noexcept {
    bool rung = drain_eventfd(b);
    if (b.foreign.set.load(std::memory_order_acquire) >= 0) [[unlikely]]
        rung |= drain_foreign_ends(b);
    return rung;
}

} // namespace sd
