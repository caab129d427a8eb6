// Accelerated listeners: registration, their doorbells, and their end.
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/kernel_sockets/cookie.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstring>
#include <sys/stat.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<Listener> listener_pool;
SD_FORK_STATE constinit Lock all_lock;
SD_FORK_STATE MapVector<File *> all; ///< every listener of this process, for restore
/// Listeners given up: the monitor has forgotten their bells
SD_FORK_STATE std::atomic<uint32_t> retirements{0};

/// In the place of `old`, if that is not null: a thread that still looks at a listener that was closed finds
/// memory there.
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

/// What a process says of the listeners that its children have from it.
struct GivenUp {
    const std::atomic<uint32_t> *count = nullptr; ///< in its own segment; null: it has none
    uint32_t then = 0;                            ///< the count before the fork
    long pid = 0;
};
SD_FORK_STATE GivenUp our_word, parents_word;
/// How many forks lie between the first process and this one. A listener of before the last one is the
/// parent's, too.
SD_FORK_STATE uint32_t fork_depth = 0;

SD_FORK_CODE std::atomic<uint32_t> *own_count() noexcept {
    const int own = own_segment_index.load(std::memory_order_acquire);
    return own < 0 ? nullptr : &segments[own].view.header().listeners_given_up;
}

/// Does the parent hold what this process has from it? Where it does, its kernel socket goes on listening
/// whatever is closed here. A parent that has ended is not ours any more; a segment that was left is zero.
bool parent_holds(const Listener &l) noexcept {
    return l.fork_depth != fork_depth && parents_word.then != 0 && !sandboxed() &&
           parents_word.count->load(std::memory_order_seq_cst) == parents_word.then &&
           sys::call(SYS_getppid) == parents_word.pid;
}

/// The answer is waited for where it could be the last one: whoever connects then has to be refused.
void unlisten(uint32_t id, bool held_by_parent = false) noexcept {
    wire::ListenerRef ref{id, 0};
    listeners_given_up();
    if (held_by_parent)
        control::tell(wire::Op::unlisten, &ref, sizeof ref);
    else
        control::request(wire::Op::unlisten, &ref, sizeof ref);
}

/// With all_lock: the monitor is told, unless somebody here has the listener under the same id still.
void unlisten_unless_held(uint32_t id, bool held_by_parent = false) noexcept {
    for (const File *f : all)
        if (f->listener->id == id && !f->listener->retired.load())
            return;
    unlisten(id, held_by_parent);
}

/// With all_lock. Asks the monitor for the listener's segment; on success the listener is in the directory.
/// `*seg`: null, or one that is not used any more.
long announce(int fd, uint32_t backlog, wire::ListenReply *reply, ListenerSegment **seg, Cause *why) noexcept {
    wire::Listen msg{backlog, 0};
    auto r = control::request(wire::Op::listen, &msg, sizeof msg, &fd, 1);
    const bool registered = r.length == sizeof(wire::ListenReply);
    ListenerSegment *mapped = nullptr;
    if (r.status == 0 && registered && r.fds == 1) {
        *reply = r.as<wire::ListenReply>();
        mapped = map_segment(r.fd[0], *seg);
        *why = Cause::no_memory;
    } else {
        *why = control::cause_of(r, Cause::no_monitor);
    }
    control::close_received(r);
    if (mapped) {
        *seg = mapped;
        return 0;
    }
    if (registered) // the answer, or what came with it, is of no use to us: clients would wait for nobody
        unlisten_unless_held(r.as<wire::ListenReply>().listener_id);
    return r.status < 0 ? r.status : -ENOMEM;
}

} // namespace

