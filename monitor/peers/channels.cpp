// The channels to all peer hosts.
//
// Of two hosts the one whose name comes first connects, so there is one channel. Before anything of a
// stranger is read, its address must be one of a peer that connects; what has not proven itself yet is few,
// and has a deadline.
#include "monitor/peers/channels.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

constexpr std::chrono::milliseconds kFirstPause{250}, kLongestPause{15000};
constexpr std::chrono::milliseconds kAcceptAgain{1000}; ///< when there are no descriptors
constexpr std::chrono::milliseconds kListenAgain{5000}; ///< when the address is not there, or taken
constexpr std::chrono::milliseconds kSayAgain{100};
constexpr std::chrono::milliseconds kSayMessagesAgain{5};
constexpr size_t kMostMessages = 1024; ///< that wait for the monitor; then no peer is read from
constexpr size_t kMostPending = 32;    ///< of all that have not proven themselves
constexpr int kAcceptsAtOnce = 16;

struct Name {
    sockaddr_storage address{};
    socklen_t size = 0;
};

Name name_of(const std::string &ip, uint16_t port) {
    Name name;
    auto &v4 = reinterpret_cast<sockaddr_in &>(name.address);
    auto &v6 = reinterpret_cast<sockaddr_in6 &>(name.address);
    if (inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        name.size = sizeof v4;
    } else if (inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr) == 1) {
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        name.size = sizeof v6;
    }
    return name;
}

/// An address as AddressMatch has it, and as it is shown.
std::string address_of(const sockaddr_storage &name, uint8_t (&ip)[16]) {
    char text[INET6_ADDRSTRLEN] = "";
    memset(ip, 0, sizeof ip);
    if (name.ss_family == AF_INET) {
        const auto &v4 = reinterpret_cast<const sockaddr_in &>(name);
        ip[10] = ip[11] = 0xff;
        memcpy(ip + 12, &v4.sin_addr, 4);
        inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    } else if (name.ss_family == AF_INET6) {
        const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(name);
        memcpy(ip, &v6.sin6_addr, 16);
        if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
            inet_ntop(AF_INET, ip + 12, text, sizeof text);
        } else {
            inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
        }
    }
    return text;
}

void send_at_once(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

template <size_t N> void put_text(char (&out)[N], const std::string &text) {
    memcpy(out, text.data(), std::min(text.size(), N - 1));
}

} // namespace

Channels::Channels(EventLoop &loop, Tell tell) : loop_(loop), tell_(std::move(tell)) {
    uint32_t seed = 1;
    RAND_bytes(own_.start.data(), static_cast<int>(own_.start.size()));
    RAND_bytes(reinterpret_cast<unsigned char *>(&seed), sizeof seed);
    random_.seed(seed);
}

Channels::~Channels() {
    for (auto &[name, peer] : peers_) {
        forget_session(peer);
    }
    stop_listening();
    loop_.cancel(say_timer_);
}

void Channels::end() {
    for (auto &[name, peer] : peers_) {
        forget_session(peer);
    }
    pending_.clear();
}

/// Whether what this host is and shows is as before.
bool Channels::is_same_host(const PeersSettings &settings) const {
    const PeersSettings &old = credentials_->settings();
    return old.name == settings.name && old.certificate == settings.certificate &&
           old.private_key == settings.private_key && old.deadline == settings.deadline;
}

