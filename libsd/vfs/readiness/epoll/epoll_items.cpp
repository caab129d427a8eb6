// Epoll instances and their items: making and ending them, and what a fork does to them.
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/kernel_sockets/cookie.hpp"
#include "libsd/queue/sleeper.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

SD_FORK_STATE std::atomic<uint32_t> fork_generation{0};
SD_FORK_STATE std::atomic<uint32_t> forks_done{0};

namespace {

SD_FORK_STATE constinit Pool<Epoll> sets;
SD_FORK_STATE constinit Pool<EpollItem> item_pool;
/// Instances that live for one request are made in those that were released last: a few keep their arrays, if
/// those are small.
constexpr unsigned kMostRoom = 2;
constexpr size_t kSmallRoom = 65536;
std::atomic<unsigned> rooms_cached{0};
constexpr size_t kTableBytes = kLinkSlots * sizeof(EpollItem *);
constexpr unsigned kStripes = 16;
SD_FORK_STATE constinit BiasedLock stripes[kStripes];
SD_FORK_STATE bool stripe_favoured[kStripes]; ///< by epoll_fork_prepare()
SD_FORK_STATE constinit Lock refresh_lock;
SD_FORK_STATE uint64_t epoll_fork_mask;

SetLink *link_entry(Epoll &x, const LinkMap &l) noexcept {
    uint16_t place = l.index < x.link_place.size() ? x.link_place[l.index] : 0;
    return place ? &x.links[place - 1u] : nullptr;
}

void unlink_file(EpollItem &i) noexcept {
    for (EpollItem **p = &i.file->items; *p; p = &(*p)->next_of_file)
        if (*p == &i) {
            *p = i.next_of_file;
            return;
        }
    SD_ASSERT(!"an item is in the list of its File");
}

} // namespace