// A waiter pins the File, then looks whether the number still stands for it; who closes takes the number out
// of the table, then looks whether the File is pinned. Both are locked instructions, so one of them sees the
// other: a waiter that found its number has it kept. dup2 only replaces the entry after the kernel has closed
// the number: a call that begins to wait in between ends as one that began after it.
SD_FORK_CODE void keep_for_waiters(File &f, int fd) noexcept {
    if (f.kind != FileKind::listener || pinned.load(std::memory_order_seq_cst) == 0 ||
        f.listener->waiters_fd.load() >= 0)
        return;
    const long copy = hide_copy(fd);
    int none = -1;
    if (copy >= 0 && !f.listener->waiters_fd.compare_exchange_strong(none, static_cast<int>(copy)))
        close_hidden(static_cast<int>(copy));
}

int listener_fd(const File &f, int fd) noexcept {
    if (f.kind != FileKind::listener)
        return -1;
    const int waiters = f.listener->waiters_fd.load(std::memory_order_acquire);
    return waiters >= 0 ? waiters : file_of(fd) == &f ? fd : -1;
}

void listeners_moved(int from, int to) noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        int expected = from;
        f->listener->waiters_fd.compare_exchange_strong(expected, to);
    }
}

long listener_bell(Listener &l, Bell &b) noexcept {
    if (b.efd < 0 && !complete_bell(b))
        return -EMFILE;
    wire::ListenerRef ref{l.id, 0};
    long r = control::request(wire::Op::accept_bell, &ref, sizeof ref, &b.efd, 1).status;
    // A link made before the bell was known did not ring it: it has to be in the list that the caller arms
    // next, or its first SYN, sent by a client that finds nobody armed, would be slept through.
    if (r == 0) {
        b.announced = true;
        listener_refresh(l);
    }
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

long register_listener(int fd, File *f, int backlog, Cause *why) noexcept {
    if (!control::ensure(why))
        return -ECONNREFUSED;
    if (!links_can_be_mapped()) { // its clients would wait where we cannot look
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    Listener *l = listener_pool.allocate();
    if (!l) {
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    l->cookie = cookie_of(fd);
    if (kernel_address(fd, &l->address) < 0) {
        listener_pool.release(l);
        *why = Cause::raw_use;
        return -ENOTSOCK;
    }
    // Until it is in the list: a File of the same socket that is closed just now would have the monitor
    // forget this one with it.
    LockGuard g(all_lock);
    if (!all.make_room()) { // a restarted monitor would never hear of it
        listener_pool.release(l);
        *why = Cause::no_memory;
        return -ENOMEM;
    }
    // somaxconn bounds it in the kernel too; one more than asked for fits, as there.
    uint32_t room = static_cast<uint32_t>(backlog < 0 ? 4095 : backlog > 4094 ? 4095 : backlog + 1);
    wire::ListenReply reply;
    long r = announce(fd, room, &reply, &l->seg, why);
    if (r < 0) {
        listener_pool.release(l);
        return r;
    }
    l->id = reply.listener_id;
    l->fork_depth = fork_depth;
    // Who waits on a link came before it was taken: in turn 0 the links are first.
    l->turns.store(reply.was_orphan ? 0 : Listener::kKernelNext, std::memory_order_relaxed);
    l->backlog = room;
    l->retired.store(false, std::memory_order_relaxed);
    l->waiters_fd.store(-1, std::memory_order_relaxed);
    l->told.store(0, std::memory_order_relaxed);
    l->seen_sequence = 0;
    l->links.truncate(0);
    l->options.begin(*f);
    f->listener = l;
    f->real_socket = true;
    std::atomic_signal_fence(std::memory_order_release);
    f->kind = FileKind::listener;
    (void)all.push(f); // there is room
    return 0;
}

bool is_socket_of(const Listener &l, int fd) noexcept { return l.cookie == 0 || cookie_of(fd) == l.cookie; }

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
SD_FORK_CODE void let_go(Listener &l, bool closed) noexcept {
    if (closed) {
        QuietGuard g(l.lock);
        l.generation.fetch_add(1, std::memory_order_release);
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

} // namespace

void retire_listener(Listener &l) noexcept {
    if (l.retired.exchange(true))
        return;
    unlisten(l.id);
    let_go(l, false);
}

SD_FORK_CODE void close_listener(File *f) noexcept {
    Listener *l = f->listener; // the pointer stays: another thread may be about to look at it
    {
        LockGuard g(all_lock);
        for (size_t i = all.size(); i-- > 0;)
            if (all[i] == f) {
                all.remove_unordered(i);
                break;
            }
        // First: the monitor looks whether the kernel's socket has ended
        close_hidden(l->waiters_fd.exchange(-1));
        // Somebody may have noticed the socket under another number, too late to find this File.
        if (!l->retired.exchange(true))
            unlisten_unless_held(l->id, parent_holds(*l));
    }
    let_go(*l, true);
    // The segment stays mapped until there is another one for this Listener: another thread may be looking at
    // it.
    listener_pool.release(l);
}

void unlist(const Listener &l) noexcept {
    wire::ListenerRef ref{l.id, 0};
    control::request(wire::Op::unlist, &ref, sizeof ref);
}

bool is_any_listener_waited_on() noexcept {
    LockGuard g(all_lock);
    for (const File *f : all) {
        uint32_t numbers = 0;
        for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd)
            numbers += fd_table[fd].load(std::memory_order_acquire) == f;
        if (f->refs.load(std::memory_order_acquire) > numbers)
            return true;
    }
    return false;
}

void withdraw_listeners(bool for_all) noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        Listener &l = *f->listener;
        if (l.retired.load())
            continue;
        if (for_all)
            unlist(l);
        leave_waiting_to_kernel(*f); // nobody here will look at the links
        retire_listener(l);
    }
}

void look_for_links() noexcept {
    LockGuard g(all_lock);
    for (File *f : all)
        if (f->listener->fork_depth == fork_depth)
            (void)listener_refresh(*f->listener);
}

void ask_for_links_anew() noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        Listener &l = *f->listener;
        if (l.retired.load())
            continue;
        bool any;
        {
            QuietGuard h(l.lock);
            any = l.links.size() != 0;
        }
        if (any) // who waits there would wait for those who keep the links, and they may not accept any more
            leave_waiting_to_kernel(*f);
        let_go(l, false);
        QuietGuard h(l.lock);
        l.seen_sequence = UINT64_MAX;
    }
}

