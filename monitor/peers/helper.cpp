// The monitor's end of sd-peers.
#include "monitor/peers/helper.hpp"
#include "monitor/kernel/shared_memory.hpp"
#include "monitor/sandbox/spawn.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace sd::monitor {

namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kFirstRestartPause{1000}, kLongestRestartPause{60000};
constexpr std::chrono::seconds kBetweenLines{1};
constexpr size_t kMostOrders = 65536;                ///< that wait; then the helper is started anew
constexpr const char *kNobody = "65534,65534,65534"; ///< whom a helper of root's becomes

/// Of what a stranger may have a hand in, one line that can be shown.
std::string printable(const char (&text)[128]) {
    std::string out(text, strnlen(text, sizeof text));
    std::replace_if(
        out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return out;
}

} // namespace

void PeersHelper::apply(PeersSettings settings, std::optional<ProofKey> key) {
    if (settings == settings_ && key == key_ && channel_) {
        return;
    }
    std::vector<Peer> peers(settings.peers.size());
    for (size_t i = 0; i < peers.size(); ++i) {
        peers[i].since = EventLoop::Clock::now();
        for (size_t j = 0; j < peers_.size(); ++j) {
            if (settings_.peers[j].name == settings.peers[i].name) {
                peers[i] = peers_[j];
            }
        }
    }
    std::vector<std::string> lost;
    for (size_t i = 0; i < peers_.size(); ++i) {
        const auto is_same = [&](const PeerSettings &peer) { return peer.name == settings_.peers[i].name; };
        if (peers_[i].session != 0 && std::none_of(settings.peers.begin(), settings.peers.end(), is_same)) {
            lost.push_back(settings_.peers[i].name);
        }
    }
    settings_ = std::move(settings);
    peers_ = std::move(peers);
    key_ = key;
    for (const std::string &name : lost) {
        events_.down(name);
    }
    ++number_;
    if (!settings_.is_used()) {
        drop();
        return;
    }
    if (!channel_) {
        pause_ = {};
        start();
    } else if (!send_settings()) {
        ended();
    }
}

void PeersHelper::start() {
    if (restart_ != 0) {
        loop_.cancel(restart_);
        restart_ = 0;
    }
    started_ = EventLoop::Clock::now();
    trouble_.clear();
    channel_ = open_channel();
    if (!channel_ || !send_settings()) {
        ended();
        return;
    }
    watch_ = loop_.add(channel_.get(), EPOLLIN, [this](uint32_t events) {
        if ((events & EPOLLOUT) != 0) {
            flush();
        }
        ready();
    });
}

