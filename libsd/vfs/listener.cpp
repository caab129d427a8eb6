// Accelerated listeners: registration, the links that lead to them, and taking connections from the SYN queues.
#include "libsd/vfs/listener.hpp"
#include "libsd/control/around_fork.hpp"
#include "libsd/control/client.hpp"
#include "libsd/vfs/accept.hpp"
#include "libsd/vfs/connection.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstring>
#include <sys/stat.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<Listener> pool;
SD_FORK_STATE constinit Lock all_lock;
SD_FORK_STATE MapVector<File *> all;                ///< every listener of this process, for restore
SD_FORK_STATE std::atomic<uint32_t> retirements{0}; ///< listeners given up: the monitor has forgotten their bells

/// In the place of `old`, if that is not null: a thread that still looks at a listener that was closed finds memory there.
ListenerSegment *map_segment(int fd, ListenerSegment *old) noexcept {
    struct stat st;
    if (sys::call(SYS_fstat, fd, sys::arg(&st)) < 0 || static_cast<size_t>(st.st_size) < sizeof(ListenerSegment))
        return nullptr;
    auto *s = static_cast<ListenerSegment *>(sys::mmap(old, sizeof(ListenerSegment), PROT_READ | PROT_WRITE,
                                                       MAP_SHARED | (old ? MAP_FIXED : 0), fd, 0));
    if (!s || (s->magic == kListenerMagic && s->version == kLayoutVersion))
        return s;
    if (!old)
        sys::munmap(s, sizeof(ListenerSegment));
    return nullptr;
}

/// Asks the monitor for the listener's segment; on success the listener is in the directory. `*seg`: null, or one that is not used any more.
long announce(int fd, uint32_t backlog, wire::ListenReply *reply, ListenerSegment **seg, Cause *why) noexcept {
    wire::Listen msg{backlog, 0};
    auto r = control::request(wire::Op::listen, &msg, sizeof msg, &fd, 1);
    if (r.status < 0 || r.fds != 1 || r.length != sizeof(wire::ListenReply)) {
        control::close_received(r);
        *why = control::cause_of(r, Cause::no_monitor);
        return r.status < 0 ? r.status : -EPROTO;
    }
    *reply = r.as<wire::ListenReply>();
    ListenerSegment *const mapped = map_segment(r.fd[0], *seg);
    sys::close(r.fd[0]);
    if (!mapped) {
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    *seg = mapped;
    return 0;
}

/// With the listener's lock.
bool known(Listener &l, uint64_t id) noexcept {
    for (auto &ref : l.links)
        if (ref.link->id == id)
            return true;
    return false;
}

/// What the kernel calls the socket behind a descriptor, for as long as it runs; 0: it does not say.
uint64_t cookie_of(int fd) noexcept {
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;
    return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) < 0 ? 0 : cookie;
}

/// Client side gone for good and everything in the queue taken: nothing will come from this link.
bool finished(const ListenerLinkRef &ref) noexcept {
    return (ref.link->view.header().side[0].flags.load(std::memory_order_acquire) & kLinkClientDead) &&
           ref.link->view.syn(ref.place->syn_head.load(std::memory_order_acquire)).load(std::memory_order_acquire) ==
               0;
}

/// Server side of a link, with a reference for the listener's list. Connections that came over an exec, or were passed, may have it mapped already.
/// The descriptor's ownership passes.
LinkMap *map_or_find(uint64_t id, int memfd) noexcept {
    if (LinkMap *l = find_link(id, 1)) {
        const bool used = link_use(*l);
        if (used && l->id == id && l->side == 1) {
            sys::close(memfd);
            return l;
        }
        if (used)
            link_unuse(*l);
    }
    const long fd = hide_fd(memfd);
    if (fd < 0)
        return nullptr;
    long error;
    LinkMap *l = map_link(static_cast<int>(fd), id, 1, &error);
    if (!l)
        close_hidden(static_cast<int>(fd));
    return l;
}

} // namespace

