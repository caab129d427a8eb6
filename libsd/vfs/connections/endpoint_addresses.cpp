// getsockname and getpeername.
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/vfs/vfs.hpp"
#include <linux/tcp.h>

namespace sd {

namespace {

/// The address in the form that sockets of `family` use; returns its length.
socklen_t make_sockaddr(const SlotAddress &a, int family, sockaddr_storage *out) noexcept {
    memset(out, 0, sizeof *out);
    if (family == AF_INET) {
        auto *in = reinterpret_cast<sockaddr_in *>(out);
        in->sin_family = AF_INET;
        in->sin_port = htons(a.port);
        memcpy(&in->sin_addr, a.ip + 12, sizeof in->sin_addr);
        return sizeof *in;
    }
    auto *in6 = reinterpret_cast<sockaddr_in6 *>(out);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(a.port);
    memcpy(&in6->sin6_addr, a.ip, sizeof in6->sin6_addr);
    return sizeof *in6;
}

const SlotAddress &own_address(const File &f) noexcept {
    return f.side == 0 ? f.stream.client : f.stream.server;
}
const SlotAddress &peer_address(const File &f) noexcept {
    return f.side == 0 ? f.stream.server : f.stream.client;
}

} // namespace

long write_sockaddr(const SlotAddress &a, int family, sockaddr *to, socklen_t *n) noexcept {
    sockaddr_storage s;
    const socklen_t full = make_sockaddr(a, family, &s);
    int room = 0;
    if (sd_copy(&room, n, sizeof room))
        return -EFAULT;
    if (room < 0)
        return -EINVAL;
    const socklen_t m = static_cast<socklen_t>(room) < full ? static_cast<socklen_t>(room) : full;
    return sd_copy(to, &s, m) || sd_copy(n, &full, sizeof full) ? -EFAULT : 0;
}

long change_address_form(File &f, const void *value, socklen_t n) noexcept {
    int wanted = 0;
    if (n >= sizeof wanted && sd_copy(&wanted, value, sizeof wanted))
        return -EFAULT;
    if (wanted != AF_INET)
        return -EINVAL;
    if (tcp_state(f) != kTcpEstablished)
        return -ENOTCONN;
    if (!is_v4(peer_address(f).ip))
        return -EADDRNOTAVAIL;
    f.family = f.ofd->family = AF_INET;
    return 0;
}

long peer_name_option(File &f, void *value, socklen_t *n, int room) noexcept {
    if (f.kind != FileKind::stream || tcp_state(f) == kTcpClose)
        return -ENOTCONN;
    sockaddr_storage s;
    const socklen_t full = make_sockaddr(peer_address(f), f.ofd->family, &s);
    if (full < static_cast<socklen_t>(room))
        return -EINVAL;
    const auto m = static_cast<socklen_t>(room);
    return sd_copy(value, &s, m) || sd_copy(n, &m, sizeof m) ? -EFAULT : 0;
}

namespace vfs {

long getsockname(int fd, sockaddr *a, socklen_t *n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    if (f->kind == FileKind::stream)
        return write_sockaddr(own_address(*f), f->ofd->family, a, n);
    if (f->kind != FileKind::fresh || f->real_socket)
        return kPass;
    SlotAddress none{};
    none.port = f->unconnected.last_port;
    return write_sockaddr(none, f->family, a, n);
}

long getpeername(int fd, sockaddr *a, socklen_t *n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    if (f->kind == FileKind::stream)
        return tcp_state(*f) == kTcpClose ? -ENOTCONN : write_sockaddr(peer_address(*f), f->ofd->family, a, n);
    if (f->kind != FileKind::fresh || f->real_socket)
        return kPass;
    return -ENOTCONN;
}

} // namespace vfs

} // namespace sd
