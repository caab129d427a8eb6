// Connections that end at somebody without libsd: sd-bridge, an accelerated program, copies between them and
// kernel sockets.
#include "monitor/bridge/bridge_packet.hpp"
#include "monitor/kernel/connected_socket.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/sandbox/spawn.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/un.h>

namespace sd::monitor {

namespace {

/// sd-bridge may end when it has no work and none is to be expected.
constexpr std::chrono::seconds kDismissal{1};

} // namespace

/// Each trust domain has its own, which can do no more than the domain's processes. One process can map a
/// limited number of segments, so connections of very many processes take several programs. nullptr: none can
/// be started.
BridgeProgram *Monitor::bridge_program_for(const Segment &segment, const Payer &payer) {
    const Domain domain = segment.domain.value_or(Domain{});
    for (auto &[id, program] : bridge_programs_) {
        if (program.segments.count(segment.name) != 0 ||
            (program.domain.shares_with(domain) && program.has_room_for(segment.name))) {
            return &program;
        }
    }
    // Those that are full need not wait for work. They go on with what they have.
    dismiss_bridge_programs([this](const BridgeProgram &program) { return !awaits_claim(program); });
    // Nobody has more than are left for others: bridges outlive what they were started for, and how many
    // domains there are is for their user to choose.
    const auto own = static_cast<size_t>(
        std::count_if(running_bridges_.begin(), running_bridges_.end(), [&](const auto &entry) {
            const Payer &other = entry.second.payer;
            return (payer.user && payer.user == other.user) || (payer.group && payer.group == other.group);
        }));
    if (own != 0 && own + running_bridges_.size() >= config_.limits.bridges) {
        if (may_log()) {
            log::warn("a user has {} bridges running, a connection was lost", own);
        }
        return nullptr;
    }
    return config_.bridge_socket.empty() ? start_bridge_program(domain, payer)
                                         : ask_for_bridge_program(domain, payer);
}

/// It gives up what it has been started with before it looks at anything of the domain's
/// (sandbox/privileges.hpp).
BridgeProgram *Monitor::start_bridge_program(const Domain &domain, const Payer &payer) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return nullptr;
    }
    UniqueFd ours(ends[0]), theirs(ends[1]);
    const std::vector<std::string> ids{fmt::format("{}", fmt::join(domain.uid, ",")),
                                       fmt::format("{}", fmt::join(domain.gid, ","))};
    pid_t pid;
    const int error =
        spawn_beside("sd-bridge", ids, {"SD_MONITOR=" + socket_path_}, theirs.get(), kBridgeChannel, pid);
    if (error != 0) {
        if (may_log()) {
            log::error("sd-bridge: {}", strerror(error));
        }
        return nullptr;
    }
    BridgeProgram *const made = keep_bridge_program(std::move(ours), domain, payer);
    watch_bridge_process(*made, pid);
    return made;
}

