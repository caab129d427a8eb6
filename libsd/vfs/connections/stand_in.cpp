#include "libsd/vfs/connections/stand_in.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"

namespace sd {

namespace {

/// Of several listeners at one address the kernel chooses one.
constexpr unsigned kTries = 8;

bool is_readable(int fd) noexcept {
    pollfd p{fd, POLLIN, 0};
    timespec zero{0, 0};
    return sys::ppoll(&p, 1, &zero, nullptr) > 0;
}

/// Connects and resets. As the two are on one host, the kernel has done so when the calls return.
void connect_and_reset(const SlotAddress &to) noexcept {
    const SpareNumbers spare;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (write_sockaddr(to, to.family, reinterpret_cast<sockaddr *>(&name), &length) < 0)
        return;
    long fd = sys::socket(to.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
        return;
    sys::call(SYS_connect, fd, sys::arg(&name), length);
    constexpr linger at_once{1, 0};
    sys::setsockopt(static_cast<int>(fd), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_hidden(static_cast<int>(fd));
}

} // namespace

void stand_in(Listener &l, int fd) noexcept {
    l.told.store(0, std::memory_order_relaxed);
    if (sandboxed())
        return;
    SlotAddress to = l.address;
    const bool any = is_any(to.ip), v6 = any && to.family == AF_INET6 && !is_v4(to.ip);
    if (any)
        set_loopback(to.ip, v6);
    for (unsigned n = 0; n < kTries && !is_readable(fd); ++n) {
        if (v6) // there may be no IPv6 on the loopback device
            set_loopback(to.ip, n % 2 == 0);
        connect_and_reset(to);
    }
}

} // namespace sd
