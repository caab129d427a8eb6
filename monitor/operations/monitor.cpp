// Channels of the monitor: accepting them, and finding the operation for each packet.
#include "monitor/operations/monitor.hpp"
#include "monitor/kernel/descriptor_kind.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/contained.hpp"
#include "monitor/service/journal.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <random>
#include <sys/epoll.h>

namespace sd::monitor {

using wire::Op;

struct Monitor::Operation {
    Op op;
    const char *name;
    size_t length;
    unsigned fds;
    unsigned kinds; ///< bit per Client::Kind that may ask for it
    Reply (Monitor::*perform)(Client &, Request &);
};

namespace {

constexpr unsigned bit(Client::Kind kind) { return 1u << static_cast<unsigned>(kind); }
constexpr unsigned kProcess = bit(Client::Kind::process);
constexpr unsigned kNotChild = bit(Client::Kind::fresh) | bit(Client::Kind::presence) | kProcess;

/// Requests of which one is a channel's share of a turn: they look at all that somebody has, or at all that
/// listens on a port.
bool takes_long(uint16_t op) {
    constexpr Op kThose[] = {Op::image, Op::status, Op::snapshot, Op::ends,      Op::listen,
                             Op::check, Op::links,  Op::steer,    Op::steer_mine};
    return std::find(std::begin(kThose), std::end(kThose), static_cast<Op>(op)) != std::end(kThose);
}

/// Requests whose answer is memory, or a descriptor, that the process has a right to, or makes a process have
/// what the channel's has. Whoever has come into its channel some other way, as a child of a fork that libsd
/// did not see, has no such right.
bool hands_out(Op op) {
    constexpr Op kThose[] = {Op::hello,      Op::fork,      Op::segment,  Op::links, Op::peer_bell,
                             Op::adopt_link, Op::pass,      Op::claim,    Op::moved, Op::connect,
                             Op::offer,      Op::other_end, Op::peer_pool};
    return std::find(std::begin(kThose), std::end(kThose), op) != std::end(kThose);
}

/// What a user's requests may take of one turn of the loop. What is left unread comes with the next one.
class TurnShare {
  public:
    TurnShare(Account *account, uint64_t turn) : account_(account), begin_(EventLoop::Clock::now()) {
        if (account_ != nullptr && account_->turn != turn) {
            account_->turn = turn;
            account_->spent = {};
        }
    }
    ~TurnShare() {
        if (account_ != nullptr) {
            account_->spent += EventLoop::Clock::now() - begin_;
        }
    }
    TurnShare(const TurnShare &) = delete;
    TurnShare &operator=(const TurnShare &) = delete;
    bool used_up() const {
        return account_ != nullptr && account_->spent + (EventLoop::Clock::now() - begin_) > kMost;
    }

