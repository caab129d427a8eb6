// A member that was the kernel's becomes ours: what has been told of it is not told again.
//
// An edge-triggered member is told of once, and a one-shot one is silent from then on. The kernel knows which
// of them it still has to tell of, and says so to who waits: so that is asked, without waiting, and what
// comes of other members is put back by EPOLL_CTL_MOD, which has the kernel look at them anew.
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include <cstdio>
#include <cstring>
#include <fcntl.h>

namespace sd {

namespace {

constexpr uint32_t kOnce = kEdge | EPOLLONESHOT;
/// What the kernel keeps of a one-shot registration that has fired.
constexpr uint32_t kPrivate = kOnce | EPOLLWAKEUP | EPOLLEXCLUSIVE;
constexpr int kJoinedAtOnce = 64;

/// Is each member of the kernel's set known here, and can it be put back? Only then may what the kernel has
/// to tell be taken.
bool can_be_asked(Epoll &x, const EpollItem &of) noexcept {
    if (sandboxed() || x.duals != 0 || x.passed || x.born != forks_done.load(std::memory_order_relaxed))
        return false;
    int32_t known = 0;
    for (const EpollItem *i : x.items) {
        known += i->kernel_only;
        if (i != &of && i->kernel_only && (i->events & kOnce) && (i->events & EPOLLEXCLUSIVE))
            return false;
    }
    return known == x.kernel_members.load(std::memory_order_relaxed);
}

/// The number that stands behind `name` in a line; ~0: there is none.
uint64_t number_behind(const char *line, const char *name, unsigned base) noexcept {
    const char *p = strstr(line, name);
    if (!p)
        return ~uint64_t{0};
    for (p += strlen(name); *p == ' ';)
        ++p;
    uint64_t n = 0;
    for (;; ++p) {
        const unsigned digit = *p >= '0' && *p <= '9'   ? static_cast<unsigned>(*p - '0')
                               : *p >= 'a' && *p <= 'f' ? static_cast<unsigned>(*p - 'a') + 10
                                                        : base;
        if (digit >= base)
            return n;
        n = n * base + digit;
    }
}

/// Has a one-shot registration fired? The kernel shows what it waits for in /proc.
bool has_fired(const Epoll &x, const EpollItem &i) noexcept {
    char name[64], text[512];
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", set_fd(x));
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg(name), O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool fired = false, found = false;
    size_t have = 0;
    for (long n; !found && (n = sys::read(static_cast<int>(fd), text + have, sizeof text - 1 - have)) > 0;) {
        have += static_cast<size_t>(n);
        text[have] = '\0';
        char *line = text;
        for (char *end; !found && (end = strchr(line, '\n')); line = end + 1) {
            *end = '\0';
            found = number_behind(line, "tfd:", 10) == static_cast<unsigned>(i.fd);
            fired = found && (number_behind(line, "events:", 16) & ~uint64_t{kPrivate}) == 0;
        }
        have = strlen(line);
        memmove(text, line, have);
        if (have == sizeof text - 1) // no line is as long
            have = 0;
    }
    sys::close(static_cast<int>(fd));
    return fired;
}

/// Has the kernel something to tell of the member? Takes it, and puts back what it has of others.
bool kernel_has_news(Epoll &x, const EpollItem &of) noexcept {
    epoll_event told[kJoinedAtOnce];
    const long n = sys::epoll_pwait(set_fd(x), told, kJoinedAtOnce, 0, nullptr);
    bool news = n == kJoinedAtOnce; // there may be more
    for (long k = 0; k < n; ++k) {
        news |= told[k].data.u64 == of.data;
        for (const EpollItem *i : x.items)
            if (i != &of && i->kernel_only && (i->events & kOnce) && told[k].data.u64 == i->data) {
                epoll_event e{};
                e.events = i->events;
                e.data.u64 = i->data;
                sys::epoll_ctl(set_fd(x), EPOLL_CTL_MOD, i->fd, &e);
            }
    }
    return news;
}

} // namespace

void joined_as_member(Epoll &x, EpollItem &i) noexcept {
    if (!(i.events & kOnce) || !can_be_asked(x, i)) {
        item_changed(x, i);
        return;
    }
    if ((i.events & EPOLLONESHOT) && has_fired(x, i)) {
        leave_list(x, i);
        i.off = true;
        return;
    }
    // What is there now counts as told, unless the kernel, asked after that, still has it to tell.
    i.due = false;
    i.level = 0;
    (void)look(i, true);
    if (kernel_has_news(x, i) || !(i.events & kEdge)) {
        item_changed(x, i);
        return;
    }
    make_hot(x, i);
    if (x.sleepers)
        ring_own(x);
}

} // namespace sd
