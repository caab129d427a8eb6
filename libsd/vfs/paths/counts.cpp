// See counts.hpp.
#include "libsd/vfs/paths/counts.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/sys.hpp"
#include <cstddef>
#include <netinet/in.h>

namespace sd {

bool ask_info(int fd, tcp_info *info) noexcept {
    socklen_t n = sizeof *info;
    return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) == 0 &&
           n >= offsetof(tcp_info, tcpi_bytes_received) + sizeof info->tcpi_bytes_received;
}

long ask_count(int fd, unsigned long which) noexcept {
    int n = 0;
    const long r = sys::ioctl(fd, which, &n);
    return r < 0 ? r : n;
}

int64_t written(int fd, bool counts_syn, bool half_closed) noexcept {
    for (unsigned tries = 0; tries < 1000; ++tries) {
        tcp_info before{}, after{};
        if (!ask_info(fd, &before))
            return -1;
        const long queued = ask_count(fd, SIOCOUTQ);
        if (queued < 0 || !ask_info(fd, &after) ||
            !(before.tcpi_state == kTcpEstablished || (half_closed && before.tcpi_state == kTcpCloseWait)))
            return -1; // closing: it stays where it is
        if (before.tcpi_bytes_acked == after.tcpi_bytes_acked)
            return static_cast<int64_t>(before.tcpi_bytes_acked) + queued - counts_syn;
    }
    return -1;
}

namespace {

bool is_open(const tcp_info &info) noexcept {
    return info.tcpi_state == kTcpEstablished || info.tcpi_state == kTcpFinWait1 ||
           info.tcpi_state == kTcpFinWait2;
}

} // namespace

bool is_open_at_peer(int fd) noexcept {
    tcp_info info{};
    return ask_info(fd, &info) && is_open(info);
}

bool ask_came(int fd, Came *came) noexcept {
    tcp_info info{};
    if (!ask_info(fd, &info))
        return false;
    const bool open = is_open(info);
    came->most = info.tcpi_bytes_received;
    came->least = open || came->most == 0 ? came->most : came->most - 1; // the FIN counts
    return true;
}

bool is_read_up_to(int fd, uint64_t offset, long waiting) noexcept {
    Came came{};
    if (!ask_came(fd, &came))
        return true; // there is no socket any more
    // In this order: what comes after the first question shows in the second.
    if (ask_count(fd, SIOCINQ) != waiting)
        return false;
    return came.least == offset || came.most == offset;
}

} // namespace sd
