// Finding the members that are ready, and getting an instance ready for sleep.
#include "libsd/control/client.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/sleeper.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/vfs.hpp"
#include <algorithm>
#include <utility>

namespace sd {

namespace {

constexpr unsigned kLinksPerPass = 16;
constexpr int64_t kConfirmNs = 1'000'000; ///< unconfirmed items are confirmed this often while we never sleep

/// Of all that was armed so far.
void fence(Epoll &x) noexcept {
    if (x.unfenced)
        heavy_barrier();
    x.unfenced = false;
}

/// Arms the item's connection. False: it has no doorbell id, so it has to stay hot.
bool arm(Epoll &x, EpollItem &i) noexcept {
    if (!i.link)
        return true; // a fresh socket changes only by the program's own doing
    unsigned id = x.bell->id[i.link->index];
    if (id == 0) {
        x.wants_bells = true;
        return false;
    }
    SetLink &e = x.links[x.link_place[i.link->index] - 1u];
    if (e.id == 0) // got since the last collect()
        e.id = id;
    i.tx_armed = (i.events & kWrites) && !(i.level & kWrites);
    if (arm_stream(*i.file, id, true, i.tx_armed))
        x.unfenced = true;
    return true;
}

/// Hot to unconfirmed.
bool cool(Epoll &x, EpollItem &i) noexcept {
    if (!arm(x, i))
        return false;
    leave_list(x, i);
    if (x.unconfirmed.push(&i)) {
        i.list = EpollItem::List::unconfirmed;
        i.list_place = static_cast<uint32_t>(x.unconfirmed.size() - 1);
    } else {
        make_hot(x, i);
    }
    return true;
}

void wake_slot(Epoll &x, SetLink &e, uint32_t slot) noexcept {
    for (EpollItem *i = e.slot[slot]; i; i = i->next_in_slot)
        make_hot(x, *i);
}

/// Marks may be missing: a side died with its last ones, or what is armed is armed with an id that is not
/// ours any more.
[[gnu::noinline]] void follow_link(Epoll &x, SetLink &e, uint32_t flags, uint32_t id) noexcept {
    const bool stale = flags != e.flags || e.id != 0;
    e.flags = flags;
    e.id = id;
    for (uint32_t s = 0; stale && s < kLinkSlots; ++s)
        if (e.slot[s])
            wake_slot(x, e, s);
}

/// Members that peers have marked become hot.
void collect_link(Epoll &x, SetLink &e) noexcept {
    LinkMap &l = *e.link;
    const LinkView v = l.view;
    uint32_t flags = v.header().side[0].flags.load(std::memory_order_relaxed) |
                     v.header().side[1].flags.load(std::memory_order_relaxed);
    const unsigned id = x.bell->id[l.index];
    if (flags != e.flags || id != e.id) [[unlikely]]
        follow_link(x, e, flags, id);
    if (id == 0)
        return;
    auto &summary = v.ready_summary(l.side, id);
    if (summary.load(std::memory_order_relaxed) == 0) [[likely]]
        return;
    // Summary first: whoever marks sets the word first, so what is missed here shows in the summary again.
    for (uint64_t words = summary.exchange(0, std::memory_order_seq_cst); words; words &= words - 1) {
        auto w = static_cast<unsigned>(__builtin_ctzll(words));
        for (uint64_t bits = v.ready_word(l.side, id, w).exchange(0, std::memory_order_seq_cst); bits;
             bits &= bits - 1)
            wake_slot(x, e, w * 64 + static_cast<unsigned>(__builtin_ctzll(bits)));
    }
}

void collect(Epoll &x, bool thorough) noexcept {
    const size_t n = x.links.size();
    if (thorough || n <= kLinksPerPass) {
        for (size_t k = 0; k < n; ++k)
            collect_link(x, x.links[k]);
        return;
    }
    for (unsigned k = 0; k < kLinksPerPass; ++k) {
        if (x.link_cursor >= n)
            x.link_cursor = 0;
        collect_link(x, x.links[x.link_cursor++]);
    }
}

/// The last look found no room, and the item was armed when there was some.
bool waits_unarmed(const EpollItem &i) noexcept {
    return i.link && !i.off && (i.events & kWrites) && !(i.level & kWrites) && !i.tx_armed;
}

/// Unconfirmed items are looked at once more, and then they are cold: A1 in epoll_set.hpp. Where they were
/// not found fenced, a heavy_barrier() lies between the arming of each and now.
void confirm(Epoll &x) noexcept {
    for (bool again = true; again;) {
        again = false;
        for (size_t k = x.unconfirmed.size(); k-- > 0;) {
            EpollItem &i = *x.unconfirmed[k];
            if (!(i.events & kEdge))
                i.due = true; // the long way, which sees whether a reader is just moving on
            const bool ready = look(i, true);
            if (!ready && waits_unarmed(i) && arm(x, i)) {
                again = true; // once for each item: it is armed for all there is now
                continue;
            }
            leave_list(x, i);
            if (ready) {
                i.due = true; // the pass that reports it looks again
                make_hot(x, i);
            } else if (waits_unarmed(i) ||
                       (!i.off && i.file->kind == FileKind::stream && peer_has_corked(*i.file))) {
                make_hot(x, i); // it cannot be armed, or becomes ready by time
            }
        }
        if (again)
            fence(x);
    }
}

template <class F> void for_each_listener_link(Epoll &x, F f) noexcept {
    for (EpollItem *i : x.hot) {
        if (!i->always_hot || i->file->kind != FileKind::listener)
            continue;
        Listener &l = *i->file->listener;
        QuietGuard g(l.lock);
        for (auto &ref : l.links)
            f(*ref.link);
    }
}

/// Where an event stands among those of one sender. No initial values: an array of these is filled on each
/// wait.
struct Standing {
    const LinkMap *link; ///< nullptr: not known
    uint32_t order;
    enum : uint8_t {
        other,
        listener,
        request,
        opened
    } kind; ///< request: waits to be accepted; opened: a client's, for writing
};

bool is_listener(const EpollItem &i) noexcept { return i.always_hot && i.file->kind == FileKind::listener; }

Standing standing_of(const EpollItem &i, uint32_t events, bool listening, bool first) noexcept {
    if (listening && is_listener(i))
        return {nullptr, 0, Standing::listener};
    if (listening && i.link && i.link->side == 0 &&
        i.link->view.slot(i.slot).identity.state.load(std::memory_order_relaxed) ==
            static_cast<uint32_t>(SlotState::syn))
        return {nullptr, 0, Standing::request};
    if (!i.link || !(events & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
        return {nullptr, i.added, first && i.link && i.link->side == 0 ? Standing::opened : Standing::other};
    if (uint64_t h = ring::peek_header(i.file->ofd->rx.s, i.file->rx_place))
        return {i.link, ring::header_order(h), Standing::other};
    const uint32_t end = i.file->peer->control.ended_at.load(std::memory_order_relaxed);
    return {end ? i.link : nullptr, end & ring::kOrderMask, Standing::other};
}

/// One link, or two whose other side is the same process: orders of others have nothing to do with each
/// other. A hint.
bool one_sender(const LinkMap &a, const LinkMap &b) noexcept {
    auto peer = [](const LinkMap &l) {
        return l.view.header().side[1 - l.side].process.load(std::memory_order_relaxed);
    };
    return &a == &b || (peer(a) == peer(b) && peer(a) != 0);
}

bool belongs_before(const Standing &a, const Standing &b) noexcept {
    if (a.kind == Standing::listener)
        return b.kind == Standing::request; // it was ready as soon as the client was
    if (a.kind == Standing::opened && b.kind == Standing::opened)
        // The first to be connected was the first to be writable
        return static_cast<int32_t>(a.order - b.order) < 0;
    return a.link && b.link && ring::earlier(a.order, b.order) && one_sender(*a.link, *b.link);
}

/// An event for the program, and whose it is.
struct Reports {
    Epoll &x;
    epoll_event *out;
    unsigned room;
    unsigned found = 0;
    bool listening = false; ///< there may be a listener among them
    EpollItem *item[kBatch];
    bool first[kBatch]; ///< never reported before

    Reports(Epoll &set, epoll_event *to, unsigned n) noexcept : x(set), out(to), room(n) {}

    /// False: the item has left the hot list.
    bool add(EpollItem &i, uint32_t events) noexcept {
        item[found] = &i;
        first[found] = i.reported == 0;
        listening |= is_listener(i);
        out[found].events = events;
        out[found++].data.u64 = i.data;
        i.last = ++x.reports;
        i.in_vain = 0;
        i.reported = x.passes;
        if (!(i.events & EPOLLONESHOT))
            return true;
        i.off = true;
        if (i.kernel_too) { // the kernel's half must not report it again either
            epoll_event none{};
            none.events = EPOLLONESHOT;
            none.data.u64 = i.data;
            sys::epoll_ctl(set_fd(x), EPOLL_CTL_MOD, i.fd, &none);
            return true;
        }
        leave_list(x, i);
        return false;
    }

    /// In the kernel, what was sent first is reported first, and programs that talk over two connections rely
    /// on it, also when one of them ends. Looking at one member after the other finds them in another order;
    /// what one thread sent can be put right, and that a program which connects to itself finds its listener
    /// ready before the clients.
    void put_in_order() noexcept {
        Standing standing[kBatch];
        unsigned n = 0;
        bool right = true;
        for (; n < found && n < kBatch; ++n) {
            standing[n] = standing_of(*item[n], out[n].events, listening, first[n]);
            right = right && (n == 0 || !belongs_before(standing[n], standing[n - 1]));
        }
        if (right)
            return;
        for (unsigned k = 1; k < n; ++k)
            for (unsigned at = k; at > 0 && belongs_before(standing[at], standing[at - 1]); --at) {
                std::swap(standing[at], standing[at - 1]);
                std::swap(out[at], out[at - 1]);
            }
    }
};

constexpr unsigned kSecondLook = 32; ///< members that are looked at twice

/// From an item to its ring the way leads over four objects, each in a page of its own where the busy members
/// are few among many. Asks for those of the next members, each a few looks before it is needed to find the
/// next one; of the header two looks ahead, which is about what a line takes to come from a core far away.
/// Earlier is too early: the peer may not have written yet.
void ask_ahead(Epoll &x, uint32_t at) noexcept {
    cpu::keep_this_call();
    const size_t left = x.hot.size() - at;
    if (left > 8) {
        const auto *item = reinterpret_cast<const char *>(x.hot[at + 8]);
        __builtin_prefetch(item);
        __builtin_prefetch(item + 64);
    }
    if (left > 6)
        __builtin_prefetch(x.hot[at + 6]->file);
    auto ofd_at = [&x](size_t k) {
        const EpollItem &i = *x.hot[k];
        return i.link ? i.file->ofd : nullptr;
    };
    if (left > 4)
        if (const Ofd *o = ofd_at(at + 4)) {
            __builtin_prefetch(o);
            __builtin_prefetch(&o->rx);
            __builtin_prefetch(&o->opt); // are there zero-copy completions?
            __builtin_prefetch(&x.hot[at + 4]->file->peer->control);
        }
    if (left > 2)
        if (const Ofd *o = ofd_at(at + 2))
            __builtin_prefetch(&ring::next_header(o->rx.s, x.hot[at + 2]->file->rx_place));
}

constexpr size_t kMostOrdered = 1024;  ///< busy members
constexpr unsigned kOrderReports = 16; ///< reports for each of them before they are put in order again

/// Busy members in the order of their registration: it is that of the peer's set, too, so that both ends go
/// the same way and seldom look at what the other has not come to yet; and what was made one after the other
/// lies so in memory.
[[gnu::noinline]] void order_hot(Epoll &x) noexcept {
    x.hot_mixed = false;
    x.ordered_at = x.reports;
    std::sort(x.hot.begin(), x.hot.end(),
              [](const EpollItem *a, const EpollItem *b) { return a->added < b->added; });
    for (uint32_t k = 0; k < x.hot.size(); ++k)
        x.hot[k]->list_place = k;
}

} // namespace

unsigned scan(Epoll &x, epoll_event *out, unsigned room, bool thorough) noexcept {
    rdma::progress();
    if (x.links.size())
        collect(x, thorough);
    if (x.hot_mixed && x.hot.size() <= kMostOrdered && x.reports - x.ordered_at > x.hot.size() * kOrderReports)
        [[unlikely]]
        order_hot(x);
    const uint64_t pass = ++x.passes;
    Reports r(x, out, room);
    unsigned in_vain = 0; // looks before the first that found something
    uint32_t at = x.cursor;
    for (size_t left = x.hot.size(); left > 0 && r.found < room; --left) {
        if (at >= x.hot.size()) {
            at = 0;
            if (x.hot.size() == 0)
                break;
        }
        EpollItem &i = *x.hot[at];
        if (i.pass == pass) { // moved here after it was looked at
            ++at;
            continue;
        }
        i.pass = pass;
        ask_ahead(x, at);
        if (uint32_t events = look(i, thorough)) {
            at += r.add(i, events);
        } else if ((!i.always_hot || (i.link && is_settled_in_ring(*i.file))) &&
                   ((x.hot.size() > kHotItems && ++i.in_vain > kVainLooks) || x.reports - i.last > kIdleReports) &&
                   cool(x, i)) {
            // the last of the list has taken its place
        } else {
            ++at;
            in_vain += r.found == 0;
        }
    }
    // Something sent before what was found may have come after the look at its own place: those are looked at
    // again.
    if (r.found && in_vain && in_vain <= kSecondLook)
        for (uint32_t k = 0; k < x.hot.size() && r.found < room;) {
            EpollItem &i = *x.hot[k];
            uint32_t events = i.pass == pass && i.reported != pass && i.link ? look(i, thorough) : 0;
            k += events == 0 || r.add(i, events);
        }
    if (r.found > 1)
        r.put_in_order();
    const unsigned found = r.found;
    x.cursor = at;
    if (x.unconfirmed.size()) [[unlikely]] {
        int64_t now = sys::now_ns();
        if (now - x.barrier_at > kConfirmNs) {
            x.barrier_at = now;
            fence(x);
            confirm(x);
        }
    }
    return found;
}

bool any_ready(Epoll &x) noexcept {
    if (x.unconfirmed.size()) [[unlikely]]
        fence(x);
    return any_ready_after_barrier(x);
}

bool any_ready_after_barrier(Epoll &x) noexcept {
    rdma::progress();
    if (x.links.size())
        collect(x, true);
    confirm(x);
    bool ready = false;
    for (bool again = true; again;) {
        again = false;
        x.corked_until = INT64_MAX;
        for (EpollItem *i : x.hot) {
            if (look(*i, true)) {
                i->due = true;
                if (!x.watched)
                    return true;
                ready = true;
            } else if (i->always_hot && waits_unarmed(*i) && arm(x, *i)) [[unlikely]] {
                again = true; // a connection with two paths: A1, as in confirm()
            }
            const File &f = *i->file;
            const int64_t t = f.kind == FileKind::stream && !i->off ? corked_until(f)
                              : f.kind == FileKind::epoll           ? set_corked_until(*f.epoll)
                                                                    : INT64_MAX;
            x.corked_until = t < x.corked_until ? t : x.corked_until;
        }
        if (again)
            fence(x);
    }
    return ready;
}

int64_t set_corked_until(Epoll &x) noexcept {
    SetGuard g(x);
    return x.corked_until;
}

uint64_t links_seen(Epoll &x) noexcept {
    if (x.duals == 0)
        return 0;
    uint64_t sum = 0;
    for (EpollItem *i : x.hot)
        if (is_listener(*i))
            sum += i->file->listener->seen_sequence.load(std::memory_order_acquire);
    for (EpollItem *i : x.nested)
        if (i && i->file->epoll) {
            SetGuard g(*i->file->epoll);
            sum += links_seen(*i->file->epoll);
        }
    return sum;
}

void prepare_sleep(Epoll &x, bool *blind) noexcept {
    ++x.sleepers;
    if (!x.bell)
        return;
    // Members are armed ahead of time: so between announcing and looking the marks are collected, and the
    // members that they name are armed again.
    for (auto &e : x.links)
        if (!Sleeper::announce(*x.bell, *e.link))
            *blind = true;
    if (x.links.size())
        collect(x, true);
    for (size_t k = x.hot.size(); k-- > 0;)
        if (!x.hot[k]->always_hot ? !cool(x, *x.hot[k]) : x.hot[k]->link && !arm(x, *x.hot[k]))
            *blind = true;
    if (x.duals == 0)
        return;
    for_each_listener_link(x, [&](LinkMap &l) {
        if (const unsigned id = Sleeper::announce(*x.bell, l))
            x.unfenced |= Sleeper::arm(l.view.header().side[1].syn_arm, id);
        else
            *blind = true;
    });
    for (EpollItem *i : x.nested)
        if (i && i->file->epoll) {
            SetGuard g(*i->file->epoll);
            prepare_sleep(*i->file->epoll, blind);
            x.unfenced = true; // of several sets none is settled
        }
}

void fence_before_sleep(Epoll &x) noexcept {
    if (!x.unfenced)
        return;
    fence(x);
    if (!x.bell)
        return;
    for (const EpollItem *i : x.unconfirmed)
        if (const unsigned id = i->link ? x.bell->id[i->link->index] : 0)
            Sleeper::settle(*i->link, i->link->view.slot(i->slot).side[i->link->side].control.rx_arm, id);
    if (x.duals)
        for_each_listener_link(x, [&](LinkMap &l) {
            if (const unsigned id = x.bell->id[l.index])
                Sleeper::settle(l, l.view.header().side[1].syn_arm, id);
        });
}

namespace {

void begin_sleeps(Epoll &x, uint32_t n) noexcept {
    x.sleepers = x.sleepers + n;
    for (const EpollItem *i : x.nested)
        if (i)
            begin_nested_sleeps(*i, n);
}

void end_sleeps(Epoll &x, uint32_t n) noexcept {
    x.sleepers = x.sleepers > n ? x.sleepers - n : 0;
    if (!x.bell)
        return;
    if (x.sleepers == 0) {
        auto clear = [&](LinkMap &l) { Sleeper::withdraw(*x.bell, l); };
        for (auto &e : x.links)
            clear(*e.link);
        if (x.duals)
            for_each_listener_link(x, clear);
    }
    if (x.duals == 0)
        return;
    for (const EpollItem *i : x.nested)
        if (i)
            end_nested_sleeps(*i, n);
}

} // namespace

void begin_nested_sleeps(const EpollItem &i, uint32_t n) noexcept {
    if (Epoll *inner = n ? i.file->epoll : nullptr) {
        SetGuard g(*inner);
        begin_sleeps(*inner, n);
    }
}

void end_nested_sleeps(const EpollItem &i, uint32_t n) noexcept {
    if (Epoll *inner = n ? i.file->epoll : nullptr) {
        SetGuard g(*inner);
        end_sleeps(*inner, n);
    }
}

void finish_sleep(Epoll &x) noexcept { end_sleeps(x, 1); }

void hand_over(Epoll &x) noexcept {
    if (x.sleepers == 0) { // only waits that have to come back and look
        if (x.ours != 0)
            ring_own(x);
        return;
    }
    bool blind = false;
    const uint64_t seen = links_seen(x);
    prepare_sleep(x, &blind);
    fence_before_sleep(x);
    const bool ready = any_ready_after_barrier(x) || links_seen(x) != seen;
    // Blind: the sleepers have to get ids for what was added since.
    if (ready || x.has_moved || blind || x.plain != 0 || x.corked_until != INT64_MAX)
        ring_own(x);
    finish_sleep(x);
}

} // namespace sd
