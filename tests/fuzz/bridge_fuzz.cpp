// sd-bridge, and a channel on which anything comes: packets of any length, with any descriptors, some of them
// open elsewhere as well. It takes or refuses each, carries what there is, and ends once everybody has gone.
#include <sys/epoll.h>

namespace {
int act_and_wait(int epoll, epoll_event *events, int n, int timeout);
} // namespace

#define main bridge_main
#define epoll_wait act_and_wait
// NOLINT(bugprone-suspicious-include): the parser is not to be reached otherwise
#include "monitor/bridge/bridge.cpp"
#undef epoll_wait
#undef main
#include "tests/fuzz/input.hpp"

#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace sd::monitor;

namespace {

constexpr unsigned kActions = 24;

void must(bool ok) {
    if (!ok) {
        abort();
    }
}

/// What stays open outside the bridge while it runs.
struct Outside {
    std::vector<UniqueFd> kept;  ///< further descriptors of what was sent
    std::vector<UniqueFd> peers; ///< the other ends of streams; all are closed at last: each stream ends
};

/// A stream, perhaps with something to read, or its end.
UniqueFd stream(sdfuzz::Input &in, Outside &outside) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    UniqueFd ours(pair[0]);
    outside.peers.emplace_back(pair[1]);
    std::array<char, 64> data{};
    const unsigned n = in.below(data.size());
    if (n != 0) {
        (void)send(pair[1], data.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (in.below(4) == 0) {
        (void)send(pair[1], data.data(), 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (in.below(4) == 0) {
        shutdown(in.below(2) != 0 ? pair[0] : pair[1], static_cast<int>(in.below(3)));
    }
    return ours;
}

UniqueFd descriptor(sdfuzz::Input &in, Outside &outside) {
    int pair[2];
    switch (in.below(10)) {
    case 0:
        return UniqueFd(memfd_create("file", MFD_CLOEXEC)); // which epoll does not take
    case 1:
        return UniqueFd(eventfd(in.below(2), EFD_CLOEXEC | EFD_NONBLOCK));
    case 2:
        must(pipe2(pair, O_CLOEXEC) == 0);
        if (in.below(2) != 0) {
            std::swap(pair[0], pair[1]);
        }
        close(pair[1]);
        return UniqueFd(pair[0]);
    case 3:
        return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case 4:
        if (!outside.kept.empty()) {
            const unsigned which = in.below(static_cast<unsigned>(outside.kept.size()));
            return UniqueFd(fcntl(outside.kept[which].get(), F_DUPFD_CLOEXEC, 0));
        }
        return stream(in, outside);
    default:
        return stream(in, outside);
    }
}

void send_packet(int channel, sdfuzz::Input &in, Outside &outside) {
    std::array<unsigned char, 2 * sizeof(BridgePacket)> body{};
    BridgePacket packet;
    packet.exclusive = in.below(2);
    if (in.below(16) == 0) {
        packet.magic = in.take<uint32_t>();
    }
    memcpy(body.data(), &packet, sizeof packet);
    const size_t length = in.below(16) != 0 ? sizeof packet : 1 + in.below(body.size() - 1);
    const unsigned fds = in.below(8) != 0 ? 2 : in.below(5);
    iovec part{body.data(), length};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<UniqueFd> passed;
    if (fds != 0) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds * sizeof(int));
        for (unsigned k = 0; k < fds; ++k) {
            passed.push_back(descriptor(in, outside));
            const int fd = passed.back().get();
            must(fd >= 0);
            memcpy(CMSG_DATA(c) + k * sizeof fd, &fd, sizeof fd);
        }
    }
    must(sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0);
    for (UniqueFd &fd : passed) {
        if (in.below(3) == 0) {
            outside.kept.push_back(std::move(fd));
        }
    }
}

/// What the other ends do between two looks of the bridge at its set.
struct Scene {
    sdfuzz::Input in;
    UniqueFd channel;
    Outside outside;
    unsigned actions = 0;

    void act() {
        if (in.empty() || ++actions > kActions) {
            channel.reset();
            outside.peers.clear();
            return;
        }
        const unsigned count = static_cast<unsigned>(outside.peers.size());
        switch (const unsigned what = in.below(6); count != 0 ? what : 0) {
        case 1: {
            static const std::array<char, 1 << 18> data{};
            const size_t n = size_t{1} << in.below(19);
            (void)send(outside.peers[in.below(count)].get(), data.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL);
            break;
        }
        case 2: {
            static std::array<char, 65536> data;
            (void)recv(outside.peers[in.below(count)].get(), data.data(), data.size(), MSG_DONTWAIT);
            break;
        }
        case 3:
            outside.peers.erase(outside.peers.begin() + in.below(count));
            break;
        case 4:
            shutdown(outside.peers[in.below(count)].get(), static_cast<int>(in.below(3)));
            break;
        default:
            send_packet(channel.get(), in, outside);
        }
    }
};
Scene *scene;

int act_and_wait(int epoll, epoll_event *events, int n, int timeout) {
    scene->act();
    return epoll_wait(epoll, events, n, scene->channel ? 0 : timeout);
}

} // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    stderr = fopen("/dev/null", "we"); // its complaints; the fuzzer has its own way out
    return stderr != nullptr ? 0 : 1;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    UniqueFd ours(pair[0]);
    if (pair[0] == kBridgeChannel) {
        ours = UniqueFd(fcntl(pair[0], F_DUPFD_CLOEXEC, kBridgeChannel + 1));
    }
    if (pair[1] != kBridgeChannel) {
        must(dup2(pair[1], kBridgeChannel) == kBridgeChannel);
        close(pair[1]);
    }
    {
        Scene now{sdfuzz::Input(data, size), std::move(ours), {}};
        scene = &now;
        Bridges bridges;
        must(bridges.open());
        bridges.run();
    }
    close(kBridgeChannel);
    return 0;
}
