// Windows of measuring, and programs that take turns with them.
//
// Processors that are near to each other in one second and far apart in the next make a ratio of two programs
// measured one after the other say more about the machine than about them. So two or more of them are started
// at the same time, set up what they need, and then measure in turn, some milliseconds long, while the others
// sleep: all see the machine in the same states, and the n-th window of one is compared with the n-th of the
// other.
#pragma once

#include "bench/common/options.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace sd::bench {

inline constexpr OptionSpec kWindowsOption{"windows", "1", "parts that the time measured is divided into"};
inline constexpr OptionSpec kTurnsOption{
    "turns", "", "FILE:PLACE:COUNT: measure each window in turn with COUNT-1 other programs"};

// The turns of one program. One thread uses it.
class Turns {
  public:
    // `text` as --turns has it; with "", take() and give() do nothing. FILE is an empty one that all programs
    // name, PLACE says which of them this is. Wrong texts and a file that cannot be used end the program with
    // a message.
    explicit Turns(const std::string &text);
    // Sleeps until it is this program's turn: for the first time, until all programs are here. Ends the
    // program where nothing has moved for a minute.
    void take();
    void give();

  private:
    struct Shared {
        std::atomic<std::uint32_t> given; // turns that are over
        std::atomic<std::uint32_t> here;  // programs that are ready
    };
    void sleep_while(const std::atomic<std::uint32_t> &word, std::uint32_t value);

    Shared *shared_ = nullptr;
    std::uint32_t next_ = 0; // turn that is this program's
    std::uint32_t count_ = 1;
};

// Tells the other end of a bare ring, which looks without a pause, to sleep while others have their turns,
// and when all is over. Lies in memory that both ends share; heed() is called by the other end, the rest by
// the measuring one.
class Rest {
  public:
    void begin() { state_.store(kResting, std::memory_order_release); }
    void end() { wake_with(kWorking); }
    void finish() { wake_with(kOver); }
    // Sleeps while it is time to; false when all is over.
    bool heed() { return state_.load(std::memory_order_relaxed) == kWorking || sleep(); }

  private:
    static constexpr std::uint32_t kWorking = 0;
    static constexpr std::uint32_t kResting = 1;
    static constexpr std::uint32_t kOver = 2;
    void wake_with(std::uint32_t state);
    bool sleep();

    std::atomic<std::uint32_t> state_{kWorking};
};

// The time to measure and to warm up, in windows of which each begins with its part of the warm-up.
class Windows {
  public:
    // Of --seconds, --warmup, --windows and --turns.
    explicit Windows(const Options &options);

    // Calls warm(seconds), then measure(seconds), which answers with its figure, for each window. `other_end`
    // sleeps between the windows.
    template <typename Warm, typename Measure> void run(Warm warm, Measure measure, Rest *other_end = nullptr) {
        for (long i = 0; i < count_; ++i) {
            turns_.take();
            if (other_end != nullptr) {
                other_end->end();
            }
            warm(warmup_);
            figures_.push_back(measure(seconds_));
            if (other_end != nullptr) {
                other_end->begin();
            }
            turns_.give();
        }
    }
    // What measure() answered, window by window.
    [[nodiscard]] const std::vector<double> &figures() const { return figures_; }
    [[nodiscard]] double median() const;

  private:
    long count_;
    double seconds_;
    double warmup_;
    Turns turns_;
    std::vector<double> figures_;
};

} // namespace sd::bench
