// The monitor's only loop.
#include "monitor/service/event_loop.hpp"

#include <cerrno>
#include <sys/epoll.h>
#include <system_error>
#include <utility>

namespace sd::monitor {

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) {
        throw std::system_error(errno, std::generic_category(), "epoll_create1");
    }
}

EventLoop::Watch EventLoop::add(int fd, uint32_t events, Handler handler) {
    const Watch watch = next_++;
    epoll_event event{};
    event.events = events;
    event.data.u64 = watch;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
    handlers_.emplace(watch, std::make_shared<Handler>(std::move(handler)));
    return watch;
}

void EventLoop::change(Watch watch, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = watch;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
}

void EventLoop::remove(Watch watch, int fd) {
    if (handlers_.erase(watch) != 0) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
}

EventLoop::Timer EventLoop::after(std::chrono::milliseconds delay, Action action) {
    const Timer timer = next_++;
    const auto due = Clock::now() + delay;
    timers_.emplace(std::pair(due, timer), std::move(action));
    due_.emplace(timer, due);
    return timer;
}

void EventLoop::cancel(Timer timer) {
    if (const auto it = due_.find(timer); it != due_.end()) {
        timers_.erase({it->second, timer});
        due_.erase(it);
    }
}

void EventLoop::run() {
    while (running_) {
        step();
    }
}

void EventLoop::step() {
    ++turn_;
    int timeout = -1;
    if (!timers_.empty()) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
        timeout = left.count() < 0 ? 0 : static_cast<int>(left.count());
    }
    const std::vector<Action> work = std::exchange(soon_, {});
    if (!work.empty()) {
        timeout = 0;
    }
    epoll_event events[64];
    const int n = epoll_wait(epoll_.get(), events, 64, timeout);
    if (n < 0 && errno != EINTR) {
        throw std::system_error(errno, std::generic_category(), "epoll_wait");
    }
    for (int i = 0; i < n && running_; ++i) {
        // An earlier handler of this round may have removed it; the copy keeps a handler alive that removes
        // itself.
        const Watch watch = events[i].data.u64; // not a reference: the kernel's structure is packed
        if (auto it = handlers_.find(watch); it != handlers_.end()) {
            const std::shared_ptr<Handler> handler = it->second;
            (*handler)(events[i].events);
        }
    }
    while (running_ && !timers_.empty() && timers_.begin()->first.first <= Clock::now()) {
        Action action = std::move(timers_.begin()->second);
        due_.erase(timers_.begin()->first.second);
        timers_.erase(timers_.begin());
        action();
    }
    for (size_t i = 0; i < work.size() && running_; ++i) {
        work[i]();
    }
}

} // namespace sd::monitor
