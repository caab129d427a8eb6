// Asking the kernel's table of interfaces (NETLINK_ROUTE).
#include "monitor/discovery/bridges.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <linux/net_namespace.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <vector>

namespace sd::monitor {

namespace {

constexpr timeval kAnswerTime{1, 0}; ///< the kernel answers at once

UniqueFd open_table() {
    UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (fd) {
        setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kAnswerTime, sizeof kAnswerTime);
    }
    return fd;
}

/// Calls fn(message) for each that answers, until one that ends the answer. False: it was not all.
template <typename Fn> bool answers(int fd, bool many, Fn fn) {
    std::vector<char> buffer(65536);
    for (;;) {
        const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
        if (n <= 0) {
            return false;
        }
        auto left = static_cast<unsigned>(n);
        for (auto *m = reinterpret_cast<nlmsghdr *>(buffer.data()); NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
            if (m->nlmsg_type == NLMSG_DONE) {
                return true;
            }
            if (m->nlmsg_type == NLMSG_ERROR) {
                return false;
            }
            fn(*m);
            if (!many) {
                return true;
            }
        }
    }
}

/// The value of an attribute of four bytes; nothing: there is none such.
std::optional<int> attribute(const nlmsghdr &message, size_t header, unsigned short type) {
    auto left = static_cast<int>(message.nlmsg_len - NLMSG_LENGTH(header));
    const char *body = static_cast<const char *>(NLMSG_DATA(&message));
    for (auto *a = reinterpret_cast<const rtattr *>(body + NLMSG_ALIGN(header)); RTA_OK(a, left);
         a = RTA_NEXT(a, left)) {
        if (a->rta_type == type && RTA_PAYLOAD(a) == sizeof(int)) {
            return *static_cast<const int *>(RTA_DATA(a));
        }
    }
    return std::nullopt;
}

} // namespace

std::optional<int> namespace_number(int ns) {
    const UniqueFd fd = open_table();
    struct {
        nlmsghdr header;
        alignas(NLMSG_ALIGNTO) rtgenmsg general;
        alignas(NLMSG_ALIGNTO) rtattr attribute;
        int value;
    } ask{};
    ask.header = {sizeof ask, RTM_GETNSID, NLM_F_REQUEST, 1, 0};
    ask.attribute = {static_cast<unsigned short>(RTA_LENGTH(sizeof ask.value)), NETNSA_FD};
    ask.value = ns;
    std::optional<int> number;
    if (fd && send(fd.get(), &ask, sizeof ask, 0) == sizeof ask) {
        answers(fd.get(), false,
                [&](const nlmsghdr &m) { number = attribute(m, sizeof(rtgenmsg), NETNSA_NSID); });
    }
    return number && *number != NETNSA_NSID_NOT_ASSIGNED ? number : std::nullopt;
}

std::set<unsigned> bridges_to(int number) {
    const UniqueFd fd = open_table();
    struct {
        nlmsghdr header;
        ifinfomsg general;
    } ask{};
    ask.header = {sizeof ask, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
    std::set<unsigned> bridges;
    if (fd && send(fd.get(), &ask, sizeof ask, 0) == sizeof ask) {
        answers(fd.get(), true, [&](const nlmsghdr &m) {
            const auto bridge = attribute(m, sizeof(ifinfomsg), IFLA_MASTER);
            if (bridge && attribute(m, sizeof(ifinfomsg), IFLA_LINK_NETNSID) == number) {
                bridges.insert(static_cast<unsigned>(*bridge));
            }
        });
    }
    return bridges;
}

} // namespace sd::monitor
