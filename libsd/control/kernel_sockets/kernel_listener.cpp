// Which listening socket the kernel has at an address: NETLINK_SOCK_DIAG, whose look-up is the one that a SYN
// would get.
#include "libsd/control/kernel_sockets/kernel_listener.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/control/sandbox_state.hpp"
#include <arpa/inet.h>
#include <cstring>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>

namespace sd::control {

namespace {

SD_FORK_STATE constinit Lock asking; ///< one question at a time
SD_FORK_STATE std::atomic<int> asker{-1};
uint32_t question_number = 0; ///< with the lock

struct Question {
    nlmsghdr header;
    inet_diag_req_v2 request;
};
struct Answer {
    nlmsghdr header;
    union {
        nlmsgerr error;
        inet_diag_msg found;
    };
    char attributes[256]; ///< of no interest; what does not fit is cut off
};

bool open_asker() noexcept {
    if (asker.load(std::memory_order_relaxed) >= 0)
        return true;
    if (sandboxed())
        return false;
    SpareNumbers spare;
    long fd = sys::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
        return false;
    asker.store(static_cast<int>(fd), std::memory_order_relaxed);
    return true;
}

Question make_question(const DiagAddress &to, uint16_t variant) noexcept {
    Question q{};
    q.header = {sizeof q, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, ++question_number, 0};
    q.request.sdiag_family = static_cast<uint8_t>(to.family);
    q.request.sdiag_protocol = IPPROTO_TCP;
    q.request.idiag_states = ~0u;
    auto &id = q.request.id;
    id.idiag_sport = to.port;
    // As if the address connected to itself, from a port that no connection has.
    id.idiag_dport = htons(variant % 64);
    memcpy(id.idiag_src, to.ip, sizeof id.idiag_src);
    memcpy(id.idiag_dst, to.ip, sizeof id.idiag_dst);
    id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    return q;
}

} // namespace

int64_t kernel_listener(const DiagAddress &to, uint16_t variant) noexcept {
    LockGuard g(asking);
    if (!open_asker())
        return -1;
    const int fd = asker.load(std::memory_order_relaxed);
    const Question q = make_question(to, variant);
    // With write and read alone, which a sandbox leaves us on our own descriptors. The answer is there when
    // write returns.
    if (sys::write(fd, &q, sizeof q) != sizeof q)
        return -1;
    for (;;) {
        Answer a;
        const long n = sys::read(fd, &a, sizeof a);
        if (n < static_cast<long>(sizeof a.header))
            return -1;
        if (a.header.nlmsg_seq != q.header.nlmsg_seq)
            continue;
        if (a.header.nlmsg_type == NLMSG_ERROR)
            return n >= static_cast<long>(NLMSG_LENGTH(sizeof a.error)) && a.error.error == -ENOENT ? 0 : -1;
        if (a.header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < static_cast<long>(NLMSG_LENGTH(sizeof a.found)))
            return -1;
        if (a.found.idiag_state != kTcpListen)
            return 0;
        const auto &cookie = a.found.id.idiag_cookie;
        return static_cast<int64_t>(uint64_t{cookie[1]} << 32 | cookie[0]);
    }
}

void kernel_listener_moved(int from, int to) noexcept {
    int expected = from;
    asker.compare_exchange_strong(expected, to);
}

SD_FORK_CODE void kernel_listener_fork_child() noexcept {
    asking.reset();
    if (const int parents = asker.load(std::memory_order_relaxed); parents >= 0) {
        asker.store(-1, std::memory_order_relaxed);
        close_hidden(parents);
    }
}

void forget_kernel_listener_socket() noexcept {
    LockGuard g(asking);
    if (const int former = asker.exchange(-1); former >= 0)
        close_hidden(former);
}

} // namespace sd::control