/// From the service manager, for a monitor that may not become other users itself. Nobody else can connect
/// there. What the program is sent waits for it.
BridgeProgram *Monitor::ask_for_bridge_program(const Domain &domain, const Payer &payer) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    UniqueFd channel(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    BridgeUser user;
    for (unsigned i = 0; i < 3; ++i) {
        user.uid[i] = domain.uid[i];
        user.gid[i] = domain.gid[i];
    }
    const std::string &path = config_.bridge_socket;
    memcpy(name.sun_path, path.c_str(), std::min(path.size() + 1, sizeof name.sun_path - 1));
    if (!channel || ::connect(channel.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0 ||
        setsockopt(channel.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        ::send(channel.get(), &user, sizeof user, MSG_NOSIGNAL) != sizeof user) {
        if (may_log()) {
            log::error("{}: {}", path, strerror(errno));
        }
        return nullptr;
    }
    return keep_bridge_program(std::move(channel), domain, payer);
}

BridgeProgram *Monitor::keep_bridge_program(UniqueFd channel, const Domain &domain, const Payer &payer) {
    const uint64_t id = next_id_++;
    running_bridges_[id].payer = payer;
    BridgeProgram &made = bridge_programs_[id];
    made.id = id;
    made.domain = domain;
    made.channel = std::move(channel);
    made.watch = loop_.add(made.channel.get(), EPOLLIN, [this, id](uint32_t) { bridge_program_ready(id); });
    return &made;
}

void Monitor::watch_bridge_process(BridgeProgram &program, pid_t pid) {
    program.pid = pid;
    program.pidfd = open_pidfd(pid);
    RunningBridge &running = running_bridges_.at(program.id);
    running.pidfd = open_pidfd(pid);
    if (!running.pidfd) {
        running_bridges_.erase(program.id); // it has ended already
        return;
    }
    running.watch = loop_.add(running.pidfd.get(), EPOLLIN, [this, id = program.id](uint32_t) {
        loop_.remove(running_bridges_.at(id).watch, running_bridges_.at(id).pidfd.get());
        running_bridges_.erase(id);
    });
}

/// Takes what it has written: which process it is, as the kernel says, or that it has gone (false).
bool Monitor::hear_bridge_program(BridgeProgram &program) {
    char byte;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    iovec io{&byte, sizeof byte};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(program.channel.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    const cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (n == 0 || program.pid != 0 || c == nullptr || c->cmsg_level != SOL_SOCKET ||
        c->cmsg_type != SCM_CREDENTIALS) {
        return false;
    }
    ucred who;
    memcpy(&who, CMSG_DATA(c), sizeof who);
    watch_bridge_process(program, who.pid);
    pollfd p{program.channel.get(), 0, 0}; // alive still: so the number is its own
    return poll(&p, 1, 0) == 0 && program.pidfd;
}

/// Before somebody is asked whether he is one of them.
void Monitor::meet_bridge_programs() {
    for (auto &[id, program] : bridge_programs_) {
        if (program.pid == 0) {
            (void)hear_bridge_program(program); // that it has gone, the loop hears as well
        }
    }
}

void Monitor::bridge_program_ready(uint64_t id) {
    const auto it = bridge_programs_.find(id);
    if (it != bridge_programs_.end() && !hear_bridge_program(it->second)) {
        bridge_program_ended(id);
    }
}

void Monitor::bridge_program_ended(uint64_t id) {
    dismiss_bridge_programs([id](const BridgeProgram &program) { return program.id == id; });
    Ending ending;
    for (const auto &[parcel_id, parcel] : parcels_) {
        if (parcel->bridged && parcel->bridge == id) {
            ending.payer = parcel->charge.payer();
            ending.lost.push_back(parcel_id);
        }
    }
    if (!ending.lost.empty() && may_log()) {
        log::error("sd-bridge ended unexpectedly, {} connections were lost", ending.lost.size());
    }
    end_by_pieces(std::move(ending));
}

bool Monitor::awaits_claim(const BridgeProgram &program) const {
    return std::any_of(parcels_.begin(), parcels_.end(), [&program](const auto &entry) {
        return entry.second->bridged && entry.second->bridge == program.id;
    });
}

/// They end when their last bridge has ended.
template <typename Predicate> void Monitor::dismiss_bridge_programs(Predicate which) {
    std::erase_if(bridge_programs_, [&](const auto &entry) {
        const BridgeProgram &program = entry.second;
        if (!which(program)) {
            return false;
        }
        loop_.remove(program.watch, program.channel.get());
        if (program.pid == 0) {
            running_bridges_.erase(program.id); // not started yet: it ends as soon as it is
        }
        return true;
    });
}

/// The connection of a parcel has moved while that was on its way. Whoever has the passed socket gets what
/// comes to the one that its holders share.
void Monitor::join_with(const ClientSocket &common, Parcel &parcel, const BridgeProgram *program) {
    const BridgePacket packet;
    const int fds[] = {common.get(), parcel.far.get()};
    if (program != nullptr && !send_order(program->channel.get(), &packet, sizeof packet, fds) && may_log()) {
        log::error("sd-bridge takes no more connections: {}", strerror(errno));
    }
    end_parcel(parcel);
    dismiss_bridge_programs_later();
}

/// From now on the passed socket works as the kernel socket it is.
void Monitor::bridge(Parcel &parcel) {
    if (parcel.bridged) {
        return;
    }
    stop_looking_for(parcel);
    loop_.remove(std::exchange(parcel.watch, 0), parcel.far.get());
    parcel.bridged = true;
    if (parcel.handoff.side == 1) {
        note_crossing(*parcel.link);
    }
    BridgeProgram *const program = bridge_program_for(*parcel.segment, parcel.charge.payer());
    if (const ClientSocket *common = common_socket(parcel);
        common != nullptr && parcel.start != wire::BridgeStart::for_all) {
        join_with(*common, parcel, program);
        return;
    }
    // What stands for the connection towards sd-bridge, whose libsd claims it as any receiver's does.
    const UniqueFd token(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (program == nullptr || !token ||
        setsockopt(token.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kParcelMark, sizeof kParcelMark) != 0 ||
        !read_option(token.get(), SOL_SOCKET, SO_COOKIE, parcel.token_cookie)) {
        end_parcel(parcel);
        return;
    }
    parcel.bridge = program->id;
    program->segments.insert(parcel.segment->name);
    parcel_by_cookie_[parcel.token_cookie] = &parcel;
    BridgePacket packet;
    packet.exclusive = parcel.start != wire::BridgeStart::unclaimed;
    const int fds[] = {token.get(), parcel.far.get()};
    if (!send_order(program->channel.get(), &packet, sizeof packet, fds)) {
        if (may_log()) {
            log::error("sd-bridge takes no more connections: {}", strerror(errno));
        }
        end_parcel(parcel);
        return;
    }
    parcel.far.reset();
    log::debug("parcel {} of client {} is bridged", parcel.id, parcel.sender);
    dismiss_bridge_programs_later();
}

void Monitor::dismiss_bridge_programs_later() {
    if (bridge_timer_ != 0) {
        loop_.cancel(bridge_timer_);
    }
    bridge_timer_ = loop_.after(kDismissal, [this] {
        bridge_timer_ = 0;
        dismiss_bridge_programs([this](const BridgeProgram &program) { return !awaits_claim(program); });
        if (!bridge_programs_.empty()) {
            dismiss_bridge_programs_later();
        }
    });
}

} // namespace sd::monitor
