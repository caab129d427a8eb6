// Keepalives of a socket that is idle because its connection goes over the ring.
//
// NAT, firewalls and load balancers forget a connection on which nothing is sent, and the way back would end
// in a reset. So the kernel sends keepalives that the program has not asked for, and does not see. One that
// has asked for its own keeps those.
#include "libsd/vfs/paths/keepalive.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include <linux/tcp.h>

namespace sd {

namespace {

struct Timer {
    int name, hidden;
};
/// A minute, and as many tries as there can be: a peer that is gone is found out otherwise.
constexpr Timer kTimers[] = {{TCP_KEEPIDLE, 60}, {TCP_KEEPINTVL, 60}, {TCP_KEEPCNT, 127}};

int number_of(int fd, int name) noexcept {
    int value = -1;
    socklen_t n = sizeof value;
    return sys::getsockopt(fd, IPPROTO_TCP, name, &value, &n) < 0 ? -1 : value;
}

/// What a new socket has; -1: cannot be told.
int default_of(int name) noexcept {
    const long dummy = dummy_socket();
    return dummy < 0 ? -1 : number_of(static_cast<int>(dummy), name);
}

void turn(int fd, int on) noexcept { sys::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); }

} // namespace

bool has_hidden_keepalive(const Ofd &o) noexcept {
    return has_paths(o) && ((o.opt.*kPathStays).load(std::memory_order_relaxed) & kHiddenAlive);
}

int shown_keepalive(int name) noexcept { return default_of(name); }

void hide_keepalive(int fd, Ofd &o) noexcept {
    if (has_hidden_keepalive(o) || o.opt.keepalive.load(std::memory_order_relaxed) || sandboxed())
        return;
    for (const Timer &t : kTimers)
        if (const int is = number_of(fd, t.name); is < 0 || is != default_of(t.name))
            return; // the program has set it, and may turn them on
    (o.opt.*kPathStays).fetch_or(kHiddenAlive, std::memory_order_relaxed);
    for (const Timer &t : kTimers)
        sys::setsockopt(fd, IPPROTO_TCP, t.name, &t.hidden, sizeof t.hidden);
    turn(fd, 1);
}

void end_hidden_keepalive(int fd, Ofd &o) noexcept {
    if (!has_hidden_keepalive(o) || sandboxed())
        return;
    turn(fd, 0);
    for (const Timer &t : kTimers)
        if (const int value = default_of(t.name); value >= 0)
            sys::setsockopt(fd, IPPROTO_TCP, t.name, &value, sizeof value);
    (o.opt.*kPathStays).fetch_and(~kHiddenAlive, std::memory_order_relaxed);
}

} // namespace sd
