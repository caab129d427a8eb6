// Connections that end at somebody without libsd: sd-bridge, an accelerated program, copies between them and kernel sockets.
#include "monitor/bridge_packet.hpp"
#include "monitor/monitor.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

namespace sd::monitor {

namespace {

/// sd-bridge may end when it has no work and none is to be expected.
constexpr std::chrono::seconds kDismissal{1};

/// The program beside this one.
std::string bridge_program() {
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    const std::string own(path, n > 0 ? static_cast<size_t>(n) : 0);
    return own.substr(0, own.rfind('/') + 1) + "sd-bridge";
}

} // namespace

bool Monitor::start_bridge_program() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return false;
    }
    UniqueFd ours(ends[0]), theirs(ends[1]);
    const std::string program = bridge_program();
    const std::string monitor = "SD_MONITOR=" + socket_path_;
    char *const arguments[] = {const_cast<char *>("sd-bridge"), nullptr};
    char *const environment[] = {const_cast<char *>(monitor.c_str()), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), kBridgeChannel);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    pid_t pid;
    const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
        if (may_log()) {
            spdlog::error("{}: {}", program, strerror(error));
        }
        return false;
    }
    bridge_channel_ = std::move(ours);
    bridge_watch_ = loop_.add(bridge_channel_.get(), EPOLLIN, [this](uint32_t) { bridge_program_ended(); });
    return true;
}

/// It never writes: readable means that it has gone.
void Monitor::bridge_program_ended() {
    dismiss_bridge_program();
    std::vector<uint64_t> lost;
    for (const auto &[id, parcel] : parcels_) {
        if (parcel->bridged) {
            lost.push_back(id);
        }
    }
    for (const uint64_t id : lost) {
        end_parcel(*parcels_.at(id));
    }
    if (!lost.empty() && may_log()) {
        spdlog::error("sd-bridge ended unexpectedly, {} connections were lost", lost.size());
    }
}

void Monitor::dismiss_bridge_program() {
    loop_.remove(bridge_watch_, bridge_channel_.get());
    bridge_channel_.reset();
    if (bridge_timer_ != 0) {
        loop_.cancel(bridge_timer_);
        bridge_timer_ = 0;
    }
}

/// From now on the passed socket works as the kernel socket it is.
void Monitor::bridge(Parcel &parcel) {
    if (parcel.bridged) {
        return;
    }
    if (parcel.timer != 0) {
        loop_.cancel(std::exchange(parcel.timer, 0));
    }
    loop_.remove(std::exchange(parcel.watch, 0), parcel.far.get());
    parcel.bridged = true;
    // What stands for the connection towards sd-bridge, whose libsd claims it as any receiver's does.
    const UniqueFd token(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t length = sizeof parcel.token_cookie;
    if (!token || setsockopt(token.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kParcelMark, sizeof kParcelMark) != 0 ||
        getsockopt(token.get(), SOL_SOCKET, SO_COOKIE, &parcel.token_cookie, &length) != 0 ||
        (!bridge_channel_ && !start_bridge_program())) {
        end_parcel(parcel);
        return;
    }
    parcel_by_cookie_[parcel.token_cookie] = &parcel;
    BridgePacket packet;
    packet.polite = parcel.polite;
    iovec io{&packet, sizeof packet};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int fds[2] = {token.get(), parcel.far.get()};
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    if (sendmsg(bridge_channel_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (may_log()) {
            spdlog::error("sd-bridge takes no more connections: {}", strerror(errno));
        }
        end_parcel(parcel);
        return;
    }
    parcel.far.reset();
    spdlog::debug("parcel {} of client {} is bridged", parcel.id, parcel.sender);
    dismiss_bridge_program_later();
}

void Monitor::dismiss_bridge_program_later() {
    if (bridge_timer_ != 0) {
        loop_.cancel(bridge_timer_);
    }
    bridge_timer_ = loop_.after(kDismissal, [this] {
        bridge_timer_ = 0;
        if (std::any_of(parcels_.begin(), parcels_.end(),
                        [](const auto &entry) { return entry.second->bridged; })) {
            dismiss_bridge_program_later(); // not claimed yet
        } else {
            dismiss_bridge_program();
        }
    });
}

} // namespace sd::monitor
