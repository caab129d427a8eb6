// A connected TCP socket that a client has handed over.
#include "monitor/kernel/connected_socket.hpp"
#include "monitor/records/listener.hpp"

#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

std::optional<ConnectionNames::Name> name_of(const sockaddr_storage &address) {
    ConnectionNames::Name name;
    if (address.ss_family == AF_INET) {
        const auto &v4 = reinterpret_cast<const sockaddr_in &>(address);
        name.ip[10] = name.ip[11] = 0xff;
        memcpy(name.ip.data() + 12, &v4.sin_addr, 4);
        name.port = ntohs(v4.sin_port);
    } else if (address.ss_family == AF_INET6) {
        const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(address);
        memcpy(name.ip.data(), &v6.sin6_addr, 16);
        name.port = ntohs(v6.sin6_port);
    } else {
        return std::nullopt;
    }
    return name;
}

} // namespace

std::optional<ConnectedSocket> examine_connected(int fd) {
    int type = 0, protocol = 0;
    tcp_info info{};
    if (!read_option(fd, SOL_SOCKET, SO_TYPE, type) || !read_option(fd, SOL_SOCKET, SO_PROTOCOL, protocol) ||
        type != SOCK_STREAM || protocol != IPPROTO_TCP || !read_option(fd, IPPROTO_TCP, TCP_INFO, info) ||
        info.tcpi_state != TCP_ESTABLISHED) {
        return std::nullopt;
    }
    char layered[16]{};
    if (read_option(fd, IPPROTO_TCP, TCP_ULP, layered) && layered[0] != '\0') {
        return std::nullopt;
    }
    sockaddr_storage local{}, peer{};
    socklen_t local_size = sizeof local, peer_size = sizeof peer;
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&local), &local_size) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &peer_size) != 0) {
        return std::nullopt;
    }
    const auto here = name_of(local), there = name_of(peer);
    ConnectedSocket found;
    if (!here || !there || !read_option(fd, SOL_SOCKET, SO_COOKIE, found.cookie)) {
        return std::nullopt;
    }
    found.names = {netns_cookie(fd), *here, *there};
    return found.names.netns == 0 ? std::nullopt : std::optional(found);
}

} // namespace sd::monitor
