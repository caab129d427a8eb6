// What happens to the registrations of a socket that changes, closes or goes to the kernel.
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"

namespace sd {

void epoll_end_registrations(File &f) noexcept {
    end_leftover_watch(f);
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

bool epoll_is_in_inherited(File &f) noexcept {
    bool found = false;
    for_each_registration(f, [&](const Epoll &x, const EpollItem &) {
        found |= x.born != forks_done.load(std::memory_order_relaxed);
    });
    return found;
}

void epoll_stream_ends(File &f) noexcept {
    end_leftover_watch(f);
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

void epoll_file_became_kernel(File &f, int only) noexcept {
    end_leftover_watch(f);
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
        const bool is_used = x.used_in == fork_generation.load(std::memory_order_relaxed);
        if (is_used || !put_off(x, i->fd, e)) {
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

} // namespace sd