  private:
    static constexpr std::chrono::microseconds kMost{500};
    Account *account_;
    EventLoop::Clock::time_point begin_;
};

uint64_t random_epoch() {
    std::random_device device;
    return (uint64_t{device()} << 32 | device()) | 1;
}

} // namespace

const Monitor::Operation *Monitor::find_operation(uint16_t op) {
    static const Operation operations[] = {
        {Op::hello, "hello", sizeof(wire::Hello), 2, kNotChild, &Monitor::hello},
        {Op::presence, "presence", 0, 0, bit(Client::Kind::fresh), &Monitor::presence},
        {Op::stay, "stay", 0, 0, bit(Client::Kind::fresh), &Monitor::stay},
        {Op::enter, "enter", 0, 1, bit(Client::Kind::fresh) | bit(Client::Kind::presence), &Monitor::enter},
        {Op::fork, "fork", sizeof(wire::Fork), 0, kProcess, &Monitor::fork},
        {Op::child, "child", sizeof(wire::Child), 0, bit(Client::Kind::expected), &Monitor::child},
        {Op::segment, "segment", sizeof(wire::Segment), 1, kProcess, &Monitor::segment},
        {Op::listen, "listen", sizeof(wire::Listen), 1, kProcess, &Monitor::listen},
        {Op::unlisten, "unlisten", sizeof(wire::ListenerRef), 0, kProcess, &Monitor::unlisten},
        {Op::links, "links", sizeof(wire::Links), 0, kProcess, &Monitor::links},
        {Op::connect, "connect", sizeof(wire::Connect), 0, kProcess, &Monitor::connect},
        {Op::drop_link, "drop_link", sizeof(wire::LinkRef), 0, kProcess, &Monitor::drop_link},
        {Op::bell, "bell", sizeof(wire::Bell), 1, kProcess, &Monitor::bell},
        {Op::unbell, "unbell", sizeof(wire::BellRef), 0, kProcess, &Monitor::unbell},
        {Op::peer_bell, "peer_bell", sizeof(wire::BellRef), 0, kProcess, &Monitor::peer_bell},
        {Op::foreign_bell, "foreign_bell", sizeof(wire::BellRef), 1, kProcess, &Monitor::foreign_bell},
        {Op::ring, "ring", sizeof(wire::BellRef), 0, kProcess, &Monitor::ring_peer},
        {Op::accept_bell, "accept_bell", sizeof(wire::ListenerRef), 1, kProcess, &Monitor::accept_bell},
        {Op::mute_bell, "mute_bell", 0, 1, kProcess, &Monitor::mute_bell},
        {Op::adopt_link, "adopt_link", sizeof(wire::Adopt), 1, kProcess, &Monitor::adopt_link},
        {Op::log, "log", sizeof(wire::Log), 0, kNotChild, &Monitor::log},
        {Op::image, "image", sizeof(wire::Image), 2, kProcess, &Monitor::image},
        {Op::pass, "pass", sizeof(wire::Pass), 2, kProcess, &Monitor::pass},
        {Op::claim, "claim", 0, 1, kProcess, &Monitor::claim},
        {Op::claimed, "claimed", sizeof(wire::ParcelRef), 0, kProcess, &Monitor::claimed},
        {Op::check, "check", sizeof(wire::ListenerRef), 0, kProcess, &Monitor::check},
        {Op::moved, "moved", sizeof(wire::Moved), 0, kProcess, &Monitor::moved},
        {Op::let_go, "let_go", sizeof(wire::Moved), 0, kProcess, &Monitor::let_go},
        {Op::unlist, "unlist", sizeof(wire::ListenerRef), 0, kProcess, &Monitor::unlist},
        {Op::memory, "memory", sizeof(wire::Memory), 0, kNotChild, &Monitor::memory},
        {Op::ends, "ends", 0, 0, kProcess, &Monitor::ends},
        {Op::part, "part", sizeof(wire::SegmentRef), 0, kProcess, &Monitor::part},
        {Op::withdraw, "withdraw", sizeof(wire::LinkRef), 0, kProcess, &Monitor::withdraw},
        {Op::renew, "renew", sizeof(wire::LinkRef), 0, kProcess, &Monitor::renew},
        {Op::sandbox, "sandbox", 0, 0, kProcess, &Monitor::sandbox},
        {Op::leave, "leave", sizeof(wire::Leave), 0, kProcess, &Monitor::leave},
        {Op::no_room, "no_room", sizeof(wire::LinkRef), 0, kProcess, &Monitor::no_room},
        {Op::status, "status", 0, 0, kNotChild, &Monitor::status},
        {Op::snapshot, "snapshot", 0, 0, kNotChild, &Monitor::status},
        {Op::offer, "offer", sizeof(wire::Offer), 1, kProcess, &Monitor::offer},
        {Op::other_end, "other_end", 0, 1, kProcess, &Monitor::other_end},
        {Op::take_back, "take_back", sizeof(wire::Offered), 0, kProcess, &Monitor::take_back},
        {Op::steer, "steer", sizeof(wire::Steer), 0, kNotChild, &Monitor::steer},
        {Op::steer_mine, "steer_mine", sizeof(wire::Steer), 1, kNotChild, &Monitor::steer_mine},
        {Op::carry, "carry", sizeof(wire::Carry), 0, kProcess, &Monitor::carry},
        {Op::greet, "greet", sizeof(wire::Greeting), 0, kProcess, &Monitor::greet},
        {Op::pool, "pool", sizeof(wire::Pool), 2, kProcess, &Monitor::pool},
        {Op::peer_pool, "peer_pool", sizeof(wire::PoolRef), 0, kProcess, &Monitor::peer_pool},
        {Op::end_pool, "end_pool", sizeof(wire::PoolRef), 0, kProcess, &Monitor::end_pool},
    };
    for (const Operation &operation : operations) {
        if (static_cast<uint16_t>(operation.op) == op) {
            return &operation;
        }
    }
    return nullptr;
}

Monitor::Monitor(EventLoop &loop, Config config, std::string socket_path, bool exit_when_unused)
    : loop_(loop), config_(std::move(config)),
      accounts_(config_.limits.per_user, config_.limits.per_cgroup, config_.limits.clients, config_.all_users),
      socket_path_(std::move(socket_path)), exit_when_unused_(exit_when_unused), epoch_(random_epoch()),
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)), next_id_(epoch_ >> 32 << 32 | 1),
      next_listener_(static_cast<uint32_t>(epoch_) & 0x3fffffff), discovery_(config_.paths),
      peers_(std::make_unique<PeersHelper>(
          loop_, config_.peers_socket,
          PeersHelper::Events{[this](const std::string &name) { host_is_there(name); },
                              [this](const std::string &name) { host_is_away(name); },
                              [this](const std::string &name, const between_hosts::LinkMessage &message) {
                                  host_says(name, message);
                              }})) {
    prepare_to_ring();
    say_discovery();
    peers_->apply(config_.peers, discovery_.proof_key());
}

