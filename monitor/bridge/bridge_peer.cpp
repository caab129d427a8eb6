// Whether anybody still has the other end of a kernel connection of this host: the kernel's socket table
// tells.
#include "monitor/bridge/bridge_peer.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

constexpr int kNetnsCookie = 71;  ///< SO_NETNS_COOKIE, newer than the headers
constexpr unsigned kBothWays = 3; ///< as the kernel marks a socket that neither sends nor receives any more

/// The socket table shown is that of the asker's network namespace.
bool same_namespace(int a, int b) {
    uint64_t cookie[2] = {};
    socklen_t n = sizeof cookie[0];
    return getsockopt(a, SOL_SOCKET, kNetnsCookie, &cookie[0], &n) == 0 &&
           getsockopt(b, SOL_SOCKET, kNetnsCookie, &cookie[1], &n) == 0 && cookie[0] == cookie[1];
}

/// The port, and the address where inet_diag has it.
bool split(const sockaddr_storage &s, __be16 *port, __be32 (&address)[4]) {
    if (s.ss_family == AF_INET) {
        const auto &v4 = reinterpret_cast<const sockaddr_in &>(s);
        *port = v4.sin_port;
        address[0] = v4.sin_addr.s_addr;
    } else if (s.ss_family == AF_INET6) {
        const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(s);
        *port = v6.sin6_port;
        memcpy(address, &v6.sin6_addr, sizeof v6.sin6_addr);
    } else {
        return false;
    }
    return true;
}

struct Question {
    nlmsghdr header;
    inet_diag_req_v2 request;
};

/// Asks for the socket whose names are those of `fd` the other way round.
std::optional<Question> question_about_peer(int fd) {
    sockaddr_storage own{}, peer{};
    socklen_t n = sizeof own, m = sizeof peer;
    Question q{};
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&own), &n) < 0 ||
        getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &m) < 0) {
        return std::nullopt;
    }
    inet_diag_sockid &id = q.request.id;
    if (!split(peer, &id.idiag_sport, id.idiag_src) || !split(own, &id.idiag_dport, id.idiag_dst)) {
        return std::nullopt;
    }
    id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    q.request.sdiag_family = static_cast<uint8_t>(own.ss_family);
    q.request.sdiag_protocol = IPPROTO_TCP;
    q.request.idiag_states = ~0u;
    q.header = {sizeof q, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0};
    return q;
}

enum class State { unknown, gone, closing, held };

State interpret(const char *reply, size_t size) {
    const auto *header = reinterpret_cast<const nlmsghdr *>(reply);
    if (!NLMSG_OK(header, size)) {
        return State::unknown;
    }
    if (header->nlmsg_type == NLMSG_ERROR) {
        const auto *error = static_cast<const nlmsgerr *>(NLMSG_DATA(header));
        return error->error == -ENOENT ? State::gone : State::unknown;
    }
    if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
        return State::unknown;
    }
    const auto *found = static_cast<const inet_diag_msg *>(NLMSG_DATA(header));
    if (found->idiag_state == TCP_LISTEN || found->idiag_inode == 0) {
        return State::gone; // a listener on the port is found where the connection itself is not
    }
    int left = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof *found));
    for (const rtattr *a = reinterpret_cast<const rtattr *>(found + 1); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == INET_DIAG_SHUTDOWN) {
            return *static_cast<const uint8_t *>(RTA_DATA(a)) == kBothWays ? State::closing : State::held;
        }
    }
    return State::held;
}

State ask(int netlink, const Question &q) {
    alignas(nlmsghdr) char reply[4096];
    if (send(netlink, &q, sizeof q, 0) != sizeof q) {
        return State::unknown;
    }
    const ssize_t n = recv(netlink, reply, sizeof reply, 0);
    return n > 0 ? interpret(reply, static_cast<size_t>(n)) : State::unknown;
}

} // namespace

bool peer_hung_up(int fd) {
    const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    const std::optional<Question> question = question_about_peer(fd);
    if (!netlink || !question || !same_namespace(netlink.get(), fd)) {
        return false;
    }
    // A close that is under way has sent the end of the stream a moment before the socket is nobody's.
    constexpr timespec kMoment{0, 200'000};
    for (int i = 0; i < 20; ++i) {
        const State state = ask(netlink.get(), *question);
        if (state != State::closing) {
            return state == State::gone;
        }
        nanosleep(&kMoment, nullptr);
    }
    return false; // shutdown(SHUT_RDWR)
}

} // namespace sd::monitor
