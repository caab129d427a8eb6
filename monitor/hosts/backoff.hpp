// A pause after each failure, twice as long as the one before, until something works, or nothing has failed
// for as long as the longest one.
#pragma once
#include <algorithm>
#include <chrono>

namespace sd::monitor {

class Backoff {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds kFirst{1}, kLongest{64};

    void failed(Clock::time_point now) {
        next_ = is_forgotten(now) ? kFirst : std::min(2 * next_, kLongest);
        until_ = now + next_;
    }
    void worked() { *this = {}; }
    bool is_over(Clock::time_point now) const { return now >= until_; }

    /// Will the next pause be the first again?
    bool is_forgotten(Clock::time_point now) const {
        return next_ == std::chrono::seconds{0} || now - until_ > kLongest;
    }

  private:
    std::chrono::seconds next_{0};
    Clock::time_point until_{};
};

} // namespace sd::monitor