void Channels::apply(PeersSettings settings, uint32_t number, std::optional<TellableKey> key) {
    const bool is_same = credentials_ && is_same_host(settings);
    const bool listens_elsewhere = !credentials_ || credentials_->settings().listen != settings.listen ||
                                   credentials_->settings().port != settings.port;
    number_ = number;
    const bool is_new_key = key && key != key_;
    key_ = key;
    own_.name = settings.name;
    credentials_ = std::make_shared<const Credentials>(std::move(settings));
    std::map<std::string, Peer> former = std::exchange(peers_, {});
    const std::vector<PeerSettings> &list = credentials_->settings().peers;
    bool is_connected_to = false;
    for (size_t i = 0; i < list.size(); ++i) {
        Peer &peer = peers_[list[i].name];
        const auto old = former.find(list[i].name);
        if (old != former.end() && is_same && old->second.settings == list[i] && old->second.session &&
            old->second.session->state() == Session::State::up) {
            peer = std::move(old->second);
            former.erase(old);
            peer.index = i;
        } else {
            peer.index = i;
            peer.settings = list[i];
            peer.connects = connects(own_.name, list[i].name);
            peer.cause = old == former.end() ? PeerCause::none : PeerCause::new_settings;
            for (const std::string &network : list[i].addresses) {
                if (const auto match = AddressMatch::parse(network)) {
                    peer.addresses.push_back(*match);
                }
            }
        }
        is_connected_to = is_connected_to || !peer.connects;
    }
    for (auto &[name, peer] : former) {
        forget_session(peer);
    }
    pending_.clear();
    for (auto &[name, peer] : peers_) {
        if (const std::string &objection = credentials_->objection(peer.index); !objection.empty()) {
            forget_session(peer);
            peer.cause = PeerCause::unusable;
            peer.detail = objection;
        } else if (peer.connects && !peer.session) {
            connect(peer);
        } else if (peer.session && is_new_key) {
            peer.session->tell(*key_);
        }
        peer.key_unsaid = peer.key.has_value();
        say(peer);
    }
    if (!is_connected_to || listens_elsewhere) {
        stop_listening();
    }
    if (is_connected_to && !listener_) {
        listen();
    }
}

