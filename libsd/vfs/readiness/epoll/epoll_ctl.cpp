// epoll_ctl: where the events of a member come from, and the kernel's answers to wrong changes.
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

constexpr uint32_t kExclusiveAllows =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | kEdge | EPOLLEXCLUSIVE;

EpollItem *find(const File &f, const Epoll &x, int fd) noexcept {
    for (EpollItem *i = f.items; i; i = i->next_of_file)
        if (i->set == &x && i->fd == fd)
            return i;
    return nullptr;
}

/// A place among the nested sets, or -1.
int nested_place(Epoll &x, EpollItem &i) noexcept {
    for (unsigned n = 0; n < kNestedSets; ++n)
        if (!x.nested[n]) {
            x.nested[n] = &i;
            return static_cast<int>(n);
        }
    return -1;
}

epoll_event nested_registration(const EpollItem &i) noexcept {
    epoll_event e{};
    e.events = i.events & (EPOLLIN | kEdge);
    e.data.u64 = waker_word(kNestedWord + i.nested_place);
    return e;
}

/// A nested set that is edge-triggered has to count what its members tell.
void watch_nested(EpollItem &i) noexcept {
    if (i.kernel_too && i.file->kind == FileKind::epoll && ((i.events & kEdge) || i.watched)) {
        SetGuard g(*i.file->epoll);
        watch_set(*i.file->epoll);
    }
}

/// Decides where the item's events come from, and registers it with the kernel where that is needed. 0 or
/// -errno.
long enter(Epoll &x, int ep, EpollItem &i, epoll_event e) noexcept {
    File &f = *i.file;
    const bool nested = f.kind == FileKind::epoll && f.epoll->has_bell.load(std::memory_order_acquire);
    i.kernel_only = !nested && (f.kind == FileKind::epoll || (f.kind == FileKind::fresh && f.real_socket));
    i.kernel_too = nested || f.kind == FileKind::listener;
    i.always_hot = i.kernel_too;
    if (nested) {
        int place = nested_place(x, i);
        if (place < 0)
            return -ENOSPC;
        i.nested_place = static_cast<uint32_t>(place);
        e = nested_registration(i);
    }
    if (i.kernel_only) {
        const long r = sys::epoll_ctl(ep, EPOLL_CTL_ADD, i.fd, &e);
        if (r == 0)
            x.kernel_members.fetch_add(1, std::memory_order_relaxed);
        return r;
    }
    // Who waits in the kernel only has to know our data words before anything is registered with one.
    long r = count_ours(x) ? 0 : -ENOMEM;
    if (r == 0) {
        if (i.kernel_too)
            r = sys::epoll_ctl(ep, EPOLL_CTL_ADD, i.fd, &e);
        if (r == 0 && f.kind == FileKind::stream && !attach_stream(x, i))
            r = -ENOMEM;
        if (r < 0)
            --x.ours;
    }
    if (r < 0) {
        if (nested)
            x.nested[i.nested_place] = nullptr;
        return r;
    }
    if (i.kernel_too)
        ++x.duals;
    if (nested)
        begin_nested_sleeps(i, x.sleepers);
    watch_nested(i);
    item_changed(x, i);
    return 0;
}

long add(Epoll &x, int ep, int fd, File &f, const epoll_event &e) noexcept {
    if ((e.events & EPOLLEXCLUSIVE) && (f.kind == FileKind::epoll || (e.events & ~kExclusiveAllows)))
        return -EINVAL;
    if (find(f, x, fd))
        return -EEXIST;
    EpollItem *i = new_item(x);
    if (!i)
        return -ENOMEM;
    i->file = &f;
    i->set = &x;
    i->fd = fd;
    i->events = e.events;
    i->data = e.data.u64;
    i->added = ++x.added;
    i->watched = x.watched;
    i->place = static_cast<uint32_t>(x.items.size());
    long r = x.items.push(i) ? enter(x, ep, *i, e) : -ENOMEM;
    if (r < 0) {
        if (x.items.size() > i->place)
            x.items.truncate(i->place);
        drop_item(x, *i);
        return r;
    }
    i->next_of_file = f.items;
    f.items = i;
    return 0;
}

long modify(Epoll &x, int ep, EpollItem &i, const epoll_event &e) noexcept {
    if ((e.events | i.events) & EPOLLEXCLUSIVE)
        return -EINVAL;
    EpollItem before = i;
    i.events = e.events;
    i.data = e.data.u64;
    long r = 0;
    if (i.kernel_only || i.kernel_too) {
        epoll_event k = i.kernel_too && i.file->kind == FileKind::epoll ? nested_registration(i) : e;
        r = sys::epoll_ctl(ep, EPOLL_CTL_MOD, i.fd, &k);
        if (r == -ENOENT) // see epoll_file_became_kernel
            r = sys::epoll_ctl(ep, EPOLL_CTL_ADD, i.fd, &k);
    }
    if (r < 0) {
        i.events = before.events;
        i.data = before.data;
        return r;
    }
    i.off = false;
    watch_nested(i);
    if (!i.kernel_only)
        item_changed(x, i);
    return 0;
}

} // namespace