/// From the service manager, for a monitor whose unit has no network; else as a process of its own.
UniqueFd PeersHelper::open_channel() {
    if (!socket_path_.empty()) {
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        memcpy(name.sun_path, socket_path_.c_str(), std::min(socket_path_.size() + 1, sizeof name.sun_path - 1));
        UniqueFd channel(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (channel && connect(channel.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0) {
            return channel;
        }
        trouble_ = socket_path_ + ": " + strerror(errno);
        return {};
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        trouble_ = strerror(errno);
        return {};
    }
    UniqueFd ours(ends[0]), theirs(ends[1]);
    pid_t pid = 0;
    const std::vector<std::string> ids =
        geteuid() == 0 ? std::vector<std::string>{kNobody, kNobody} : std::vector<std::string>{};
    if (const int error = spawn_beside("sd-peers", ids, {}, theirs.get(), kPeersChannel, pid); error != 0) {
        trouble_ = std::string("sd-peers: ") + strerror(error);
        return {};
    }
    return ours;
}

bool PeersHelper::send_settings() {
    const std::string text = text_of(settings_);
    const UniqueFd file = make_memfd("sd-peers", 0);
    for (size_t done = 0; done < text.size();) {
        const ssize_t n = write(file.get(), text.data() + done, text.size() - done);
        if (n <= 0) {
            trouble_ = strerror(errno);
            return false;
        }
        done += static_cast<size_t>(n);
    }
    PeersOrder order;
    order.settings = number_;
    order.has_key = key_ ? 1 : 0;
    if (key_) {
        static_assert(sizeof order.key == sizeof *key_);
        memcpy(order.key, key_->data(), sizeof order.key);
    }
    const int fds[] = {file.get()};
    if (!send_order(channel_.get(), &order, sizeof order, fds)) {
        trouble_ = std::string("sd-peers: ") + strerror(errno);
        return false;
    }
    return true;
}

std::optional<size_t> PeersHelper::index_of(std::string_view name) const {
    const auto &all = settings_.peers;
    const auto it = std::find_if(all.begin(), all.end(), [&](const PeerSettings &p) { return p.name == name; });
    return it == all.end() ? std::nullopt : std::optional(static_cast<size_t>(it - all.begin()));
}

void PeersHelper::send(const std::string &host, const between_hosts::LinkMessage &message) {
    const auto index = index_of(host);
    if (!index || peers_[*index].session == 0) {
        return;
    }
    const std::string body = between_hosts::encode(message);
    PeersOrder one;
    one.kind = PeersOrder::message;
    one.session = peers_[*index].session;
    one.message_kind = static_cast<uint16_t>(between_hosts::kind_of(message));
    one.size = static_cast<uint16_t>(body.size());
    static_assert(between_hosts::kMostLinkBody <= sizeof one.body);
    memcpy(one.body, body.data(), body.size());
    order(one);
}

bool PeersHelper::carries(const std::string &host) const {
    const auto index = index_of(host);
    return index && peers_[*index].session != 0 && peers_[*index].version >= kCarryVersion;
}

void PeersHelper::refuse(const std::string &host, const std::string &why) {
    const auto index = index_of(host);
    if (!index || peers_[*index].session == 0) {
        return;
    }
    PeersOrder one;
    one.kind = PeersOrder::refuse;
    one.session = peers_[*index].session;
    memcpy(one.body, why.data(), std::min(why.size(), sizeof one.body - 1));
    order(one);
}

/// In their order. None is lost while the helper lives.
void PeersHelper::order(const PeersOrder &one) {
    if (!channel_ || orders_.size() >= kMostOrders) {
        return; // flush() sees to the latter
    }
    orders_.push_back(one);
    if (orders_.size() == 1) {
        loop_.soon([this, alive = std::weak_ptr<const char>(alive_)] {
            if (!alive.expired()) {
                flush();
            }
        });
    }
}

void PeersHelper::flush() {
    while (channel_ && !orders_.empty()) {
        if (::send(channel_.get(), &orders_.front(), sizeof orders_.front(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno == EINTR) {
                continue;
            }
            if (errno != EAGAIN || orders_.size() >= kMostOrders) {
                trouble_ = errno == EAGAIN ? "sd-peers takes no orders" : strerror(errno);
                ended();
                return;
            }
            break;
        }
        orders_.pop_front();
    }
    if (watch_ != 0) {
        loop_.change(watch_, channel_.get(), orders_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }
}

void PeersHelper::ready() {
    for (int i = 0; channel_ && i < 64; ++i) {
        PeerReport report;
        const ssize_t n = recv(channel_.get(), &report, sizeof report, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n != sizeof report || report.magic != kPeersMagic) {
            trouble_ = n <= 0 ? "sd-peers has ended" : "sd-peers says what cannot be";
            ended();
            return;
        }
        heard(report);
    }
}

void PeersHelper::heard(PeerReport &report) {
    report.cause = report.cause <= PeerCause::too_slow ? report.cause : PeerCause::malformed;
    // What was said by former settings is of no use, but for peers that have stayed.
    const auto index = index_of(std::string_view(report.name, strnlen(report.name, sizeof report.name)));
    if (report.kind == PeerReport::message) {
        if (index) {
            heard_message(*index, report);
        }
        return;
    }
    const std::string detail = printable(report.detail);
    if (report.kind == PeerReport::peer && index && report.state <= PeerState::up) {
        heard_of(*index, report, detail);
    } else if (report.kind == PeerReport::key && index && peers_[*index].state == PeerState::up) {
        memcpy(peers_[*index].key.emplace().data(), report.detail, sizeof(ProofKey));
    } else if (report.settings != number_) {
        return;
    } else if (report.kind == PeerReport::listening) {
        const std::string before = trouble_;
        listens_ = report.cause == PeerCause::none;
        trouble_ = listens_ ? "" : "cannot listen: " + detail;
        if (!listens_ && before != trouble_) {
            log::error("port {} for peers: {}", settings_.port, trouble_);
        }
    } else if (report.kind == PeerReport::strangers) {
        strangers_ = report.version;
        last_stranger_ = detail;
    }
}

void PeersHelper::heard_of(size_t index, const PeerReport &report, const std::string &detail) {
    Peer &peer = peers_[index];
    const bool was_up = peer.state == PeerState::up, is_up = report.state == PeerState::up;
    const std::string &name = settings_.peers[index].name;
    if (is_up && !was_up) {
        log::info("peer {} is there, version {}", name, report.version);
    } else if (!is_up && report.cause != PeerCause::none && (was_up || report.cause != peer.cause) &&
               EventLoop::Clock::now() >= peer.next_line) {
        peer.next_line = EventLoop::Clock::now() + kBetweenLines; // a stranger can claim to be this host
        log::warn("peer {}: {} ({}){}{}", name, kPeerCauses[static_cast<size_t>(report.cause)].text,
                  kPeerCauses[static_cast<size_t>(report.cause)].name, detail.empty() ? "" : ": ", detail);
    }
    if (was_up != is_up) {
        peer.since = EventLoop::Clock::now();
    }
    if (!is_up || !was_up) {
        peer.key.reset();
    }
    peer.state = report.state;
    peer.version = report.version;
    const uint64_t before = peer.session;
    peer.session = is_up && report.version >= kLinksVersion ? report.session : 0;
    if (report.cause != PeerCause::none) { // what was wrong the last time is shown while it is up, too
        peer.cause = report.cause;
        peer.detail = detail;
    }
    if (peer.session != before) {
        const uint64_t now = peer.session;
        if (before != 0) {
            events_.down(name);
        }
        if (now != 0) {
            events_.up(name);
        }
    }
}

/// sd-peers has looked at it, and is not believed.
void PeersHelper::heard_message(size_t index, const PeerReport &report) {
    const std::string &name = settings_.peers[index].name;
    if (peers_[index].session == 0 || report.session != peers_[index].session) {
        return;
    }
    const auto message = report.size > sizeof report.detail
                             ? std::nullopt
                             : between_hosts::decode(static_cast<MessageKind>(report.message_kind),
                                                     std::string_view(report.detail, report.size));
    if (message) {
        events_.message(name, *message);
    } else {
        refuse(name, "a message about links that is none");
    }
}

bool PeersHelper::is_address_of(const std::string &host, const uint8_t (&address)[16]) const {
    const auto index = index_of(host);
    const std::vector<std::string> none;
    const std::vector<std::string> &own = index ? settings_.peers[*index].addresses : none;
    return std::any_of(own.begin(), own.end(), [&](const std::string &network) {
        const auto match = AddressMatch::parse(network);
        return match && match->matches(address);
    });
}

const std::string *PeersHelper::host_of(const ForeignEnd &end, const uint8_t (&address)[16]) {
    for (size_t i = 0; i < peers_.size(); ++i) {
        if (peers_[i].key && end.is_of(*peers_[i].key) && is_address_of(settings_.peers[i].name, address)) {
            ++peers_[i].found;
            return &settings_.peers[i].name;
        }
    }
    return nullptr;
}

void PeersHelper::drop() {
    if (watch_ != 0) {
        loop_.remove(watch_, channel_.get());
        watch_ = 0;
    }
    if (restart_ != 0) {
        loop_.cancel(restart_);
        restart_ = 0;
    }
    channel_.reset();
    orders_.clear();
    listens_ = false;
}

/// It is started again, later each time that it does not last.
void PeersHelper::ended() {
    log::error("no channels to other hosts: {}", trouble_);
    drop();
    for (size_t i = 0; i < peers_.size(); ++i) {
        Peer &peer = peers_[i];
        peer.since = peer.state == PeerState::up ? EventLoop::Clock::now() : peer.since;
        peer.state = PeerState::waiting;
        peer.version = 0;
        peer.key.reset();
        if (std::exchange(peer.session, 0) != 0) {
            events_.down(settings_.peers[i].name);
        }
    }
    pause_ = EventLoop::Clock::now() - started_ > kLongestRestartPause
                 ? kFirstRestartPause
                 : std::clamp(2 * pause_, kFirstRestartPause, kLongestRestartPause);
    restart_ = loop_.after(pause_, [this] {
        restart_ = 0;
        start();
    });
}

json PeersHelper::json(const std::function<void(const std::string &, nlohmann::json &)> &add) const {
    if (!settings_.is_used()) {
        return {};
    }
    nlohmann::json list = nlohmann::json::array();
    for (size_t i = 0; i < peers_.size(); ++i) {
        const PeerSettings &settings = settings_.peers[i];
        const Peer &peer = peers_[i];
        const CauseText &cause = kPeerCauses[static_cast<size_t>(peer.cause)];
        list.push_back({{"name", settings.name},
                        {"address", settings.address},
                        {"port", settings.port},
                        {"proof", settings.key.empty() ? "certificate" : "key"},
                        {"connects", connects(settings_.name, settings.name)},
                        {"state", kPeerStates[static_cast<size_t>(peer.state)]},
                        {"since", std::chrono::duration<double>(EventLoop::Clock::now() - peer.since).count()},
                        {"version", peer.version},
                        {"found", peer.found},
                        {"cause", cause.name},
                        {"text", cause.text},
                        {"detail", peer.detail}});
        add(settings.name, list.back());
    }
    return {{"name", settings_.name},  {"listens", listens_},     {"port", settings_.port},
            {"trouble", trouble_},     {"strangers", strangers_}, {"last_stranger", last_stranger_},
            {"peers", std::move(list)}};
}

} // namespace sd::monitor
