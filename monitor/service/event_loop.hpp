// The monitor's only loop: one thread, one epoll set, no wake-ups except by descriptors and deadlines
// somebody asked for.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace sd::monitor {

class EventLoop {
  public:
    using Clock = std::chrono::steady_clock;
    using Handler = std::function<void(uint32_t events)>;
    using Action = std::function<void()>;
    using Watch = uint64_t; ///< name of a watched descriptor; never used twice, 0 is none
    using Timer = uint64_t;

    EventLoop();

    Watch add(int fd, uint32_t events, Handler handler);
    /// Other events than those it was added for.
    void change(Watch watch, int fd, uint32_t events);
    /// To be called before fd is closed. A handler may remove anything, itself included.
    void remove(Watch watch, int fd);

    Timer after(std::chrono::milliseconds delay, Action action);
    void cancel(Timer timer);
    /// At the end of the next turn, after whatever is ready by then; work that goes on asks for it anew.
    void soon(Action action) { soon_.push_back(std::move(action)); }

    void run();
    void stop() { running_ = false; }
    /// One turn of run(): waits for something to be ready unless there is work left, and sees to it.
    void step();
    /// How many there have been.
    uint64_t turn() const { return turn_; }

  private:
    UniqueFd epoll_;
    std::unordered_map<Watch, std::shared_ptr<Handler>> handlers_;
    std::map<std::pair<Clock::time_point, Timer>, Action> timers_;
    std::unordered_map<Timer, Clock::time_point> due_;
    std::vector<Action> soon_;
    uint64_t next_ = 1;
    bool running_ = true;
    uint64_t turn_ = 0;
};

} // namespace sd::monitor