bool attach_stream(Epoll &x, EpollItem &i) noexcept {
    SD_ASSERT(!i.link);
    LinkMap &l = *i.file->link;
    SetLink *e = link_entry(x, l);
    if (!e) {
        EpollItem **table = x.spare_table;
        x.spare_table = nullptr;
        if (!table)
            table = static_cast<EpollItem **>(sys::mmap(nullptr, kLinkSlots * sizeof(EpollItem *),
                                                        PROT_READ | PROT_WRITE,
                                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (!table)
            return false;
        if (!x.link_place.grow_to(l.index + 1) || !x.links.push({&l, table, 0, 0, 0})) {
            sys::munmap(table, kTableBytes);
            return false;
        }
        x.link_place[l.index] = static_cast<uint16_t>(x.links.size());
        e = &x.links[x.links.size() - 1];
        // Who accepts from itself; what a link says of the accepting side may be a parent that only made the
        // listener.
        if (l.side == 1 && l.view.header().side[0].process.load(std::memory_order_relaxed) ==
                               static_cast<uint32_t>(sys::getpid()))
            x.talks_to_itself = true;
    }
    i.link = &l;
    i.slot = i.file->slot;
    i.next_in_slot = e->slot[i.slot];
    e->slot[i.slot] = &i;
    ++e->members;
    ++x.streams;
    i.rx_at = 0;
    i.state = i.level = 0;
    if (has_paths(*i.file->ofd)) [[unlikely]] // looked at in each pass; its socket's edges end a sleep
        watch_socket(x, i);
    return true;
}

void detach_stream(Epoll &x, EpollItem &i) noexcept {
    if (!i.link)
        return;
    if (i.always_hot) [[unlikely]]
        unwatch_socket(x, i);
    SetLink *e = link_entry(x, *i.link);
    SD_ASSERT(e && e->members != 0 && x.streams != 0);
    for (EpollItem **p = &e->slot[i.slot]; *p; p = &(*p)->next_in_slot)
        if (*p == &i) {
            *p = i.next_in_slot;
            break;
        }
    --x.streams;
    if (--e->members == 0) {
        LinkMap &l = *e->link;
        // Who sleeps for the clients of a listener sleeps on the same word: finish_sleep() clears it.
        const bool listens = l.side == 1 && x.duals != 0;
        if (x.sleepers && !listens)
            Sleeper::withdraw(*x.bell, l);
        // Programs that take their only connection out and in again for each message must not pay for it.
        if (!x.spare_table)
            x.spare_table = e->slot;
        else
            sys::munmap(e->slot, kTableBytes);
        auto at = static_cast<size_t>(e - x.links.begin());
        x.link_place[l.index] = 0;
        x.links.remove_unordered(at);
        if (at < x.links.size())
            x.link_place[x.links[at].link->index] = static_cast<uint16_t>(at + 1);
    }
    i.link = nullptr;
}

bool count_ours(Epoll &x) noexcept {
    const bool first = !x.bell;
    if (first) {
        x.bell = make_bell();
        if (!x.bell)
            return false;
        register_wakers(x);
        x.has_bell.store(true, std::memory_order_seq_cst);
    }
    // Threads that wait in the kernel only have to come back and look at the new member. A wait counts
    // itself, with the lock, before it reads `ours`.
    const bool none = x.ours == 0;
    ++x.ours;
    if (none && (first || x.users > 1))
        ring_own(x);
    return true;
}

EpollItem *new_item(Epoll &x) noexcept {
    EpollItem *i = x.spare;
    if (i) {
        x.spare = i->pool_next;
        --x.spares;
    } else {
        i = item_pool.allocate();
    }
    if (i)
        *i = EpollItem{};
    return i;
}

void drop_item(Epoll &x, EpollItem &i) noexcept {
    if (x.spares >= kSpareItems) {
        item_pool.release(&i);
        return;
    }
    i.pool_next = x.spare;
    x.spare = &i;
    ++x.spares;
}

void remove_item(Epoll &x, EpollItem &i) noexcept {
    leave_list(x, i);
    detach_stream(x, i);
    if (i.kernel_only) {
        x.kernel_members.fetch_sub(1, std::memory_order_relaxed);
    } else {
        SD_ASSERT(x.ours != 0 && (!i.kernel_too || x.duals != 0));
        --x.ours;
        if (i.kernel_too)
            --x.duals;
        if (i.kernel_too && i.file->kind == FileKind::epoll && x.nested[i.nested_place] == &i) {
            x.nested[i.nested_place] = nullptr;
            end_nested_sleeps(i, x.sleepers);
        }
    }
    SD_ASSERT(x.items[i.place] == &i);
    x.items.remove_unordered(i.place);
    if (i.place < x.items.size())
        x.items[i.place]->place = i.place;
    unlink_file(i);
    drop_item(x, i);
}

void item_changed(Epoll &x, EpollItem &i) noexcept {
    i.due = true;
    i.level = 0; // nothing is known of what it is asked for now
    // In the kernel a level-triggered member that was ready is still in the list of those, and wakes nobody
    // anew.
    if (i.events & static_cast<uint32_t>(EPOLLET | EPOLLONESHOT))
        i.counted_level = 0;
    make_hot(x, i);
    if (x.sleepers)
        ring_own(x);
}

BiasedLock &ctl_lock(const File &f) noexcept {
    return stripes[(reinterpret_cast<uintptr_t>(&f) >> 7) % kStripes];
}

int set_fd(const Epoll &x) noexcept { return file_of(x.fd) == x.file ? x.fd : any_number(*x.file); }

void ring_own(Epoll &x) noexcept {
    uint64_t one = 1;
    sys::write(x.bell->efd, &one, sizeof one);
}

void leave_list(Epoll &x, EpollItem &i) noexcept {
    if (i.list == EpollItem::List::none)
        return;
    auto &list = i.list == EpollItem::List::hot ? x.hot : x.unconfirmed;
    SD_ASSERT(list[i.list_place] == &i);
    x.hot_mixed |= i.list == EpollItem::List::hot && i.list_place + 1 < list.size();
    list.remove_unordered(i.list_place);
    if (i.list_place < list.size())
        list[i.list_place]->list_place = i.list_place;
    i.list = EpollItem::List::none;
}

void make_hot(Epoll &x, EpollItem &i) noexcept {
    if (i.off || i.kernel_only)
        return;
    i.last = x.reports;
    if (i.list != EpollItem::List::hot) {
        leave_list(x, i);
        if (!x.hot.push(&i))
            return; // no memory for the list: it only grows while members are added
        i.list = EpollItem::List::hot;
        i.list_place = static_cast<uint32_t>(x.hot.size() - 1);
        x.hot_mixed |= i.list_place > 0 && x.hot[i.list_place - 1]->added > i.added;
    }
}

void refresh_after_fork(Epoll &x) noexcept {
    QuietGuard r(refresh_lock);
    const uint32_t now = fork_generation.load(std::memory_order_relaxed);
    if (x.fork_count.load(std::memory_order_relaxed) == now)
        return;
    // Whatever threads of the parent were doing: only the item list counts, which was at rest (see
    // epoll_fork_prepare).
    x.lock.reset();
    x.sleepers = 0;
    x.plain = 0;
    x.users = 1;
    x.hot.truncate(0);
    x.unconfirmed.truncate(0);
    x.channel_known = false;
    forget_watches(x); // they are the parent's affair, too
    for (EpollItem *i : x.items) {
        i->list = EpollItem::List::none;
        i->bell_epoch = 0;
        make_hot(x, *i); // armed, if at all, with the parent's doorbell
    }
    if (x.bell)
        register_wakers(x);
    x.fork_count.store(now, std::memory_order_release);
}

namespace {

/// With the lock, of an instance without members.
void empty_arrays(Epoll &x) noexcept {
    const size_t bytes = x.items.capacity_bytes() + x.hot.capacity_bytes() + x.unconfirmed.capacity_bytes() +
                         x.links.capacity_bytes() + x.link_place.capacity_bytes();
    // Or one more than that
    if (bytes <= kSmallRoom && rooms_cached.load(std::memory_order_relaxed) < kMostRoom) {
        rooms_cached.fetch_add(1, std::memory_order_relaxed);
        x.keeps_room = true;
        x.items.truncate(0);
        x.hot.truncate(0);
        x.unconfirmed.truncate(0);
        x.links.truncate(0);
        return;
    }
    while (EpollItem *i = x.spare) {
        x.spare = i->pool_next;
        item_pool.release(i);
    }
    x.spares = 0;
    if (x.spare_table)
        sys::munmap(x.spare_table, kTableBytes);
    x.spare_table = nullptr;
    x.items.clear();
    x.hot.clear();
    x.unconfirmed.clear();
    x.links.clear();
    x.link_place.clear();
}

} // namespace

bool new_set(File &f, int fd) noexcept {
    Epoll *x = sets.allocate();
    if (!x)
        return false;
    // A thread that looked its former File up just before that was closed may be here as well; see is_open().
    SetGuard g(*x);
    x->lock.favour_next();
    if (x->keeps_room) {
        x->keeps_room = false;
        rooms_cached.fetch_sub(1, std::memory_order_relaxed);
    }
    x->file = &f;
    x->fd = fd;
    x->users = 1;
    x->dead.store(false, std::memory_order_relaxed);
    x->ours = 0;
    x->kernel_members.store(0, std::memory_order_relaxed);
    x->streams = 0;
    x->duals = 0;
    x->sleepers = 0;
    x->plain = 0;
    x->watched = false;
    x->streak = 0;
    x->passed = false;
    x->channel_known = false;
    x->fork_count.store(fork_generation.load(std::memory_order_relaxed), std::memory_order_relaxed);
    x->born = forks_done.load(std::memory_order_relaxed);
    x->used_in = fork_generation.load(std::memory_order_relaxed);
    x->late.truncate(0);
    for (auto &n : x->nested)
        n = nullptr;
    f.epoll = x;
    return true;
}

bool is_open(const Epoll &x, const File &f, int ep) noexcept {
    return x.users != 0 && !x.dead.load(std::memory_order_relaxed) && x.file == &f && file_of(ep) == &f;
}

void set_unuse(Epoll &x) noexcept {
    Bell *bell;
    bool alone;
    {
        SetGuard g(x);
        SD_ASSERT(x.users != 0);
        --x.users;
        if (x.users != 0)
            return;
        // Nobody has inherited the kernel's set, with the eventfd in it, or got it in a message.
        SD_ASSERT(x.items.size() == 0 && x.ours == 0 && x.sleepers == 0 && x.plain == 0);
        alone = !x.passed && x.born == forks_done.load(std::memory_order_relaxed);
        bell = x.bell;
        x.bell = nullptr;
        close_socket_set(x);
        x.has_bell.store(false, std::memory_order_relaxed);
        empty_arrays(x);
        x.file = nullptr;
    }
    if (bell)
        free_bell(bell, alone);
    sets.release(&x);
}

void epoll_passed(File &f, int fd) noexcept {
    Epoll &x = *f.epoll;
    SetGuard g(x);
    if (is_open(x, f, fd))
        x.passed = true;
}

void epoll_destroy(File &f) noexcept {
    Epoll &x = *f.epoll;
    x.dead.store(true, std::memory_order_release);
    for (;;) {
        File *member = nullptr;
        {
            SetGuard g(x);
            if (x.items.size())
                member = x.items[x.items.size() - 1]->file;
        }
        if (!member)
            break;
        BiasedGuard c(ctl_lock(*member));
        SetGuard g(x);
        if (size_t n = x.items.size(); n && x.items[n - 1]->file == member)
            remove_item(x, *x.items[n - 1]);
    }
    set_unuse(x);
}

void begin_use(Epoll &x) noexcept {
    const uint32_t now = fork_generation.load(std::memory_order_relaxed);
    if (x.used_in == now) [[likely]]
        return;
    x.used_in = now;
    for (Epoll::Late &late : x.late)
        if (late.cookie != 0 && cookie_of(late.fd) == late.cookie &&
            sys::epoll_ctl(set_fd(x), EPOLL_CTL_ADD, late.fd, &late.registration) == 0)
            x.kernel_members.fetch_add(1, std::memory_order_relaxed);
    x.late.truncate(0);
}

bool put_off(Epoll &x, int fd, const epoll_event &registration) noexcept {
    return x.late.push({fd, registration, cookie_of(fd)});
}

SD_FORK_CODE void epoll_fork_prepare() noexcept {
    uint64_t mask;
    sys::block_signals(&mask);
    for (unsigned i = 0; i < kStripes; ++i)
        stripe_favoured[i] = stripes[i].lock();
    epoll_fork_mask = mask; // only now: another thread may be between its own fork's two halves
}

SD_FORK_CODE void epoll_fork_parent() noexcept {
    forks_done.fetch_add(1, std::memory_order_relaxed);
    const uint64_t mask = epoll_fork_mask;
    for (unsigned i = kStripes; i-- > 0;)
        stripes[i].unlock(stripe_favoured[i]);
    sys::restore_signals(&mask);
}

SD_FORK_CODE void epoll_fork_child() noexcept {
    forks_done.fetch_add(1, std::memory_order_relaxed);
    fork_generation.fetch_add(1, std::memory_order_relaxed);
    sets.reset_lock();
    item_pool.reset_lock();
    refresh_lock.reset();
    provide_lock.reset();
    for (auto &s : stripes)
        s.reset();
    sys::restore_signals(&epoll_fork_mask);
}

} // namespace sd
