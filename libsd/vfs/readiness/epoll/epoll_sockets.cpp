// The sockets of members with two paths, which stand in a hidden set inside the kernel's set: Epoll::sockets.
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"

namespace sd {

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
    uint64_t leftover = watch_of(x, fd);
    if (f && f->stream.leftover_watch.compare_exchange_strong(leftover, 0, std::memory_order_relaxed))
        sys::epoll_ctl(x.sockets, EPOLL_CTL_DEL, fd, nullptr);
}

} // namespace

void forget_watches(Epoll &x) noexcept {
    if (x.sockets >= 0)
        x.sockets_name = new_sockets_name();
}

void close_socket_set(Epoll &x) noexcept {
    if (x.sockets >= 0)
        close_hidden(x.sockets);
    x.sockets = -1;
    x.sockets_name = 0;
}

void watch_socket(Epoll &x, EpollItem &i) noexcept {
    i.always_hot = true;
    // What the kernel has told of it meanwhile, the look at a new member finds.
    if (auto &leftover = i.file->stream.leftover_watch;
        x.sockets_name != 0 && leftover.load(std::memory_order_relaxed) == watch_of(x, i.fd)) {
        leftover.store(0, std::memory_order_relaxed);
        return;
    }
    epoll_event e{};
    e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | kEdge;
    const int set = socket_set(x);
    if (set == x.sockets)
        e.data.u64 = uint64_t{i.place} << 32 | static_cast<uint32_t>(i.fd);
    else
        e.data.u64 = waker_word(kBellWord);
    if (sys::epoll_ctl(set, EPOLL_CTL_ADD, i.fd, &e) == -EEXIST)
        sys::epoll_ctl(set, EPOLL_CTL_MOD, i.fd, &e);
}

void unwatch_socket(Epoll &x, EpollItem &i) noexcept {
    i.always_hot = false;
    sys::epoll_ctl(socket_set(x), EPOLL_CTL_DEL, i.fd, nullptr);
}

void end_leftover_watch(File &f) noexcept {
    const uint64_t leftover = f.stream.leftover_watch.load(std::memory_order_acquire);
    if (leftover == 0) [[likely]]
        return;
    Epoll &x = *f.stream.leftover_in;
    SetGuard g(x);
    if (x.sockets_name == leftover >> 32 &&
        f.stream.leftover_watch.exchange(0, std::memory_order_relaxed) == leftover)
        sys::epoll_ctl(x.sockets, EPOLL_CTL_DEL, static_cast<int>(leftover), nullptr);
}

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
        f.stream.leftover_watch.load(std::memory_order_relaxed) != 0)
        return;
    f.stream.leftover_in = &x;
    f.stream.leftover_watch.store(watch_of(x, i.fd), std::memory_order_release);
    i.always_hot = false; // so it is not taken out of the hidden set
}

} // namespace sd
