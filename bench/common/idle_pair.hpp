// A client and a server process with many connections that have each carried one message and are silent
// since.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace sd::bench {

class IdlePair {
  public:
    // Starts both processes; no connection yet, so that memory can be measured before there are any.
    IdlePair(long connections, int server_cpu, int client_cpu);
    ~IdlePair();
    IdlePair(const IdlePair &) = delete;
    IdlePair &operator=(const IdlePair &) = delete;

    // Returns when every connection has carried a message there and back and both ends sleep in epoll_wait.
    void open();
    [[nodiscard]] pid_t server() const { return server_; }
    [[nodiscard]] pid_t client() const { return client_; }

  private:
    struct State {
        std::atomic<bool> go{false};
        std::atomic<bool> open{false};
    };

    void serve(int listener) const;
    void connect_all(std::uint16_t port) const;

    long connections_;
    State *state_;
    pid_t server_ = -1;
    pid_t client_ = -1;
};

} // namespace sd::bench
