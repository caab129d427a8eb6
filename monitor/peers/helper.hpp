// The monitor's end of sd-peers: starts it where there are peers, tells it of them, and knows how they are.
#pragma once
#include "monitor/discovery/discovery.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/peers/link_message.hpp"
#include "monitor/peers/peer_settings.hpp"
#include "monitor/peers/report.hpp"
#include "monitor/service/event_loop.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sd::monitor {

class PeersHelper {
  public:
    /// Of peers that speak of links, by name. What they call may send; it must not apply settings.
    struct Events {
        std::function<void(const std::string &)> up; ///< also for one that has come back without a pause
        std::function<void(const std::string &)> down;
        std::function<void(const std::string &, const between_hosts::LinkMessage &)> message;
    };
    /// `socket_path`: where the service manager starts it for who connects; empty: the monitor starts it.
    PeersHelper(EventLoop &loop, std::string socket_path, Events events)
        : loop_(loop), socket_path_(std::move(socket_path)), events_(std::move(events)) {}
    ~PeersHelper() { drop(); }
    PeersHelper(const PeersHelper &) = delete;
    PeersHelper &operator=(const PeersHelper &) = delete;

    /// From now on these. Without peers there is no helper. `key`: by which peers recognise this host's ends
    /// of connections; nothing: they are not to.
    void apply(PeersSettings settings, std::optional<ProofKey> key);
    /// Which peer host has the other end, whose address is `address`? By what it has proven, and only where
    /// the address is that host's own. Counts it. nullptr: none.
    const std::string *host_of(const ForeignEnd &end, const uint8_t (&address)[16]);
    /// Is the address one of that host's own, as it is configured?
    bool is_address_of(const std::string &host, const uint8_t (&address)[16]) const;
    /// To a peer that is up. What is not taken ends its channel, so nothing is lost in between.
    void send(const std::string &host, const between_hosts::LinkMessage &message);
    /// Does the peer, which is up, carry what queue pairs had not?
    bool carries(const std::string &host) const;
    /// Messages that sd-peers has not taken yet, for all peers.
    size_t waiting() const { return orders_.size(); }
    /// What the peer has said cannot be: its channel ends.
    void refuse(const std::string &host, const std::string &why);
    /// For "sdctl peers"; `add` adds what else is known of a peer.
    nlohmann::json json(const std::function<void(const std::string &, nlohmann::json &)> &add) const;

  private:
    struct Peer {
        PeerState state = PeerState::waiting;
        PeerCause cause = PeerCause::none;
        uint32_t version = 0;
        uint64_t session = 0; ///< that is up
        std::string detail;
        std::optional<ProofKey> key;            ///< while it is up
        uint64_t found = 0;                     ///< ends whose other end it has
        EventLoop::Clock::time_point since;     ///< it has been up, or not up
        EventLoop::Clock::time_point next_line; ///< of the log, not before
    };
    void start();
    UniqueFd open_channel();
    bool send_settings();
    void ready();
    void heard(PeerReport &report);
    void heard_of(size_t index, const PeerReport &report, const std::string &detail);
    void heard_message(size_t index, const PeerReport &report);
    std::optional<size_t> index_of(std::string_view name) const;
    void order(const PeersOrder &one);
    void flush();
    void drop();
    void ended();

    EventLoop &loop_;
    const std::string socket_path_;
    const Events events_;
    PeersSettings settings_;
    std::optional<ProofKey> key_;
    uint32_t number_ = 0; ///< of the settings
    std::vector<Peer> peers_;
    UniqueFd channel_;
    EventLoop::Watch watch_ = 0;
    std::deque<PeersOrder> orders_; ///< that the channel had no room for
    EventLoop::Timer restart_ = 0;
    EventLoop::Clock::time_point started_;
    std::chrono::milliseconds pause_{};
    bool listens_ = false;
    const std::shared_ptr<const char> alive_ = std::make_shared<const char>('\0'); ///< for the loop's sake
    std::string trouble_; ///< with the helper, or its listening
    uint32_t strangers_ = 0;
    std::string last_stranger_;
};

} // namespace sd::monitor
