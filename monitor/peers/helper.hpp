// The monitor's end of sd-peers: starts it where there are peers, tells it of them, and knows how they are.
#pragma once
#include "monitor/discovery/discovery.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/peers/peer_settings.hpp"
#include "monitor/peers/report.hpp"
#include "monitor/service/event_loop.hpp"

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sd::monitor {

class PeersHelper {
  public:
    /// `socket_path`: where the service manager starts it for who connects; empty: the monitor starts it.
    PeersHelper(EventLoop &loop, std::string socket_path)
        : loop_(loop), socket_path_(std::move(socket_path)) {}
    ~PeersHelper() { drop(); }
    PeersHelper(const PeersHelper &) = delete;
    PeersHelper &operator=(const PeersHelper &) = delete;

    /// From now on these. Without peers there is no helper. `key`: by which peers recognise this host's ends
    /// of connections; nothing: they are not to.
    void apply(PeersSettings settings, std::optional<ProofKey> key);
    /// Which peer host has the other end, whose address is `address`? By what it has proven, and only where
    /// the address is that host's own. Counts it. nullptr: none.
    const std::string *host_of(const ForeignEnd &end, const uint8_t (&address)[16]);
    /// For "sdctl peers".
    nlohmann::json json() const;

  private:
    struct Peer {
        PeerState state = PeerState::waiting;
        PeerCause cause = PeerCause::none;
        uint32_t version = 0;
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
    void drop();
    void ended();

    EventLoop &loop_;
    const std::string socket_path_;
    PeersSettings settings_;
    std::optional<ProofKey> key_;
    uint32_t number_ = 0; ///< of the settings
    std::vector<Peer> peers_;
    UniqueFd channel_;
    EventLoop::Watch watch_ = 0;
    EventLoop::Timer restart_ = 0;
    EventLoop::Clock::time_point started_;
    std::chrono::milliseconds pause_{};
    bool listens_ = false;
    std::string trouble_; ///< with the helper, or its listening
    uint32_t strangers_ = 0;
    std::string last_stranger_;
};

} // namespace sd::monitor