Monitor::~Monitor() {
    for (auto &[id, client] : clients_) {
        loop_.remove(client->channel_watch, client->channel.get());
        loop_.remove(client->pidfd_watch, client->pidfd.get());
    }
    for (auto &[watch, awaited] : awaited_) {
        loop_.remove(watch, awaited.pidfd.get());
    }
    for (auto &[watch, stranger] : strangers_) {
        loop_.remove(watch, stranger.pidfd.get());
    }
    for (auto &[id, parcel] : parcels_) {
        loop_.remove(parcel->watch, parcel->far.get());
    }
    for (const auto &[id, program] : bridge_programs_) {
        loop_.remove(program.watch, program.channel.get());
    }
    for (const auto &[id, bridge] : running_bridges_) {
        loop_.remove(bridge.watch, bridge.pidfd.get());
    }
    for (const auto &[cookie, ns] : namespaces_) {
        if (ns->filter_watch != 0) {
            loop_.remove(ns->filter_watch, ns->filter->fd());
        }
    }
    loop_.remove(ends_watch_, ends_of_listeners_.fd());
    for (const Door *door : {&door_, &containers_door_}) {
        loop_.remove(door->watch, door->fd);
    }
}

void Monitor::open_door(Door &door, int listening, bool contained) {
    // Inherited by what is accepted: packets sent before we come to accept must carry their sender, too.
    const int on = 1;
    setsockopt(listening, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    door = {listening, loop_.add(listening, EPOLLIN, [this, &door](uint32_t) { accept_clients(door); }),
            contained};
}

void Monitor::serve(int listening_socket, int containers) {
    open_door(door_, listening_socket, false);
    if (containers >= 0) {
        open_door(containers_door_, containers, true);
    }
    if (ends_of_listeners_.fd() >= 0) {
        ends_watch_ = loop_.add(ends_of_listeners_.fd(), EPOLLIN, [this](uint32_t) { take_ended_listeners(); });
    } else {
        log::warn("no inotify: {}; listeners whose sockets end are found late", strerror(errno));
    }
    arm_exit(std::chrono::seconds(10));
}

void Monitor::announce_end() {
    for (auto &[cookie, ns] : namespaces_) {
        ns->directory.monitor_gone();
    }
}

void Monitor::arm_exit(std::chrono::milliseconds grace) {
    if (exit_when_unused_ && clients_.empty() && exit_timer_ == 0) {
        exit_timer_ = loop_.after(grace, [this] {
            log::info("nobody is here any more, ending");
            loop_.stop();
        });
    }
}

/// Nobody's lines crowd out another's: each user has a number of lines, and there is room for those of many.
bool Monitor::may_log() {
    constexpr unsigned kLinesPerSecond = 200, kLinesPerUser = 25;
    const auto now = EventLoop::Clock::now();
    if (now - log_window_ >= std::chrono::seconds(1)) {
        for (const auto &[uid, lines] : logged_by_) {
            if (lines > kLinesPerUser) {
                log::warn("{} lines about clients of user {} were not logged", lines - kLinesPerUser, uid);
            }
        }
        log_window_ = now;
        logged_ = 0;
        logged_by_.clear();
    }
    return ++logged_by_[asker_] <= kLinesPerUser && ++logged_ <= kLinesPerSecond;
}

Client &Monitor::add_client(ClientChannel channel, Payer payer, Charge charge) {
    // The kernel then adds the sender's identity to every packet.
    const int on = 1;
    setsockopt(channel.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    bound_replies(channel.get());
    auto client = std::make_unique<Client>();
    client->id = next_id_++;
    client->channel = std::move(channel);
    client->payer = std::move(payer);
    client->charge = std::move(charge);
    client->channel_watch =
        loop_.add(client->channel.get(), EPOLLIN, [this, id = client->id](uint32_t) { channel_ready(id); });
    if (exit_timer_ != 0) {
        loop_.cancel(exit_timer_);
        exit_timer_ = 0;
    }
    return *(clients_[client->id] = std::move(client));
}

/// Several at a time, and not only one in a turn: those who connect again and again would make others wait.
void Monitor::accept_clients(const Door &door) {
    constexpr int kAtOnce = 32;
    for (int i = 0; i < kAtOnce && accept_client(door); ++i) {
    }
}

/// False: nobody waits.
bool Monitor::accept_client(const Door &door) {
    ClientChannel channel = UniqueFd(accept4(door.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!channel && (errno == EMFILE || errno == ENFILE)) {
        // Left in the queue it would wake us for ever: take it with the spare descriptor and turn it away.
        if (may_log()) {
            log::error("out of file descriptors, a client was turned away");
        }
        spare_.reset();
        channel = UniqueFd(accept4(door.fd, nullptr, nullptr, SOCK_CLOEXEC));
        channel.reset();
        spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
        return false;
    }
    if (!channel) {
        return false;
    }
    ucred peer{};
    socklen_t length = sizeof peer;
    if (getsockopt(channel.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && is_holding_us_up(peer.uid)) {
        if (may_log()) {
            log::warn("user {} has sent descriptors that cannot be closed, a client was turned away", peer.uid);
        }
        return true;
    }
    asker_ = door.contained ? kContainers : peer.uid;
    try {
        Payer payer = payer_of(peer, door.contained);
        Charge paid = charge_client(payer, nullptr);
        Client &client = add_client(std::move(channel), std::move(payer), std::move(paid));
        client.payer_pid = peer.pid;
        client.who.uid = peer.uid;
        client.contained = door.contained;
    } catch (const OverShare &over) {
        if (may_log()) {
            log::warn("process {} was turned away: {}", peer.pid, over.what());
        }
    }
    return true;
}

void Monitor::channel_ready(uint64_t client_id) {
    const auto found = clients_.find(client_id);
    const Payer payer = found == clients_.end() ? Payer{} : found->second->payer; // it may end meanwhile
    TurnShare share((payer.user ? payer.user : payer.group).get(), loop_.turn());
    // A few packets at a time, so that no client keeps the others waiting, and no user with many channels.
    constexpr int kAtOnce = 8;
    for (int i = 0; i < kAtOnce && !share.used_up(); ++i) {
        const auto it = clients_.find(client_id);
        if (it == clients_.end() || !it->second->channel) {
            return;
        }
        Client &client = *it->second;
        if (client.awaits) {
            channel_closed(client); // it has hung up: of nothing else is told
            return;
        }
        if (const bool unread = !takes_replies(client.channel.get()); unread != client.unread) {
            client.unread = unread;
            listen_to(client);
        }
        if (client.unread && !wants_no_answer(client.channel.get())) {
            return; // told when it has received something, or sends something
        }
        if (client.last_sender && is_holding_us_up(*client.last_sender)) {
            channel_closed(client); // without looking at what else it has sent
            return;
        }
        asker_ = client.contained ? kContainers : client.who.uid;
        Request request;
        switch (receive(client.channel.get(), request)) {
        case Received::nothing:
            return;
        case Received::closed:
            channel_closed(client);
            return;
        case Received::malformed: {
            if (may_log()) {
                log::warn("process {}: malformed packet (version {}, op {}, {} bytes), channel closed",
                          request.sender.pid, request.header.version, request.header.op, request.header.length);
            }
            const bool other_version =
                request.header.magic == wire::kMagic && !wire::is_served(request.header.version);
            send(client.channel.get(), request.header,
                 Reply::error(EPROTO, other_version ? Cause::monitor_version : Cause::none));
            channel_closed(client);
            return;
        }
        case Received::truncated:
            if (may_log()) {
                log::error("out of file descriptors, a request of process {} is refused", request.sender.pid);
            }
            request.fds.clear();
            if (request.header.sequence != wire::kNoAnswer) {
                send(client.channel.get(), request.header, Reply::error(EMFILE, Cause::limit));
            }
            break;
        case Received::packet:
            if (!handle(client, request)) {
                if (const auto still = clients_.find(client_id); still != clients_.end()) {
                    channel_closed(*still->second);
                }
                return;
            }
            // Who waits for an answer sends nothing more; if he does, he is heard in the next turn.
            if (takes_long(request.header.op) || request.header.sequence != wire::kNoAnswer) {
                i = kAtOnce;
            }
        }
    }
    const auto it = clients_.find(client_id);
    if (it != clients_.end() && it->second->channel && it->second->unread && !it->second->awaits) {
        listen_to(*it->second); // there may be more, of which nothing else would tell
    }
}

/// Who has a reply to receive is heard when it has received something, or sends something: there may be room
/// for more replies, and requests that have to wait, all the time.
void Monitor::listen_to(Client &client) {
    constexpr uint32_t kChanges = EPOLLIN | EPOLLOUT | EPOLLET;
    loop_.change(client.channel_watch, client.channel.get(), client.unread ? kChanges : uint32_t{EPOLLIN});
}

bool Monitor::handle(Client &client, Request &request) {
    client.last_sender = request.sender.uid;
    const Operation *operation = find_operation(request.header.op);
    if (operation == nullptr) {
        if (may_log()) {
            log::warn("process {}: unknown operation {}: its library is newer than this monitor",
                      request.sender.pid, request.header.op);
        }
        return request.header.sequence == wire::kNoAnswer ||
               send(client.channel.get(), request.header, Reply::error(ENOSYS));
    }
    if (request.header.length != operation->length || request.fds.size() != operation->fds ||
        (operation->kinds & bit(client.kind)) == 0) {
        if (may_log()) {
            log::warn("process {}: {} with {} bytes and {} descriptors is not valid here, channel closed",
                      request.sender.pid, operation->name, request.header.length, request.fds.size());
        }
        send(client.channel.get(), request.header, Reply::error(EPROTO));
        return false;
    }
    if (is_sandboxed(client, request.sender) && !is_answered_when_sandboxed(operation->op)) {
        log::debug("process {}: {} refused: it is in a sandbox", request.sender.pid, operation->name);
        return request.header.sequence == wire::kNoAnswer ||
               send(client.channel.get(), request.header, Reply::error(EPERM, Cause::policy));
    }
    if (client.contained && !is_answered_when_contained(operation->op)) {
        log::debug("process {}: {} refused: it came by the containers' socket", request.sender.pid,
                   operation->name);
        return request.header.sequence == wire::kNoAnswer ||
               send(client.channel.get(), request.header, Reply::error(EPERM, Cause::policy));
    }
    if (hands_out(operation->op) && client.kind == Client::Kind::process && client.pid != request.sender.pid) {
        if (may_log()) {
            log::warn("process {}: {} refused: the channel is that of process {}", request.sender.pid,
                      operation->name, client.pid);
        }
        return request.header.sequence == wire::kNoAnswer ||
               send(client.channel.get(), request.header, Reply::error(EPERM, Cause::policy));
    }
    if (client.pid != 0 && client.pid == request.sender.pid) {
        client.who.uid = request.sender.uid; // servers often begin as root and become somebody else
        client.who.gid = request.sender.gid;
    }
    for (const UniqueFd &fd : request.fds) {
        if (!is_kernels_own(fd.get())) {
            if (may_log()) {
                log::warn("process {}: {} with a descriptor that is neither memory, a socket nor an eventfd",
                          request.sender.pid, operation->name);
            }
            return request.header.sequence == wire::kNoAnswer ||
                   send(client.channel.get(), request.header, Reply::error(EINVAL));
        }
    }
    const size_t listeners_before = client.listeners.size();
    const Reply reply = perform(client, request, *operation);
    if (reply.later) {
        return true;
    }
    if (reply.status != 0) {
        const auto cause = static_cast<unsigned>(reply.cause);
        // Without these two a death of the process would not be seen by whom it is connected to.
        const bool weighs = operation->op == Op::segment || operation->op == Op::adopt_link;
        log_about({request.sender.pid, request.sender.uid, client.comm, cause},
                  weighs && may_log() ? log::Level::info : log::Level::debug,
                  fmt::format("process {}: {} refused: {}{}{}", request.sender.pid, operation->name,
                              strerror(-reply.status), cause == 0 ? "" : ", cause ",
                              cause == 0 ? "" : cause_name(cause)));
    }
    if (request.header.sequence != wire::kNoAnswer && !send(client.channel.get(), request.header, reply)) {
        if (may_log()) {
            log::warn("process {}: does not take the reply to {}, channel closed", request.sender.pid,
                      operation->name);
        }
        client.impatient = true;
        if (reply.status == 0) {
            take_back(client, request, reply, client.listeners.size() > listeners_before);
        }
        return false;
    }
    return true;
}

/// A client waits for an answer for two seconds, since a monitor that is stopped must not stop it. Where we
/// were late (on a host that has far too much to do), what it does not know that it has must not stay in its
/// name, and whom it could not wake is woken here.
void Monitor::take_back(Client &client, const Request &request, const Reply &reply, bool new_listener) {
    switch (static_cast<wire::Op>(request.header.op)) {
    case wire::Op::peer_bell:
        ring(*bell_to_ring(client, request.as<wire::BellRef>())->eventfd);
        break;
    case wire::Op::listen: {
        wire::ListenReply body;
        memcpy(&body, reply.body, sizeof body);
        if (const auto it = listeners_.find(body.listener_id); new_listener && it != listeners_.end()) {
            leave_listener(client, *it->second);
        }
        break;
    }
    case wire::Op::fork: {
        wire::ForkReply body;
        memcpy(&body, reply.body, sizeof body);
        const auto it = clients_.find(body.client_id);
        if (it == clients_.end()) {
            break;
        }
        // The child holds what its record in the segment says: nothing of that ends now. It may come and tell
        // us of it, or die before.
        Client &child = *it->second;
        for (const Client::Share &share : std::exchange(child.segments, {})) {
            std::erase_if(share.segment->members, [&](const auto &member) { return member.client == &child; });
            loop_.after(std::chrono::seconds(1), [this, shared = std::weak_ptr(share.segment)] {
                if (const auto segment = shared.lock(); segment && !segment->members.empty()) {
                    meet_strangers(segment);
                }
            });
        }
        gone(child, "is not known to its parent");
        break;
    }
    default:
        break;
    }
}

Reply Monitor::perform(Client &client, Request &request, const Operation &operation) {
    const RingTogether each_once;
    try {
        return (this->*operation.perform)(client, request);
    } catch (const OverShare &over) {
        if (may_log()) {
            log::warn("process {}: {} refused: {}", request.sender.pid, operation.name, over.what());
        }
        return Reply::error(EMFILE, Cause::limit);
    } catch (const std::system_error &error) {
        if (may_log()) {
            log::error("process {}: {}: {}", request.sender.pid, operation.name, error.what());
        }
        const int number = error.code().value();
        return Reply::error(number,
                            number == EMFILE || number == ENFILE ? Cause::no_descriptor : Cause::no_memory);
    } catch (const std::bad_alloc &) {
        if (may_log()) {
            log::error("process {}: {}: out of memory", request.sender.pid, operation.name);
        }
        return Reply::error(ENOMEM, Cause::no_memory);
    }
}

} // namespace sd::monitor
