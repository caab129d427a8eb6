// sd-bridge: carries bytes between accelerated connections and kernel sockets, for programs that cannot be
// preloaded.
//
// Started by sd-monitor, which sends it one packet for each bridge (bridge_packet.hpp). It is linked with
// libsd.so in front of the C library, so that its own socket calls are accelerated without LD_PRELOAD. One
// thread, one epoll set; ends when the channel and the last bridge have ended.
#include "libsd/layout/protocol.hpp"
#include "monitor/bridge/bridge_packet.hpp"
#include "monitor/bridge/bridge_pump.hpp"
#include "monitor/bridge/bridge_sandbox.hpp"
#include "monitor/sandbox/privileges.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sd::monitor {

namespace {

void complain(const char *what) { fprintf(stderr, "sd-bridge: %s: %s\n", what, strerror(errno)); }

class Bridges {
  public:
    bool open() {
        epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
        epoll_event event{};
        event.events = EPOLLIN;
        return epoll_ && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, kBridgeChannel, &event) == 0;
    }

    void run() {
        while (channel_open_ || !bridges_.empty()) {
            epoll_event events[64];
            const int n = epoll_wait(epoll_.get(), events, std::size(events), unfinished_.empty() ? -1 : 0);
            if (n < 0 && errno != EINTR) {
                complain("epoll_wait");
                return;
            }
            std::vector<Bridge *> todo = std::exchange(unfinished_, {});
            for (int i = 0; i < n; ++i) {
                if (auto *end = static_cast<Bridge::End *>(events[i].data.ptr)) {
                    end->bridge->note(*end, events[i].events);
                    todo.push_back(end->bridge);
                } else {
                    take_packets(&todo);
                }
            }
            for (Bridge *b : todo) {
                turn(b);
            }
            finished_.clear();
        }
    }

  private:
    /// A bridge may be in the list of things to do more than once, also after it was done.
    void turn(Bridge *b) {
        const bool finished = b->done() || b->pump();
        if (!finished) {
            if (std::find(unfinished_.begin(), unfinished_.end(), b) == unfinished_.end()) {
                unfinished_.push_back(b);
            }
            return;
        }
        if (!b->done()) {
            return;
        }
        if (auto node = bridges_.extract(b)) {
            finished_.push_back(std::move(node.mapped()));
        }
        std::erase(unfinished_, b);
    }

    void take_packets(std::vector<Bridge *> *todo) {
        for (;;) {
            BridgePacket packet;
            iovec part{&packet, sizeof packet};
            alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            const ssize_t n = recvmsg(kBridgeChannel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                return;
            }
            if (n <= 0) {
                epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, kBridgeChannel, nullptr);
                channel_open_ = false;
                return;
            }
            UniqueFd fds[2];
            const bool both = take_descriptors(message, fds);
            if (n != sizeof packet || packet.magic != kBridgeMagic || !both) {
                errno = EPROTO;
                complain("a packet that names no two connections");
                continue;
            }
            start(std::move(fds[0]), std::move(fds[1]), packet.exclusive != 0, todo);
        }
    }

    static bool take_descriptors(msghdr &message, UniqueFd (&fds)[2]) {
        size_t count = 0;
        for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
                continue;
            }
            for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; ++i) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                UniqueFd owned(fd);
                if (count < 2) {
                    fds[count] = std::move(owned);
                }
                ++count;
            }
        }
        return count == 2 && !(message.msg_flags & MSG_CTRUNC);
    }

    void start(UniqueFd accelerated, UniqueFd kernel, bool exclusive, std::vector<Bridge *> *todo) {
        auto bridge = std::make_unique<Bridge>(std::move(accelerated), std::move(kernel), exclusive);
        Bridge *b = bridge.get();
        if (!b->watch(epoll_.get())) {
            complain("epoll_ctl");
            return;
        }
        bridges_.emplace(b, std::move(bridge));
        todo->push_back(b);
    }

    UniqueFd epoll_;
    bool channel_open_ = true;
    std::unordered_map<Bridge *, std::unique_ptr<Bridge>> bridges_;
    std::vector<std::unique_ptr<Bridge>> finished_; ///< until events that name them have been gone through
    std::vector<Bridge *> unfinished_;              ///< have more to do at once
};

/// Two descriptors for each bridge.
void raise_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/// Started by the service manager, for whoever the monitor names. It learns which process this is before the
/// library says hello.
bool learn_user(char (&users)[40], char (&groups)[40]) {
    BridgeUser user;
    ssize_t n;
    do {
        n = recv(kBridgeChannel, &user, sizeof user, 0);
    } while (n < 0 && errno == EINTR);
    if (n != sizeof user || user.magic != kBridgeMagic) {
        errno = n < 0 ? errno : EPROTO;
        return false;
    }
    snprintf(users, sizeof users, "%u,%u,%u", user.uid[0], user.uid[1], user.uid[2]);
    snprintf(groups, sizeof groups, "%u,%u,%u", user.gid[0], user.gid[1], user.gid[2]);
    const char here = 0;
    return send(kBridgeChannel, &here, sizeof here, MSG_NOSIGNAL) == sizeof here;
}

/// The library's channel to the monitor, which cannot be opened later. Without one nothing that comes can be
/// claimed; that shows then.
void contact_monitor() {
    const UniqueFd any(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ioctl(any.get(), kIoctlContact);
}

} // namespace

} // namespace sd::monitor

/// Arguments: the users and groups to become (privileges.hpp), or "--service": see learn_user().
int main(int argc, char **argv) {
    using namespace sd::monitor;
    raise_limit();
    for (int signal_number : {SIGINT, SIGQUIT, SIGHUP}) {
        signal(signal_number, SIG_IGN); // of the terminal where some program was started with us
    }
    char users[40] = "", groups[40] = "";
    if (argc == 2 && strcmp(argv[1], "--service") == 0) {
        if (!learn_user(users, groups)) {
            complain("the monitor did not say for whom");
            return 2;
        }
    } else if (argc == 3) {
        snprintf(users, sizeof users, "%s", argv[1]);
        snprintf(groups, sizeof groups, "%s", argv[2]);
    }
    Bridges bridges;
    if (!bridges.open()) {
        complain("descriptor 3 should be the channel to sd-monitor");
        return 2;
    }
    contact_monitor();
    if (!give_up_privileges(*users != '\0' ? users : nullptr, *users != '\0' ? groups : nullptr) ||
        !enter_bridge_sandbox()) {
        complain("privileges cannot be given up");
        return 3;
    }
    bridges.run();
    return 0;
}