void restore_listeners() noexcept {
    LockGuard g(all_lock);
    for (File *f : all) {
        Listener *l = f->listener;
        // Any descriptor of the listener will do to show it to the monitor.
        int fd = l->waiters_fd.load();
        if (fd < 0)
            fd = any_number(*f);
        wire::ListenReply reply;
        ListenerSegment *seg = nullptr;
        Cause why;
        if (fd < 0 || l->retired.load() || announce(fd, l->backlog, &reply, &seg, &why) < 0)
            continue;
        (void)mark_for_discovery(fd, kMarkAgain); // else what it accepts stays with the kernel
        LockGuard h(l->lock);
        // Links made before the restart keep their place in the old segment: clients that have not noticed
        // still use them.
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

void listeners_given_up() noexcept {
    if (auto *count = own_count())
        count->fetch_add(1, std::memory_order_seq_cst);
}

SD_FORK_CODE void listeners_fork_prepare() noexcept {
    all_lock.lock_unmasked();
    const auto *count = own_count();
    our_word = {count, count ? count->load(std::memory_order_seq_cst) : 0, sys::getpid()};
}
SD_FORK_CODE void listeners_fork_parent() noexcept { all_lock.unlock_unmasked(); }

SD_FORK_CODE void listeners_fork_child() noexcept {
    listener_pool.reset_lock();
    all_lock.reset();
    parents_word = our_word;
    ++fork_depth;
    // Also of those that another thread was just closing: their Files may have numbers still.
    listener_pool.for_each([](Listener &l) {
        if (!l.lock.try_lock_unmasked())
            // That thread may have been changing the list: it is looked through again
            l.seen_sequence = UINT64_MAX;
        l.lock.reset();
    });
}

} // namespace sd
