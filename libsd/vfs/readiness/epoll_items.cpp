// Epoll instances and their items: making and ending them, and what happens to registrations when sockets
// change, close or are inherited.
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/queue/sleeper.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll_set.hpp"
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
SD_FORK_STATE uint64_t fork_mask;

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

namespace {

uint32_t new_sockets_name() noexcept {
    static std::atomic<uint32_t> last{0};
    uint32_t name;
    while ((name = last.fetch_add(1, std::memory_order_relaxed) + 1) == 0) {
    }
    return name;
}

uint64_t watch_of(const Epoll &x, int fd) noexcept {
    return uint64_t{x.sockets_name} << 32 | static_cast<uint32_t>(fd);
}

/// The hidden set for sockets; without numbers to be had the sockets are in the kernel's set themselves.
int socket_set(Epoll &x) noexcept {
    if (x.sockets >= 0 || sandboxed())
        return x.sockets >= 0 ? x.sockets : set_fd(x);
    const long made = sys::epoll_create1(EPOLL_CLOEXEC);
    const long hidden = made < 0 ? made : hide_fd(static_cast<int>(made));
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = waker_word(kBellWord);
    if (hidden >= 0 && sys::epoll_ctl(set_fd(x), EPOLL_CTL_ADD, static_cast<int>(hidden), &e) >= 0)
        x.sockets = static_cast<int>(hidden), x.sockets_name = new_sockets_name();
    else if (hidden >= 0)
        close_hidden(static_cast<int>(hidden));
    return x.sockets >= 0 ? x.sockets : set_fd(x);
}

void watch_socket(Epoll &x, EpollItem &i) noexcept {
    i.always_hot = true;
    // What the kernel has told of it meanwhile, the look at a new member finds.
    if (auto &kept = i.file->stream.kept_watch;
        x.sockets_name != 0 && kept.load(std::memory_order_relaxed) == watch_of(x, i.fd)) {
        kept.store(0, std::memory_order_relaxed);
        return;
    }
    epoll_event e{};
    e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | static_cast<uint32_t>(EPOLLET);
    const int set = socket_set(x);
    if (set == x.sockets)
        e.data.u64 = uint64_t{i.place} << 32 | static_cast<uint32_t>(i.fd);
    else
        e.data.u64 = waker_word(kBellWord);
    if (sys::epoll_ctl(set, EPOLL_CTL_ADD, i.fd, &e) == -EEXIST)
        sys::epoll_ctl(set, EPOLL_CTL_MOD, i.fd, &e);
}

} // namespace

namespace {

/// The member with this number, which stood at `place` when it was added. nullptr: another process has added
/// it to the kernel's sets, which it shares with us.
EpollItem *member(Epoll &x, int fd, size_t place) noexcept {
    if (place < x.items.size() && x.items[place]->fd == fd) [[likely]]
        return x.items[place];
    for (EpollItem *i : x.items)
        if (i->fd == fd)
            return i;
    return nullptr;
}

/// The kernel has told of a socket that is no member: it is not idle any more.
void end_watch(Epoll &x, int fd) noexcept {
    File *f = file_of(fd);
    uint64_t kept = watch_of(x, fd);
    if (f && f->stream.kept_watch.compare_exchange_strong(kept, 0, std::memory_order_relaxed))
        sys::epoll_ctl(x.sockets, EPOLL_CTL_DEL, fd, nullptr);
}

/// The File goes; its number is open still.
void end_kept_watch(File &f) noexcept {
    const uint64_t kept = f.stream.kept_watch.load(std::memory_order_acquire);
    if (kept == 0) [[likely]]
        return;
    Epoll &x = *f.stream.kept_by;
    SetGuard g(x);
    if (x.sockets_name == kept >> 32 && f.stream.kept_watch.exchange(0, std::memory_order_relaxed) == kept)
        sys::epoll_ctl(x.sockets, EPOLL_CTL_DEL, static_cast<int>(kept), nullptr);
}

} // namespace

