// sd-peers: talks with the monitors of other hosts, for sd-monitor, so that what strangers send is read by a
// process that can do nothing.
//
// Started by sd-monitor, or for it by the service manager. Descriptor 3 is the channel to it: settings come
// that way, reports go (report.hpp). One thread, one loop; ends when the channel does.
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/peers/channels.hpp"
#include "monitor/peers/peers_sandbox.hpp"
#include "monitor/sandbox/privileges.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <stdexcept>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>

namespace sd::monitor {

namespace {

constexpr size_t kMostSettings = size_t{256} << 20;

enum class Got { nothing, order, end };

/// One packet, and the file that came with it. end: the monitor has gone.
Got receive_order(PeersOrder &order, UniqueFd &file) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec io{&order, sizeof order};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(kPeersChannel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (const cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
        c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        int fd;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        file.reset(fd);
    }
    if (n <= 0) {
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? Got::nothing : Got::end;
    }
    const bool has_file = order.kind == PeersOrder::settings_come;
    if (n != sizeof order || order.magic != kPeersMagic || has_file != static_cast<bool>(file) ||
        order.size > sizeof order.body) {
        throw std::runtime_error("an order that is none");
    }
    return Got::order;
}

std::string read_all(int file) {
    std::string text;
    char piece[65536];
    for (;;) {
        const ssize_t n = pread(file, piece, sizeof piece, static_cast<off_t>(text.size()));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 || text.size() > kMostSettings) {
            throw std::system_error(errno, std::generic_category(), "settings");
        }
        if (n == 0) {
            OPENSSL_cleanse(piece, sizeof piece);
            return text;
        }
        text.append(piece, static_cast<size_t>(n));
    }
}

constexpr int kOrdersAtOnce = 64;

void apply(Channels &channels, const PeersOrder &order, const UniqueFd &file) {
    std::string text = read_all(file.get());
    std::optional<TellableKey> key;
    if (order.has_key != 0) {
        memcpy(key.emplace().data(), order.key, sizeof order.key);
    }
    channels.apply(settings_of(text), order.settings, key);
    OPENSSL_cleanse(text.data(), text.size());
}

void carry_out(Channels &channels, const PeersOrder &order, const UniqueFd &file) {
    switch (order.kind) {
    case PeersOrder::settings_come:
        apply(channels, order, file);
        return;
    case PeersOrder::message:
        channels.tell(order.session, static_cast<MessageKind>(order.message_kind), {order.body, order.size});
        return;
    case PeersOrder::refuse:
        channels.refuse(order.session, std::string(order.body, strnlen(order.body, sizeof order.body)));
        return;
    default:
        throw std::runtime_error("an order that is none");
    }
}

int run() {
    EventLoop loop;
    Channels channels(loop, [](const PeerReport &report) {
        return send(kPeersChannel, &report, sizeof report, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof report;
    });
    loop.add(kPeersChannel, EPOLLIN, [&](uint32_t) {
        for (int i = 0; i < kOrdersAtOnce; ++i) {
            PeersOrder order;
            UniqueFd file;
            switch (receive_order(order, file)) {
            case Got::order:
                carry_out(channels, order, file);
                break;
            case Got::end:
                channels.end();
                loop.stop();
                return;
            case Got::nothing:
                return;
            }
        }
    });
    if (!enter_peers_sandbox()) {
        throw std::system_error(errno, std::generic_category(), "privileges cannot be given up");
    }
    loop.run();
    return 0;
}

/// One descriptor for each peer, and some for strangers.
void raise_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

} // namespace

} // namespace sd::monitor

/// Arguments: none, or the users and groups to become (privileges.hpp).
int main(int argc, char **argv) {
    using namespace sd::monitor;
    raise_limit();
    for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGPIPE}) {
        signal(number, SIG_IGN); // of the terminal where the monitor was started
    }
    const bool is_someone_else = argc == 3;
    // All that OpenSSL reads or loads, before there are no files any more.
    unsigned char byte;
    if (OPENSSL_init_ssl(0, nullptr) != 1 || RAND_bytes(&byte, 1) != 1 || RAND_priv_bytes(&byte, 1) != 1) {
        fprintf(stderr, "sd-peers: OpenSSL does not start\n");
        return 3;
    }
    if (!give_up_privileges(is_someone_else ? argv[1] : nullptr, is_someone_else ? argv[2] : nullptr)) {
        fprintf(stderr, "sd-peers: privileges cannot be given up: %s\n", strerror(errno));
        return 3;
    }
    try {
        return run();
    } catch (const std::exception &error) {
        fprintf(stderr, "sd-peers: %s\n", error.what());
        return 1;
    }
}