bool listener_refresh(Listener &l) noexcept {
    if (l.retired.load(std::memory_order_relaxed))
        return false;
    uint64_t now = l.seg->link_sequence.load(std::memory_order_acquire);
    if (now == l.seen_sequence) [[likely]]
        return false;
    LinkMap *dead[16];
    unsigned ndead = 0;
    bool added = false;
    {
        QuietGuard g(l.lock);
        for (size_t i = l.links.size(); i-- > 0 && ndead < 16;)
            if (finished(l.links[i])) {
                dead[ndead++] = l.links[i].link;
                l.links.remove_unordered(i);
            }
        // Only what is not known yet is asked for: with many clients, each new one would otherwise bring all links again.
        wire::Links ask{l.id, UINT32_MAX};
        for (uint32_t i = 0, high = l.seg->link_high.load(std::memory_order_acquire);
             i < high && i < kListenerLinks; ++i)
            if (uint64_t id = l.seg->link[i].link_id.load(std::memory_order_acquire); id && !known(l, id)) {
                ask.from = i;
                break;
            }
        while (ask.from != UINT32_MAX) {
            auto r = control::request(wire::Op::links, &ask, sizeof ask);
            if (r.status < 0 || r.length != sizeof(wire::LinksReply)) {
                control::close_received(r);
                break;
            }
            const auto &reply = r.as<wire::LinksReply>();
            for (unsigned i = 0; i < r.fds; ++i) {
                uint32_t place = i < reply.count ? reply.link[i].place : kListenerLinks;
                if (place >= kListenerLinks || known(l, reply.link[i].link_id)) {
                    sys::close(r.fd[i]);
                    continue;
                }
                LinkMap *m = map_or_find(reply.link[i].link_id, r.fd[i]);
                if (!m)
                    continue;
                m->place = place;
                m->listener_id = l.id;
                l.links.push({m, &l.seg->link[place]});
                added = true;
            }
            ask.from = reply.count && reply.next > ask.from ? reply.next : UINT32_MAX;
        }
        l.seen_sequence = now;
    }
    for (unsigned i = 0; i < ndead; ++i)
        link_unuse(*dead[i]);
    return added;
}

unsigned listener_links(Listener &l, LinkMap **out, unsigned max) noexcept {
    QuietGuard g(l.lock);
    unsigned n = 0;
    for (auto &ref : l.links) {
        if (n < max)
            out[n] = ref.link;
        ++n;
    }
    return n;
}

unsigned hold_listener_links(Listener &l, LinkMap **out, unsigned max) noexcept {
    QuietGuard g(l.lock);
    unsigned n = 0;
    for (auto &ref : l.links) {
        if (n < max) {
            ref.link->users.fetch_add(1, std::memory_order_acq_rel);
            out[n] = ref.link;
        }
        ++n;
    }
    return n;
}

// A waiter pins the File, then looks whether the number still stands for it; who closes takes the number out of the table, then looks whether the File is
// pinned. Both are locked instructions, so one of them sees the other: a waiter that found its number has it kept.
// dup2 only replaces the entry after the kernel has closed the number: a call that begins to wait in between ends as one that began after it.
void keep_for_waiters(File &f, int fd) noexcept {
    if (f.kind != Kind::listener || pinned.load(std::memory_order_seq_cst) == 0 || f.listener->kept.load() >= 0)
        return;
    const long copy = hide_copy(fd);
    int none = -1;
    if (copy >= 0 && !f.listener->kept.compare_exchange_strong(none, static_cast<int>(copy)))
        close_hidden(static_cast<int>(copy));
}

int listener_fd(const File &f, int fd) noexcept {
    if (f.kind != Kind::listener)
        return -1;
    const int kept = f.listener->kept.load(std::memory_order_acquire);
    return kept >= 0 ? kept : file_of(fd) == &f ? fd : -1;
}

void listeners_moved(int from, int to) noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        int expected = from;
        f->listener->kept.compare_exchange_strong(expected, to);
    }
}

long listener_bell(Listener &l, Bell &b) noexcept {
    if (b.efd < 0 && !complete_bell(b))
        return -EMFILE;
    wire::ListenerRef ref{l.id, 0};
    long r = control::request(wire::Op::accept_bell, &ref, sizeof ref, &b.efd, 1).status;
    // A link made before the bell was known did not ring it: it has to be in the list that the caller arms next, or its first SYN,
    // sent by a client that finds nobody armed, would be slept through.
    if (r == 0)
        listener_refresh(l);
    return r;
}

bool listener_announces(Listener &l, Bell &bell) noexcept {
    struct Known {
        uint32_t listener, epoch, ended;
        Bell *bell;
    };
    // The last few, because asking is a message to the monitor.
    static constinit thread_local Known known[4]{};
    static constinit thread_local unsigned next = 0;
    const uint32_t epoch = control::epoch(), ended = retirements.load(std::memory_order_relaxed);
    for (const Known &k : known)
        if (k.bell == &bell && k.listener == l.id && k.epoch == epoch && k.ended == ended)
            return true;
    if (listener_bell(l, bell) < 0)
        return false;
    known[next++ % 4] = {l.id, epoch, ended, &bell};
    return true;
}