void Channels::connect(Peer &peer) {
    peer.timer = 0;
    const Name name = name_of(peer.settings.address, peer.settings.port);
    UniqueFd socket(::socket(name.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket) {
        send_at_once(socket.get());
    }
    if (!socket || (::connect(socket.get(), reinterpret_cast<const sockaddr *>(&name.address), name.size) != 0 &&
                    errno != EINPROGRESS)) {
        broke(peer, errno == ECONNREFUSED ? PeerCause::refused : PeerCause::unreachable, strerror(errno));
        return;
    }
    peer.session = Session::start(loop_, std::move(socket), true, credentials_, {peer.index}, own_, events());
    if (!peer.session) {
        broke(peer, PeerCause::unusable, "no memory");
    }
}

/// Longer each time, and not all hosts at once.
void Channels::connect_later(Peer &peer) {
    peer.pause = std::clamp(2 * peer.pause, kFirstPause, kLongestPause);
    std::uniform_int_distribution<int64_t> spread(peer.pause.count() / 2, peer.pause.count());
    peer.timer = loop_.after(std::chrono::milliseconds(spread(random_)),
                             [this, name = peer.settings.name] { connect(peers_.at(name)); });
}

void Channels::forget_session(Peer &peer) {
    if (peer.session) {
        peer.session->end();
        peer.session.reset();
    }
    if (peer.timer != 0) {
        loop_.cancel(peer.timer);
        peer.timer = 0;
    }
}

void Channels::broke(Peer &peer, PeerCause cause, const std::string &detail) {
    // One that held for a while does not make the next try wait.
    if (peer.up_since != EventLoop::Clock::time_point{} &&
        EventLoop::Clock::now() - peer.up_since > std::chrono::seconds(credentials_->settings().deadline)) {
        peer.pause = {};
    }
    peer.up_since = {};
    peer.session.reset();
    peer.key.reset();
    peer.cause = cause;
    peer.detail = detail;
    if (peer.connects && peer.timer == 0) {
        connect_later(peer);
    }
    say(peer);
}

Session::Events Channels::events() {
    return {[this](Session &session) { session_up(session); },
            [this](Session &session, const TellableKey &key) { session_told(session, key); },
            [this](Session &session, PeerCause cause, const std::string &detail) {
                session_over(session, cause, detail);
            },
            [this](Session &session, const Message &message) { session_said(session, message); },
            [this] { return messages_.size() < kMostMessages; }};
}

std::shared_ptr<Session> Channels::take_pending(const Session &session) {
    const auto it = std::find_if(pending_.begin(), pending_.end(),
                                 [&](const std::shared_ptr<Session> &one) { return one.get() == &session; });
    if (it == pending_.end()) {
        return nullptr;
    }
    std::shared_ptr<Session> taken = std::move(*it);
    pending_.erase(it);
    return taken;
}

void Channels::session_up(Session &session) {
    Peer &peer = peers_.at(session.peer()->name); // sessions do not outlive their settings before they are up
    if (std::shared_ptr<Session> accepted = take_pending(session)) {
        if (peer.session) {
            peer.session->end(); // half open, as a rule: the host was away
        }
        peer.session = std::move(accepted);
    }
    peer.number = ++sessions_;
    peer.up_since = EventLoop::Clock::now();
    peer.cause = PeerCause::none;
    peer.detail.clear();
    peer.key.reset();
    if (key_) {
        session.tell(*key_);
    }
    say(peer);
}

void Channels::session_told(Session &session, const TellableKey &key) {
    const auto it = peers_.find(session.peer()->name);
    if (it != peers_.end() && it->second.session.get() == &session) {
        it->second.key = key;
        it->second.key_unsaid = true;
        say(it->second);
    }
}

void Channels::session_said(Session &session, const Message &message) {
    const auto it = peers_.find(session.peer()->name);
    if (it == peers_.end() || it->second.session.get() != &session) {
        return;
    }
    PeerReport &report = messages_.emplace_back();
    report.kind = PeerReport::message;
    report.session = it->second.number;
    put_text(report.name, it->first);
    report.message_kind = static_cast<uint16_t>(message.kind);
    report.size = static_cast<uint16_t>(message.body.size());
    static_assert(between_hosts::kMostLinkBody <= sizeof report.detail);
    memcpy(report.detail, message.body.data(), std::min(message.body.size(), sizeof report.detail));
    say_later();
}

std::shared_ptr<Session> Channels::session_of(uint64_t number) const {
    for (const auto &[name, peer] : peers_) {
        if (peer.number == number && peer.session && peer.session->state() == Session::State::up) {
            return peer.session;
        }
    }
    return nullptr;
}

void Channels::tell(uint64_t session, MessageKind kind, std::string_view body) {
    if (const auto there = session_of(session)) {
        there->tell(kind, body);
    }
}

void Channels::refuse(uint64_t session, const std::string &why) {
    if (const auto there = session_of(session)) {
        there->refuse(why);
    }
}

void Channels::session_over(Session &session, PeerCause cause, const std::string &detail) {
    const PeerSettings *who = session.peer();
    const auto it = who == nullptr ? peers_.end() : peers_.find(who->name);
    const bool was_pending = take_pending(session) != nullptr;
    if (it == peers_.end()) {
        turn_away("");
        return;
    }
    Peer &peer = it->second;
    if (peer.session.get() == &session) {
        broke(peer, cause, detail);
    } else if (was_pending && !peer.session) { // who only claims to be a peer says nothing about its channel
        peer.cause = cause;
        peer.detail = detail;
        say(peer);
    }
}

// Being connected to.

void Channels::stop_listening() {
    if (listener_watch_ != 0) {
        loop_.remove(listener_watch_, listener_.get());
        listener_watch_ = 0;
    }
    if (listener_timer_ != 0) {
        loop_.cancel(listener_timer_);
        listener_timer_ = 0;
    }
    listener_.reset();
}

void Channels::listen() {
    const PeersSettings &settings = credentials_->settings();
    const int on = 1, off = 0;
    const auto open = [&](const std::string &ip) {
        const Name name = name_of(ip, settings.port);
        listener_.reset(::socket(name.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!listener_) {
            return false;
        }
        setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        return bind(listener_.get(), reinterpret_cast<const sockaddr *>(&name.address), name.size) == 0 &&
               ::listen(listener_.get(), kMostPending) == 0;
    };
    listener_trouble_.clear();
    if (open(settings.listen) || (errno == EAFNOSUPPORT && settings.listen == "::" && open("0.0.0.0"))) {
        listener_watch_ = loop_.add(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
    } else {
        listener_trouble_ = strerror(errno);
        listener_.reset();
        listener_timer_ = loop_.after(kListenAgain, [this] {
            listener_timer_ = 0;
            listen();
        });
    }
    listener_unsaid_ = true;
    say_later();
}

void Channels::accept() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
        sockaddr_storage from{};
        socklen_t size = sizeof from;
        UniqueFd socket(accept4(listener_.get(), reinterpret_cast<sockaddr *>(&from), &size,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                loop_.change(listener_watch_, listener_.get(), 0);
                listener_timer_ = loop_.after(kAcceptAgain, [this] {
                    listener_timer_ = 0;
                    loop_.change(listener_watch_, listener_.get(), EPOLLIN);
                });
                return;
            }
            if (errno == EAGAIN) {
                return;
            }
            continue;
        }
        uint8_t ip[16];
        const std::string address = address_of(from, ip);
        std::vector<size_t> candidates;
        for (const auto &[name, peer] : peers_) {
            if (!peer.connects && credentials_->objection(peer.index).empty() &&
                std::any_of(peer.addresses.begin(), peer.addresses.end(),
                            [&](const AddressMatch &match) { return match.matches(ip); })) {
                candidates.push_back(peer.index);
            }
        }
        if (candidates.empty()) {
            turn_away(address);
            continue;
        }
        // One of them makes room, whichever: who waits longest may be the one that is meant.
        if (pending_.size() >= kMostPending) {
            std::uniform_int_distribution<size_t> which(0, pending_.size() - 1);
            pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(which(random_)));
            turn_away(address);
        }
        send_at_once(socket.get());
        if (auto made = Session::start(loop_, std::move(socket), false, credentials_, std::move(candidates),
                                       own_, events())) {
            pending_.push_back(std::move(made));
        }
    }
}

