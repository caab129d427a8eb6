// Counters for Prometheus, over HTTP, off unless the configuration asks for it. libmicrohttpd speaks HTTP: in
// the monitor's own loop, where it never waits for anybody.
#pragma once
#include "monitor/service/event_loop.hpp"

#include <functional>
#include <string>

struct MHD_Daemon;

namespace sd::monitor {

/// A listening socket at "127.0.0.1:9464", "[::1]:9464" or the path of a Unix socket. Throws
/// std::runtime_error.
UniqueFd listen_for_metrics(const std::string &where);
/// Why it can be no such place; null: it can.
const char *objection_to_metrics(const std::string &where);

class MetricsServer {
  public:
    using Text = std::function<std::string()>;
    /// `text` makes the answer. Throws std::runtime_error.
    MetricsServer(EventLoop &loop, UniqueFd listening, Text text);
    ~MetricsServer();
    MetricsServer(const MetricsServer &) = delete;
    MetricsServer &operator=(const MetricsServer &) = delete;

    /// To be called by libmicrohttpd's handler.
    const Text &text() const { return text_; }

  private:
    unsigned connections() const;
    void accept_waiting();
    void run(bool rests = false);
    void run_later(bool rests);

    EventLoop &loop_;
    Text text_;
    UniqueFd listening_;
    MHD_Daemon *daemon_ = nullptr;
    int epoll_ = -1; ///< libmicrohttpd's
    EventLoop::Watch watch_ = 0;
    EventLoop::Watch listen_watch_ = 0;
    EventLoop::Timer timer_ = 0;
};

} // namespace sd::monitor