void drain_sockets(Epoll &x) noexcept {
    constexpr int kAtOnce = 64;
    epoll_event told[kAtOnce];
    for (long n = x.sockets < 0 ? 0 : kAtOnce; n == kAtOnce;) {
        n = sys::epoll_pwait(x.sockets, told, kAtOnce, 0, nullptr);
        for (long k = 0; k < n; ++k)
            if (EpollItem *i = member(x, static_cast<int>(told[k].data.u64), told[k].data.u64 >> 32))
                make_hot(x, *i);
            else
                end_watch(x, static_cast<int>(told[k].data.u64));
    }
}

void keep_watching(Epoll &x, EpollItem &i) noexcept {
    File &f = *i.file;
    if (!i.link || !i.always_hot || x.sockets_name == 0 || !is_settled_in_ring(f) ||
        f.stream.kept_watch.load(std::memory_order_relaxed) != 0)
        return;
    f.stream.kept_by = &x;
    f.stream.kept_watch.store(watch_of(x, i.fd), std::memory_order_release);
    i.always_hot = false; // so it is not taken out of the hidden set
}

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
    if (i.always_hot) [[unlikely]] {
        i.always_hot = false;
        sys::epoll_ctl(socket_set(x), EPOLL_CTL_DEL, i.fd, nullptr);
    }
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
    if (x.sockets >= 0)
        x.sockets_name = new_sockets_name(); // what is in it is the parent's affair, too
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
        if (x.sockets >= 0)
            close_hidden(x.sockets);
        x.sockets = -1;
        x.sockets_name = 0;
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

void epoll_file_closed(File &f) noexcept {
    end_kept_watch(f);
    if (!f.items)
        return;
    BiasedGuard c(ctl_lock(f));
    while (EpollItem *i = f.items) {
        SetGuard g(*i->set);
        remove_item(*i->set, *i);
    }
}

namespace {

/// act(set, item) with both locks, for each registration of `f`; none of them may end.
template <class Act> void for_each_registration(File &f, Act act) noexcept {
    BiasedGuard c(ctl_lock(f));
    for (EpollItem *i = f.items; i; i = i->next_of_file) {
        SetGuard g(*i->set);
        act(*i->set, *i);
    }
}

} // namespace

void epoll_stream_ends(File &f) noexcept {
    end_kept_watch(f);
    for_each_registration(f, [](Epoll &x, EpollItem &i) {
        detach_stream(x, i);
        item_changed(x, i);
    });
}

namespace {

/// Sets that get their first accelerated member while locks are held; those that they are nested in are told
/// afterwards.
class FirstMembers {
  public:
    bool count(Epoll &x) noexcept {
        const bool none_before = !x.has_bell.load(std::memory_order_relaxed);
        const bool counted = count_ours(x);
        if (counted && none_before && n_ < kNestedSets)
            set_[n_++] = x.file;
        return counted;
    }
    void tell() noexcept {
        for (unsigned k = 0; k < n_; ++k)
            nested_became_ours(*set_[k], 0);
    }

  private:
    File *set_[kNestedSets];
    unsigned n_ = 0;
};

} // namespace

void epoll_file_became_stream(File &f) noexcept {
    FirstMembers first;
    for_each_registration(f, [&](Epoll &x, EpollItem &i) {
        if (i.link)
            return;
        // Its descriptor is a kernel socket. Who waits in the kernel only has to know our data words before
        // the socket is registered with one.
        const bool kernels = i.kernel_only;
        if (kernels && !first.count(x))
            return;
        if (!attach_stream(x, i)) {
            if (kernels)
                --x.ours;
            return;
        }
        if (!kernels) {
            item_changed(x, i);
            return;
        }
        i.kernel_only = false;
        x.kernel_members.fetch_sub(1, std::memory_order_relaxed);
        const bool registered = !i.always_hot || x.sockets >= 0; // else it is otherwise by now
        if (registered)
            joined_as_member(x, i);
        else
            item_changed(x, i);
        if (registered)
            sys::epoll_ctl(set_fd(x), EPOLL_CTL_DEL, i.fd, nullptr);
    });
    first.tell();
}

