// One bridge: two connected stream sockets between which bytes are carried in both directions.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sd::monitor {

class Bridge {
  public:
    /// One of its sockets, as registered with epoll (edge-triggered).
    struct End {
        Bridge *bridge;
        UniqueFd fd;
        bool kernel;           ///< the kernel's socket, not the accelerated connection
        bool readable = true;  ///< not known to be empty
        bool writable = true;  ///< not known to be full
        bool urgent = false;   ///< a mark is in the stream, ahead of what was read
        bool ended = false;    ///< its stream has been read to the end
        bool shut = false;     ///< the end has been passed on to it
        bool broken = false;   ///< takes nothing any more
        bool has_mark = false; ///< `mark` waits to be sent, behind `waiting`
        char mark = 0;
        std::vector<char> waiting; ///< for it, what it had no room for; never more than one buffer
    };

    /// `exclusive`: see BridgePacket.
    Bridge(UniqueFd accelerated, UniqueFd kernel, bool exclusive);
    Bridge(const Bridge &) = delete;
    Bridge &operator=(const Bridge &) = delete;

    /// Has the set tell of both ends, with a pointer to the End. Once. False, with errno: both are closed.
    [[nodiscard]] bool watch(int epoll);

    /// What epoll says about an end.
    void note(End &end, uint32_t events);
    /// Carries what can be carried now, up to a limit. False: the limit was met, more can be done at once.
    [[nodiscard]] bool pump();
    /// Both sockets are closed.
    bool done() const { return done_; }

  private:
    enum class Step { moved, nothing };

    [[nodiscard]] bool pump(End &from, End &to);
    Step step(End &from, End &to);
    Step pass_mark(End &from, End &to);
    Step pass_end(End &from, End &to);
    /// Writes; the rest is kept in `to`. False: `to` is broken.
    [[nodiscard]] bool give(End &to, std::span<const char> data);
    void reset();
    void close();

    End ends_[2];
    int epoll_ = -1;
    bool done_ = false;
};

} // namespace sd::monitor
