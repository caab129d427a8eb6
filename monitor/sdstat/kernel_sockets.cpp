// The TCP sockets of a process that the kernel carries: its table of descriptors, and what the kernel says of
// each socket there.
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdstat/sockets.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <map>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::stat {

using monitor::UniqueFd;

namespace {

namespace fs = std::filesystem;

/// By inode, the lowest descriptor.
std::map<unsigned long, int> socket_inodes(uint32_t pid, std::string *why) {
    std::map<unsigned long, int> result;
    std::error_code error;
    fs::directory_iterator table(fmt::format("/proc/{}/fd", pid), error);
    if (error) {
        *why = error.value() == ENOENT ? fmt::format("there is no process {}", pid)
                                       : fmt::format("its kernel sockets are not shown: {}", error.message());
        return result;
    }
    for (; table != fs::directory_iterator(); table.increment(error)) {
        const std::string target = fs::read_symlink(table->path(), error).string();
        const std::string name = table->path().filename().string();
        unsigned long inode = 0;
        int number = -1;
        constexpr std::string_view prefix = "socket:[";
        std::from_chars(name.data(), name.data() + name.size(), number);
        if (target.starts_with(prefix) &&
            std::from_chars(target.data() + prefix.size(), target.data() + target.size(), inode).ec ==
                std::errc()) {
            const auto [it, is_new] = result.try_emplace(inode, number);
            it->second = std::min(it->second, number);
        }
    }
    return result;
}

SlotAddress address_of(int family, const __be32 (&words)[4], __be16 port) {
    SlotAddress result{};
    if (family == AF_INET) {
        result.ip[10] = result.ip[11] = 0xff;
        memcpy(result.ip + 12, words, 4);
    } else {
        memcpy(result.ip, words, 16);
    }
    result.port = ntohs(port);
    result.family = static_cast<uint16_t>(family);
    return result;
}

State state_of(uint8_t kernels) {
    static constexpr State states[] = {
        State::closed,     State::established, State::syn_sent, State::syn_recv,   State::fin_wait_1,
        State::fin_wait_2, State::time_wait,   State::closed,   State::close_wait, State::last_ack,
        State::listening,  State::closing,     State::syn_recv};
    return kernels < std::size(states) ? states[kernels] : State::closed;
}

/// Calls fn(message) for each socket of a family.
template <typename Fn> bool dump(int family, Fn fn) {
    struct {
        nlmsghdr header;
        inet_diag_req_v2 request;
    } question{};
    question.header = {sizeof question, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
    question.request.sdiag_family = static_cast<uint8_t>(family);
    question.request.sdiag_protocol = IPPROTO_TCP;
    question.request.idiag_ext = 1 << (INET_DIAG_INFO - 1);
    question.request.idiag_states = ~0U;
    const UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    if (!fd || send(fd.get(), &question, sizeof question, 0) != sizeof question) {
        return false;
    }
    alignas(nlmsghdr) char answer[65536];
    for (;;) {
        auto left = static_cast<unsigned>(std::max<ssize_t>(recv(fd.get(), answer, sizeof answer, 0), 0));
        if (left == 0) {
            return false;
        }
        for (auto *m = reinterpret_cast<nlmsghdr *>(answer); NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
            if (m->nlmsg_type == NLMSG_DONE) {
                return true;
            }
            if (m->nlmsg_type == NLMSG_ERROR) {
                return false;
            }
            fn(*static_cast<inet_diag_msg *>(NLMSG_DATA(m)), m);
        }
    }
}

const tcp_info *info_of(const inet_diag_msg &message, const nlmsghdr *header) {
    auto left = static_cast<unsigned>(header->nlmsg_len - NLMSG_LENGTH(sizeof message));
    for (auto *a = reinterpret_cast<const rtattr *>(&message + 1); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == INET_DIAG_INFO && RTA_PAYLOAD(a) >= offsetof(tcp_info, tcpi_bytes_received) + 8) {
            return static_cast<const tcp_info *>(RTA_DATA(a));
        }
    }
    return nullptr;
}

} // namespace

std::vector<Socket> kernel_sockets(uint32_t pid, std::string *why) {
    std::vector<Socket> result;
    const std::map<unsigned long, int> inodes = socket_inodes(pid, why);
    std::error_code error;
    if (inodes.empty()) {
        return result;
    }
    if (fs::read_symlink(fmt::format("/proc/{}/ns/net", pid), error) !=
        fs::read_symlink("/proc/self/ns/net", error)) {
        *why = "it is in another network namespace: its kernel sockets are not shown";
        return result;
    }
    for (const int family : {AF_INET, AF_INET6}) {
        const bool is_answered = dump(family, [&](const inet_diag_msg &m, const nlmsghdr *header) {
            const auto it = inodes.find(m.idiag_inode);
            if (it == inodes.end()) {
                return;
            }
            Socket s;
            s.state = state_of(m.idiag_state);
            s.send_path = s.receive_path = monitor::Path::kernel;
            s.local = address_of(m.idiag_family, m.id.idiag_src, m.id.idiag_sport);
            s.peer = address_of(m.idiag_family, m.id.idiag_dst, m.id.idiag_dport);
            s.pid = pid;
            s.send_queue = m.idiag_wqueue;
            s.receive_queue = m.idiag_rqueue;
            s.descriptor = it->second;
            if (const tcp_info *info = info_of(m, header)) {
                s.sent_bytes = info->tcpi_bytes_acked;
                s.received_bytes = info->tcpi_bytes_received;
            }
            result.push_back(s);
        });
        if (!is_answered) {
            *why = "the kernel does not say which sockets there are (modules tcp_diag, inet_diag)";
        }
    }
    return result;
}

} // namespace sd::stat
