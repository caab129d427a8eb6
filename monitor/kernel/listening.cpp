// Whether a listening socket exists still.
#include "monitor/kernel/listening.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/records/listener.hpp"
#include "monitor/service/network_visit.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

struct Question {
    nlmsghdr header;
    inet_diag_req_v2 request;
};

uint64_t cookie_of(const inet_diag_msg &found) {
    return uint64_t{found.id.idiag_cookie[1]} << 32 | found.id.idiag_cookie[0];
}

} // namespace

/// Nothing: it is not ours to see.
std::optional<ListeningSockets::ByCookie> ListeningSockets::read(uint8_t family, uint16_t port,
                                                                 uint64_t netns, pid_t inside) {
    const auto open_table = [] {
        return UniqueFd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    };
    UniqueFd netlink = open_table();
    if (inside > 0 && netlink && netns_cookie(netlink.get()) != netns) {
        const Visit there(inside);
        netlink = open_table();
    }
    if (!netlink || netns_cookie(netlink.get()) != netns) {
        return std::nullopt;
    }
    // All that listen on the port: of several with one address, a question for the address gets any.
    Question q{};
    q.header = {sizeof q, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
    q.request.sdiag_family = family;
    q.request.sdiag_protocol = IPPROTO_TCP;
    q.request.idiag_states = 1u << TCP_LISTEN;
    q.request.id.idiag_sport = htons(port);
    q.request.id.idiag_cookie[0] = q.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (::send(netlink.get(), &q, sizeof q, 0) != sizeof q) {
        return std::nullopt;
    }
    for (ByCookie all;;) {
        alignas(nlmsghdr) char reply[16384];
        const ssize_t n = recv(netlink.get(), reply, sizeof reply, 0);
        if (n <= 0) {
            return std::nullopt;
        }
        auto left = static_cast<unsigned>(n);
        for (const auto *header = reinterpret_cast<const nlmsghdr *>(reply); NLMSG_OK(header, left);
             header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == NLMSG_DONE) {
                return all;
            }
            if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
                header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
                return std::nullopt; // an error
            }
            const auto *found = static_cast<const inet_diag_msg *>(NLMSG_DATA(header));
            if (found->idiag_state == TCP_LISTEN && found->id.idiag_sport == htons(port) &&
                found->idiag_family == family) {
                Socket &socket = all[cookie_of(*found)];
                memcpy(socket.ip.data(), found->id.idiag_src, socket.ip.size());
                socket.inode = found->idiag_inode;
            }
        }
    }
}

const std::optional<ListeningSockets::ByCookie> &ListeningSockets::all(uint8_t family, uint16_t port,
                                                                       uint64_t netns, pid_t inside) {
    const std::tuple key(netns, family, port);
    auto it = ports_.find(key);
    if (it == ports_.end()) {
        it = ports_.emplace(key, read(family, port, netns, inside)).first;
    }
    return it->second;
}

std::optional<std::vector<ino_t>> ListeningSockets::taking(const SlotAddress &name, uint64_t netns, pid_t inside) {
    std::vector<ino_t> found;
    for (const uint8_t family : {AF_INET, AF_INET6}) {
        const std::optional<ByCookie> &table = all(family, name.port, netns, inside);
        if (!table) {
            return std::nullopt;
        }
        for (const auto &[cookie, socket] : *table) {
            ListenAddress address{name.port, family, false, {}};
            if (family == AF_INET) {
                address.ip[10] = address.ip[11] = 0xff;
                memcpy(address.ip + 12, socket.ip.data(), 4);
            } else {
                memcpy(address.ip, socket.ip.data(), sizeof address.ip);
            }
            if (takes(address, name)) {
                found.push_back(socket.inode);
            }
        }
    }
    return found;
}

Listening ListeningSockets::find(const ListenAddress &address, uint64_t cookie, uint64_t netns) {
    const std::optional<ByCookie> &table = all(address.family, address.port, netns, 0);
    if (!table) {
        return {};
    }
    const auto found = table->find(cookie);
    if (found == table->end()) {
        return {true, 0};
    }
    const uint8_t *ip = found->second.ip.data();
    const bool is_there =
        address.family == AF_INET ? memcmp(ip, address.ip + 12, 4) == 0 : memcmp(ip, address.ip, 16) == 0;
    return {true, is_there ? found->second.inode : 0};
}

Listening look_up_listening(const ListenAddress &address, uint64_t cookie, uint64_t netns) {
    return ListeningSockets().find(address, cookie, netns);
}

} // namespace sd::monitor
