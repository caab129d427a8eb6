// The channels to all peer hosts: who connects when, who is let in, and what the monitor is told.
#pragma once
#include "monitor/peers/report.hpp"
#include "monitor/peers/session.hpp"
#include "monitor/service/policy.hpp"

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

namespace sd::monitor {

class Channels {
  public:
    /// Hands a report on. False: not now; it is made anew later.
    using Tell = std::function<bool(const PeerReport &)>;
    Channels(EventLoop &loop, Tell tell);
    ~Channels();
    Channels(const Channels &) = delete;
    Channels &operator=(const Channels &) = delete;

    /// From now on these. Channels to peers of which nothing has changed stay. `number` goes into reports,
    /// `key` to all peers.
    void apply(PeersSettings settings, uint32_t number, std::optional<TellableKey> key);
    /// Of the monitor, for the peer whose session has that number, if it is still there.
    void tell(uint64_t session, MessageKind kind, std::string_view body);
    void refuse(uint64_t session, const std::string &why);
    /// Says so to all peers.
    void end();

  private:
    struct Peer {
        size_t index = 0; ///< in the settings
        PeerSettings settings;
        std::vector<AddressMatch> addresses;
        std::shared_ptr<Session> session; ///< up, or connecting
        bool connects = false;            ///< this host does, not the peer
        PeerCause cause = PeerCause::none;
        std::string detail;
        uint64_t number = 0;               ///< of the session that is up
        std::optional<TellableKey> key;    ///< that it has told
        bool key_unsaid = false;           ///< to the monitor
        std::chrono::milliseconds pause{}; ///< before the next try
        EventLoop::Timer timer = 0;
        EventLoop::Clock::time_point up_since;
    };

    bool is_same_host(const PeersSettings &settings) const;
    void connect(Peer &peer);
    void connect_later(Peer &peer);
    void forget_session(Peer &peer);
    void broke(Peer &peer, PeerCause cause, const std::string &detail);
    Session::Events events();
    void session_up(Session &session);
    void session_told(Session &session, const TellableKey &key);
    void session_said(Session &session, const Message &message);
    std::shared_ptr<Session> session_of(uint64_t number) const;
    void session_over(Session &session, PeerCause cause, const std::string &detail);
    std::shared_ptr<Session> take_pending(const Session &session);

    void listen();
    void stop_listening();
    void accept();
    void turn_away(const std::string &from);

    void say(Peer &peer);
    void say_later();
    void say_all();
    bool say_messages();

    EventLoop &loop_;
    Tell tell_;
    PeerHello own_;
    uint32_t number_ = 0;
    std::optional<TellableKey> key_; ///< of this host
    std::shared_ptr<const Credentials> credentials_;
    std::map<std::string, Peer> peers_;
    UniqueFd listener_;
    EventLoop::Watch listener_watch_ = 0;
    EventLoop::Timer listener_timer_ = 0;
    std::string listener_trouble_;
    std::vector<std::shared_ptr<Session>> pending_; ///< accepted, and not proven
    uint32_t strangers_ = 0;
    std::string last_stranger_;
    std::set<std::string> unsaid_;    ///< peers whose state the monitor does not know yet
    std::deque<PeerReport> messages_; ///< of peers, that the monitor has not been told yet
    uint64_t sessions_ = 0;           ///< that have been up
    bool listener_unsaid_ = false, strangers_unsaid_ = false;
    EventLoop::Timer say_timer_ = 0;
    bool says_late_ = false;  ///< the timer is of what can wait
    std::minstd_rand random_; ///< for what needs to be spread only
};

} // namespace sd::monitor