void nested_became_ours(File &f, unsigned depth) noexcept {
    File *outer[8];
    unsigned n = 0;
    {
        BiasedGuard c(ctl_lock(f));
        for (EpollItem *i = f.items; i; i = i->next_of_file) {
            if (!i->kernel_only)
                continue;
            Epoll &x = *i->set;
            SetGuard g(x);
            int place = nested_place(x, *i);
            if (place < 0)
                continue;
            i->nested_place = static_cast<uint32_t>(place);
            epoll_event e = nested_registration(*i);
            const bool first = !x.has_bell.load(std::memory_order_relaxed);
            if (!count_ours(x)) {
                x.nested[place] = nullptr;
                continue;
            }
            if (sys::epoll_ctl(set_fd(x), EPOLL_CTL_MOD, i->fd, &e) < 0) {
                x.nested[place] = nullptr;
                --x.ours;
                continue;
            }
            i->kernel_only = false;
            i->kernel_too = i->always_hot = true;
            ++x.duals;
            x.kernel_members.fetch_sub(1, std::memory_order_relaxed);
            begin_nested_sleeps(*i, x.sleepers);
            watch_nested(*i);
            item_changed(x, *i);
            if (first && n < 8)
                outer[n++] = x.file;
        }
    }
    for (unsigned k = 0; k < n && depth < 5; ++k)
        nested_became_ours(*outer[k], depth + 1);
}

namespace vfs {

void epoll_created(int fd) noexcept {
    if (!enabled() || static_cast<unsigned>(fd) >= kMaxFd)
        return;
    // Not every caller saw it made: a descriptor that is no set of the kernel's answers EINVAL, a set ENOENT.
    if (long d = dummy_socket();
        d < 0 || sys::epoll_ctl(fd, EPOLL_CTL_DEL, static_cast<int>(d), nullptr) != -ENOENT)
        return;
    File *f = new_file(FileKind::fresh);
    if (!f)
        return;
    if (!new_set(*f, fd)) {
        discard_file(f);
        return;
    }
    std::atomic_signal_fence(std::memory_order_release);
    // Its set is there: the File may be looked at by who knew it when it was another's
    f->kind = FileKind::epoll;
    install_file(fd, f);
}

long epoll_ctl(int ep, int op, int fd, epoll_event *event) noexcept {
    File *ef = file_of(ep);
    if (!ef || ef->kind != FileKind::epoll)
        return kPass;
    Epoll &x = *ef->epoll;
    if (op == EPOLL_CTL_ADD && !file_of(fd))
        import_listener(fd);
    // What is added may be closed by another thread meanwhile: an item made after that would stay for ever. A
    // handler that jumps away would leave the reference.
    PutOff quiet;
    const ReferencedFile added(fd, op == EPOLL_CTL_ADD);
    File *f = added.file() ? added.file() : file_of(fd);
    if (!f) {
        long r = sys::epoll_ctl(ep, op, fd, event);
        if (r == 0 && op != EPOLL_CTL_MOD)
            x.kernel_members.fetch_add(op == EPOLL_CTL_ADD ? 1 : -1, std::memory_order_relaxed);
        return r;
    }
    epoll_event e{};
    if (op != EPOLL_CTL_DEL && sd_copy(&e, event, sizeof e))
        return -EFAULT;
    if (f == ef)
        return -EINVAL;
    long r = 0;
    const bool none_before = !x.has_bell.load(std::memory_order_relaxed);
    {
        BiasedGuard c(ctl_lock(*f));
        SetGuard g(x);
        begin_use(x);
        EpollItem *i = find(*f, x, fd);
        if (!is_open(x, *ef, ep)) { // closed just now
            r = -EBADF;
        } else if (op == EPOLL_CTL_ADD) {
            r = add(x, ep, fd, *f, e);
        } else if (!i) {
            // It may have been added before we knew the socket.
            r = f->real_socket || f->kind == FileKind::epoll         ? sys::epoll_ctl(ep, op, fd, &e)
                : op == EPOLL_CTL_MOD && (e.events & EPOLLEXCLUSIVE) ? -EINVAL
                : op == EPOLL_CTL_MOD || op == EPOLL_CTL_DEL         ? -ENOENT
                                                                     : -EINVAL;
        } else if (op == EPOLL_CTL_MOD) {
            r = modify(x, ep, *i, e);
        } else if (op == EPOLL_CTL_DEL) {
            if (i->kernel_only || i->kernel_too)
                sys::epoll_ctl(ep, EPOLL_CTL_DEL, fd, nullptr);
            keep_watching(x, *i);
            remove_item(x, *i);
        } else {
            r = -EINVAL;
        }
    }
    if (r == 0 && none_before && x.has_bell.load(std::memory_order_relaxed))
        nested_became_ours(*ef, 0);
    return r;
}

} // namespace vfs

} // namespace sd
