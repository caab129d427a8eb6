// One connection to another host's monitor: from the first packet to the last word.
#pragma once
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/peers/link_message.hpp"
#include "monitor/peers/tls.hpp"
#include "monitor/service/event_loop.hpp"

#include <functional>
#include <memory>

namespace sd::monitor {

/// Held by shared pointers. All that waits for something has a deadline, by the monotonic clock.
class Session : public std::enable_shared_from_this<Session> {
  public:
    enum class State { connecting, proving, greeting, up, over };
    struct Events {
        std::function<void(Session &)> up; ///< proven, and a version is agreed on
        std::function<void(Session &, const TellableKey &)> told_key;
        /// It will do nothing more. Not called for one that was ended from outside.
        std::function<void(Session &, PeerCause, const std::string &detail)> over;
        /// About connections between the hosts: of the form that it must have, and no more is said of it
        std::function<void(Session &, const Message &)> message{};
        /// False: no more is to be read for now; resume() ends that.
        std::function<bool()> may_read{};
    };

    /// A socket that connects, or that was accepted; not blocking.
    static std::shared_ptr<Session> start(EventLoop &loop, UniqueFd socket, bool connects,
                                          std::shared_ptr<const Credentials> credentials,
                                          std::vector<size_t> candidates, const PeerHello &own, Events events);
    ~Session();
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    State state() const { return state_; }
    uint16_t version() const { return version_; }
    /// Whom the other end claims to be, or has proven to be once it is up; nothing: that cannot be said.
    const PeerSettings *peer() const;
    /// For one that is up.
    void tell(const TellableKey &key);
    /// For one that is up and speaks of links. What the other end does not take in time ends it.
    void tell(MessageKind kind, std::string_view body);
    void resume() { drive_soon(); }
    /// What the other end has said cannot be.
    void refuse(const std::string &why);
    /// Ends it; says so to the other end if that can be done at once.
    void end();

  private:
    Session(EventLoop &loop, UniqueFd socket, bool connects, Events events);
    void watch(uint32_t events);
    void drive();
    void drive_soon();
    bool may_read() const;
    bool finish_connecting();
    bool prove();
    bool read();
    bool take(const Message &message);
    bool greeted(const std::string &body);
    void say(const std::string &bytes) { outgoing_ += bytes; }
    bool flush();
    void tick();
    void tick_later();
    bool fail(PeerCause cause, const std::string &detail = {});
    bool fail_tls(int result);
    void close();

    EventLoop &loop_;
    UniqueFd socket_;
    const bool connects_;
    Events events_;
    State state_ = State::connecting;
    Handshake handshake_; ///< before ssl_, which points to it
    SslPtr ssl_;
    PeerHello own_;
    std::optional<size_t> proven_;
    uint16_t version_ = 0;
    MessageReader reader_;
    std::string outgoing_;
    bool tls_waits_to_write_ = false;
    EventLoop::Watch watch_ = 0;
    uint32_t watched_ = 0;
    EventLoop::Timer timer_ = 0;
    EventLoop::Clock::time_point started_, heard_;
};

} // namespace sd::monitor
