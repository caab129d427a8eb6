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

constexpr std::chrono::milliseconds kFirstPause{1000}, kLongestPause{60000};
constexpr std::chrono::seconds kBetweenLines{1};
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
    settings_ = std::move(settings);
    peers_ = std::move(peers);
    key_ = key;
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
    watch_ = loop_.add(channel_.get(), EPOLLIN, [this](uint32_t) { ready(); });
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

void PeersHelper::ready() {
    for (int i = 0; i < 64; ++i) {
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
        if (report.settings == number_) {
            heard(report);
        }
    }
}

void PeersHelper::heard(PeerReport &report) {
    report.cause = report.cause <= PeerCause::too_slow ? report.cause : PeerCause::malformed;
    const std::string detail = printable(report.detail);
    if (report.kind == PeerReport::peer && report.index < peers_.size() && report.state <= PeerState::up) {
        heard_of(report.index, report, detail);
    } else if (report.kind == PeerReport::key && report.index < peers_.size() &&
               peers_[report.index].state == PeerState::up) {
        memcpy(peers_[report.index].key.emplace().data(), report.detail, sizeof(ProofKey));
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
    if (report.cause != PeerCause::none) { // what was wrong the last time is shown while it is up, too
        peer.cause = report.cause;
        peer.detail = detail;
    }
}

const std::string *PeersHelper::host_of(const ForeignEnd &end, const uint8_t (&address)[16]) {
    for (size_t i = 0; i < peers_.size(); ++i) {
        const std::vector<std::string> &own = settings_.peers[i].addresses;
        if (peers_[i].key && end.is_of(*peers_[i].key) &&
            std::any_of(own.begin(), own.end(), [&](const std::string &network) {
                const auto match = AddressMatch::parse(network);
                return match && match->matches(address);
            })) {
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
    listens_ = false;
}

/// It is started again, later each time that it does not last.
void PeersHelper::ended() {
    log::error("no channels to other hosts: {}", trouble_);
    drop();
    for (Peer &peer : peers_) {
        peer.since = peer.state == PeerState::up ? EventLoop::Clock::now() : peer.since;
        peer.state = PeerState::waiting;
        peer.version = 0;
        peer.key.reset();
    }
    pause_ = EventLoop::Clock::now() - started_ > kLongestPause
                 ? kFirstPause
                 : std::clamp(2 * pause_, kFirstPause, kLongestPause);
    restart_ = loop_.after(pause_, [this] {
        restart_ = 0;
        start();
    });
}

json PeersHelper::json() const {
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
    }
    return {{"name", settings_.name},  {"listens", listens_},     {"port", settings_.port},
            {"trouble", trouble_},     {"strangers", strangers_}, {"last_stranger", last_stranger_},
            {"peers", std::move(list)}};
}

} // namespace sd::monitor