void Channels::turn_away(const std::string &from) {
    ++strangers_;
    last_stranger_ = from.empty() ? last_stranger_ : from;
    strangers_unsaid_ = true;
    say_later();
}

// What the monitor is told.

void Channels::say(Peer &peer) {
    unsaid_.insert(peer.settings.name);
    say_later();
}

void Channels::say_later() {
    const bool is_now = !unsaid_.empty() || !messages_.empty();
    if (say_timer_ != 0 && is_now && says_late_) {
        loop_.cancel(std::exchange(say_timer_, 0));
    }
    if (say_timer_ == 0) {
        says_late_ = !is_now;
        say_timer_ = loop_.after(is_now ? std::chrono::milliseconds(0) : kSayAgain, [this] {
            say_timer_ = 0;
            say_all();
        });
    }
}

void Channels::say_all() {
    PeerReport report;
    report.settings = number_;
    for (auto it = unsaid_.begin(); it != unsaid_.end(); it = unsaid_.erase(it)) {
        const auto found = peers_.find(*it);
        if (found == peers_.end()) {
            continue;
        }
        const Peer &peer = found->second;
        PeerReport one = report;
        one.kind = PeerReport::peer;
        put_text(one.name, *it);
        const bool is_up = peer.session && peer.session->state() == Session::State::up;
        one.state = is_up ? PeerState::up : peer.session ? PeerState::connecting : PeerState::waiting;
        one.cause = peer.cause;
        one.version = is_up ? peer.session->version() : 0;
        one.session = is_up ? peer.number : 0;
        put_text(one.detail, peer.detail);
        bool is_told = tell_(one);
        if (is_told && found->second.key_unsaid && found->second.key) {
            one.kind = PeerReport::key;
            memcpy(one.detail, found->second.key->data(), found->second.key->size());
            is_told = tell_(one);
            found->second.key_unsaid = !is_told;
        }
        if (!is_told) {
            say_timer_ = loop_.after(kSayAgain, [this] {
                say_timer_ = 0;
                say_all();
            });
            return;
        }
    }
    if (!say_messages()) {
        return;
    }
    if (listener_unsaid_) {
        report.kind = PeerReport::listening;
        report.cause = listener_trouble_.empty() ? PeerCause::none : PeerCause::unusable;
        put_text(report.detail, listener_trouble_);
        listener_unsaid_ = !tell_(report);
    }
    if (strangers_unsaid_) {
        PeerReport one;
        one.settings = number_;
        one.kind = PeerReport::strangers;
        one.version = strangers_;
        put_text(one.detail, last_stranger_);
        strangers_unsaid_ = !tell_(one);
    }
    if (listener_unsaid_ || strangers_unsaid_) {
        say_later();
    }
}

/// After the states of peers, so that the monitor knows whose they are. False: it takes no more now.
bool Channels::say_messages() {
    const bool was_full = messages_.size() >= kMostMessages;
    while (!messages_.empty()) {
        if (!tell_(messages_.front())) {
            say_timer_ = loop_.after(kSayMessagesAgain, [this] {
                say_timer_ = 0;
                say_all();
            });
            break;
        }
        messages_.pop_front();
    }
    if (was_full && messages_.size() < kMostMessages) {
        for (const auto &[name, peer] : peers_) {
            if (peer.session) {
                peer.session->resume();
            }
        }
    }
    return messages_.empty();
}

} // namespace sd::monitor
