#include "libsd/vfs/connections/stand_in.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/connections/kernel_queue.hpp"

namespace sd {

namespace {

/// Of several listeners at one address the kernel chooses one.
constexpr unsigned kTries = 8;

constexpr int kNetnsCookie = 71; ///< SO_NETNS_COOKIE, newer than the headers

/// 0: this kernel does not tell.
uint64_t namespace_of(int fd) noexcept {
    uint64_t name = 0;
    socklen_t size = sizeof name;
    return sys::getsockopt(fd, SOL_SOCKET, kNetnsCookie, &name, &size) == 0 ? name : 0;
}

/// Connects and resets, where this thread is in the listener's network namespace. As the two are on one host,
/// the kernel has done so when the calls return.
void connect_and_reset(const SlotAddress &to, int listener) noexcept {
    const SpareNumbers spare;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (write_sockaddr(to, to.family, reinterpret_cast<sockaddr *>(&name), &length) < 0)
        return;
    long fd = sys::socket(to.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
        return;
    const int client = static_cast<int>(fd);
    if (namespace_of(client) == namespace_of(listener)) {
        (void)sys::connect(client, &name, length); // it does not wait
        constexpr linger at_once{1, 0};
        sys::setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    close_hidden(client);
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
    for (unsigned n = 0; n < kTries && !has_kernel_client(fd); ++n) {
        if (v6) // there may be no IPv6 on the loopback device
            set_loopback(to.ip, n % 2 == 0);
        connect_and_reset(to, fd);
    }
}

} // namespace sd