bool listener_pending(Listener &l) noexcept {
    listener_refresh(l);
    // The list only changes under the lock; a scan that sees a removed entry reads a link that is still mapped until its users are gone,
    // so the lock is taken here too. It is uncontended except while several threads accept.
    QuietGuard g(l.lock);
    for (auto &ref : l.links)
        if (ref.link->view.syn(ref.place->syn_head.load(std::memory_order_acquire)).load(std::memory_order_acquire))
            return true;
    return false;
}

namespace {

/// The link to take from first: that of the client who has waited longest, where looking at all of them costs little; else they take turns. The
/// times are the clients' own words: who says he came first over and over gets no more than a fair share.
size_t first_link(Listener &l) noexcept {
    constexpr size_t kFew = 16;
    constexpr uint32_t kMostInARow = 64;
    const size_t n = l.links.size();
    size_t best = l.next;
    if (n < 2 || n > kFew || l.in_a_row >= kMostInARow) {
        l.in_a_row = 0;
        return best;
    }
    uint64_t earliest = UINT64_MAX;
    unsigned waiting = 0;
    for (size_t k = 0; k < n; ++k) {
        const size_t i = (l.next + k) % n;
        const LinkView v = l.links[i].link->view;
        const uint32_t entry =
            v.syn(l.links[i].place->syn_head.load(std::memory_order_acquire)).load(std::memory_order_acquire);
        if (entry == 0 || entry > kLinkSlots)
            continue;
        ++waiting;
        if (const uint64_t since = v.slot(entry - 1).identity.arrival; since < earliest) {
            earliest = since;
            best = i;
        }
    }
    l.in_a_row = waiting > 1 && best == l.last ? l.in_a_row + 1 : 0;
    l.last = static_cast<uint32_t>(best);
    return best;
}

} // namespace

long take_pending(Listener &l, uint32_t life, LinkMap **link, uint32_t *slot) noexcept {
    listener_refresh(l);
    QuietGuard g(l.lock);
    if (l.life.load(std::memory_order_relaxed) != life) [[unlikely]]
        return -EBADF;
    const size_t n = l.links.size();
    const size_t first = n ? first_link(l) : 0;
    for (size_t k = 0; k < n; ++k) {
        ListenerLinkRef &ref = l.links[(first + k) % n];
        LinkView v = ref.link->view;
        for (;;) {
            uint32_t head = ref.place->syn_head.load(std::memory_order_acquire);
            uint32_t entry = v.syn(head).load(std::memory_order_acquire);
            if (entry == 0)
                break;
            // Acceptors in other processes compete here; who moves the head owns the entry.
            if (!ref.place->syn_head.compare_exchange_strong(head, head + 1, std::memory_order_acq_rel))
                continue;
            v.syn(head).store(0, std::memory_order_release);
            uint32_t i = entry - 1;
            uint32_t syn = static_cast<uint32_t>(SlotState::syn);
            if (i >= kLinkSlots || !v.slot(i).identity.state.compare_exchange_strong(
                                       syn, static_cast<uint32_t>(SlotState::accepted)))
                continue; // taken back by the client, or rubbish
            l.next = static_cast<uint32_t>((first + k + 1) % n);
            *link = ref.link;
            *slot = i;
            ref.link->users.fetch_add(1, std::memory_order_relaxed); // until bind_stream has counted it
            return 0;
        }
    }
    return -EAGAIN;
}