void epoll_file_has_socket(File &f) noexcept {
    for_each_registration(f, [](Epoll &x, EpollItem &i) {
        if (i.link)
            watch_socket(x, i);
        item_changed(x, i);
    });
}

void epoll_file_became_listener(File &f) noexcept {
    FirstMembers first;
    for_each_registration(f, [&](Epoll &x, EpollItem &i) {
        if (!i.kernel_only || !first.count(x))
            return;
        i.kernel_only = false;
        i.kernel_too = i.always_hot = true;
        ++x.duals;
        x.kernel_members.fetch_sub(1, std::memory_order_relaxed);
        item_changed(x, i);
    });
    first.tell();
}

namespace {

uint64_t cookie_of(int fd) noexcept {
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;
    return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) < 0 ? 0 : cookie;
}

} // namespace

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

void epoll_file_became_kernel(File &f, int only) noexcept {
    end_kept_watch(f);
    BiasedGuard c(ctl_lock(f));
    for (EpollItem *i = f.items, *next; i; i = next) {
        next = i->next_of_file;
        Epoll &x = *i->set;
        SetGuard g(x);
        if (i->kernel_only || i->kernel_too || (only >= 0 && i->fd != only))
            continue;
        leave_list(x, *i);
        detach_stream(x, *i);
        i->kernel_only = true;
        x.kernel_members.fetch_add(1, std::memory_order_relaxed);
        epoll_event e{};
        e.events = i->events;
        e.data.u64 = i->data;
        --x.ours;
        if (only < 0) {
            if (!i->off) // a one-shot registration that has fired waits for EPOLL_CTL_MOD, which then adds it
                sys::epoll_ctl(set_fd(x), EPOLL_CTL_ADD, i->fd, &e);
            continue;
        }
        // The File goes, and nobody but the kernel knows the registration from here on. One that has fired is
        // there, too, to be changed. The kernel's set of one that was only inherited is another process's
        // affair, which may have taken the member out since the fork, as long as this one does not use it.
        if (i->off)
            e.events = EPOLLONESHOT;
        if (x.used_in != fork_generation.load(std::memory_order_relaxed)) {
            x.late.push({i->fd, e, cookie_of(i->fd)});
        } else {
            if (sys::epoll_ctl(set_fd(x), EPOLL_CTL_ADD, i->fd, &e) == -EEXIST) // from a relative
                sys::epoll_ctl(set_fd(x), EPOLL_CTL_MOD, i->fd, &e);
            // The set has it, though remove_item() takes it out
            x.kernel_members.fetch_add(1, std::memory_order_relaxed);
        }
        remove_item(x, *i);
    }
}

bool epoll_would_repeat(File &f) noexcept {
    bool would = false;
    if (!f.items)
        return false;
    for_each_registration(f, [&would](const Epoll &, const EpollItem &i) {
        would |= !i.kernel_only && (i.events & EPOLLET) && !i.due && !i.off;
    });
    return would;
}

void epoll_readiness_changed(File &f, bool edge) noexcept {
    if (!f.items)
        return;
    for_each_registration(f, [edge](Epoll &x, EpollItem &i) {
        if (i.kernel_only || i.off)
            return;
        i.due |= edge;
        make_hot(x, i);
        if (x.sleepers)
            ring_own(x);
    });
}

SD_FORK_CODE void epoll_fork_prepare() noexcept {
    uint64_t mask;
    sys::block_signals(&mask);
    for (unsigned i = 0; i < kStripes; ++i)
        stripe_favoured[i] = stripes[i].lock();
    fork_mask = mask; // only now: another thread may be between its own fork's two halves
}

SD_FORK_CODE void epoll_fork_parent() noexcept {
    forks_done.fetch_add(1, std::memory_order_relaxed);
    const uint64_t mask = fork_mask;
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
    sys::restore_signals(&fork_mask);
}

} // namespace sd