long register_listener(int fd, File *f, int backlog, Cause *why) noexcept {
    if (!control::ensure(why))
        return -ECONNREFUSED;
    if (!links_can_be_mapped()) { // its clients would wait where we cannot look
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    Listener *l = pool.allocate();
    if (!l) {
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    l->cookie = cookie_of(fd);
    // Until it is in the list: a File of the same socket that is closed just now would have the monitor forget this one with it.
    LockGuard g(all_lock);
    // somaxconn bounds it in the kernel too; one more than asked for fits, as there.
    uint32_t room = static_cast<uint32_t>(backlog < 0 ? 4095 : backlog > 4094 ? 4095 : backlog + 1);
    wire::ListenReply reply;
    long r = announce(fd, room, &reply, &l->seg, why);
    if (r < 0) {
        pool.release(l);
        return r;
    }
    l->id = reply.listener_id;
    l->turns.store(reply.was_orphan ? 0 : Listener::kKernelNext, std::memory_order_relaxed);
    l->backlog = room;
    l->retired.store(false, std::memory_order_relaxed);
    l->kept.store(-1, std::memory_order_relaxed);
    l->seen_sequence = 0;
    l->links.truncate(0);
    l->options.begin(*f);
    f->listener = l;
    f->real_socket = true;
    std::atomic_signal_fence(std::memory_order_release);
    f->kind = Kind::listener;
    all.push(f);
    return 0;
}

File *find_listener(int fd) noexcept {
    const uint64_t cookie = cookie_of(fd);
    LockGuard g(all_lock);
    for (File *f : all)
        if (cookie != 0 && f->listener->cookie == cookie && !f->listener->retired.load() && take_reference(*f))
            return f;
    return nullptr;
}

namespace {

/// The listener needs its links no more.
void let_go(Listener &l, bool closed) noexcept {
    if (closed) {
        QuietGuard g(l.lock);
        l.life.fetch_add(1, std::memory_order_release);
    }
    retirements.fetch_add(1, std::memory_order_relaxed);
    LinkMap *links[64];
    unsigned n;
    do {
        n = 0;
        {
            QuietGuard g(l.lock);
            for (size_t i = l.links.size(); i-- > 0 && n < 64;) {
                links[n++] = l.links[i].link;
                l.links.remove_unordered(i);
            }
        }
        for (unsigned i = 0; i < n; ++i)
            link_unuse(*links[i]);
    } while (n == 64);
}

void unlisten(const Listener &l) noexcept {
    wire::ListenerRef ref{l.id, 0};
    control::request(wire::Op::unlisten, &ref, sizeof ref);
}

} // namespace

void retire_listener(Listener &l) noexcept {
    if (l.retired.exchange(true))
        return;
    unlisten(l);
    let_go(l, false);
}

void close_listener(File *f) noexcept {
    Listener *l = f->listener; // the pointer stays: another thread may be about to look at it
    {
        LockGuard g(all_lock);
        bool another = false; // somebody has noticed the socket under another number, too late to find this File
        for (size_t i = all.size(); i-- > 0;) {
            if (all[i] == f)
                all.remove_unordered(i);
            else
                another |= all[i]->listener->id == l->id && !all[i]->listener->retired.load();
        }
        close_hidden(l->kept.exchange(-1)); // first: the monitor looks whether the kernel's socket has ended
        if (!l->retired.exchange(true) && !another)
            unlisten(*l);
    }
    let_go(*l, true);
    // The segment stays mapped until there is another one for this Listener: another thread may be looking at it.
    pool.release(l);
}

void unlist(const Listener &l) noexcept {
    wire::ListenerRef ref{l.id, 0};
    control::request(wire::Op::unlist, &ref, sizeof ref);
}

void withdraw_listeners() noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        unlist(*f->listener);
        retire_listener(*f->listener);
    }
}

void restore_listeners() noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        Listener *l = f->listener;
        // Any descriptor of the listener will do to show it to the monitor.
        int fd = l->kept.load();
        for (uint32_t i = 0, n = fd_high.load(); i < n && fd < 0; ++i)
            if (fd_table[i].load(std::memory_order_acquire) == f)
                fd = static_cast<int>(i);
        wire::ListenReply reply;
        ListenerSegment *seg = nullptr;
        Cause why;
        if (fd < 0 || l->retired.load() || announce(fd, l->backlog, &reply, &seg, &why) < 0)
            continue;
        LockGuard h(l->lock);
        // Links made before the restart keep their place in the old segment: clients that have not noticed still use them.
        l->id = reply.listener_id;
        l->seg = seg;
        l->seen_sequence = 0;
    }
}

SD_FORK_CODE void uncount_listeners() noexcept {
    for (File *f : all)
        f->refs.store(0, std::memory_order_relaxed);
}

SD_FORK_CODE void drop_uncounted_listeners() noexcept {
    for (size_t i = all.size(); i-- > 0;)
        if (File *f = all[i]; f->refs.load(std::memory_order_relaxed) == 0)
            discard_file(f); // takes it out of the list
}

SD_FORK_CODE void listeners_fork_prepare() noexcept { all_lock.lock_unmasked(); }
SD_FORK_CODE void listeners_fork_parent() noexcept { all_lock.unlock_unmasked(); }

SD_FORK_CODE void listeners_fork_child() noexcept {
    pool.reset_lock();
    all_lock.reset();
    // Also of those that another thread was just closing: their Files may have numbers still.
    pool.for_each([](Listener &l) {
        if (!l.lock.try_lock_unmasked())
            l.seen_sequence = UINT64_MAX; // that thread may have been changing the list: it is looked through again
        l.lock.reset();
    });
}

} // namespace sd
