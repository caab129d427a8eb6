// Clock, latency histogram and the one-line JSON report shared by the measuring programs.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace sd::bench {

[[nodiscard]] inline std::uint64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

// What `step` counts each time, per second: called for about `seconds`, at least once.
template <typename Step> double rate_over(double seconds, Step step) {
    const std::uint64_t start = now_ns();
    const auto until = start + static_cast<std::uint64_t>(seconds * 1e9);
    std::uint64_t now = start;
    std::uint64_t count = 0;
    do {
        count += step();
        now = now_ns();
    } while (now < until);
    return static_cast<double>(count) / (static_cast<double>(now - start) / 1e9);
}

// Calls `step` for about `seconds`, at least once.
template <typename Step> void repeat_for(double seconds, Step step) {
    rate_over(seconds, [&] {
        step();
        return 1U;
    });
}

// The cheapest clock there is: what is measured here can be shorter than a clock_gettime.
[[nodiscard]] inline std::uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return now_ns();
#endif
}

// Ticks of ticks() in a nanosecond; measured for 20 ms at the first call.
[[nodiscard]] double ticks_per_ns();

// The step in which ticks() advances, in ticks: processors exist whose counter goes on by 26 each 10 ns.
// Found out at the first call.
[[nodiscard]] std::uint64_t tick_step();

// Log-linear histogram: constant cost per sample, values within 0.2 %. One thread.
class Histogram {
  public:
    Histogram();
    void add(std::uint64_t value) {
        ++count_[bucket(value)];
        ++total_;
        sum_ += value;
    }
    void add(const Histogram &other);
    [[nodiscard]] std::uint64_t total() const { return total_; }
    [[nodiscard]] double mean() const;
    // The value below which the given part (0..1) of the samples lies. Samples that the clock's step, or the
    // histogram, cannot tell apart are taken to be spread evenly over that step: a median of 110 or 120 ns,
    // whichever has one sample more, would say less than the clock knows.
    [[nodiscard]] double quantile(double part, std::uint64_t step) const;

  private:
    static constexpr unsigned kSubBits = 9;
    static constexpr unsigned kSub = 1U << kSubBits;

    static std::size_t bucket(std::uint64_t value) {
        if (value < kSub) {
            return value;
        }
        const unsigned shift = 63U - static_cast<unsigned>(__builtin_clzll(value)) - kSubBits;
        return static_cast<std::size_t>(shift + 1) * kSub + ((value >> shift) - kSub);
    }

    std::vector<std::uint64_t> count_;
    std::uint64_t total_ = 0;
    std::uint64_t sum_ = 0;
};

// Calls `trip` for about `seconds`, each call timed from the end of the one before, or from the end of
// `pause` where that answers that there was one. Adds all of them to `histogram`; the median in nanoseconds.
template <typename Pause, typename Trip>
double latency_over(double seconds, Histogram &histogram, Pause pause, Trip trip) {
    Histogram window;
    const auto budget = static_cast<std::uint64_t>(seconds * 1e9 * ticks_per_ns());
    const std::uint64_t start = ticks();
    std::uint64_t before = start;
    do {
        if (pause()) {
            before = ticks();
        }
        trip();
        const std::uint64_t after = ticks();
        window.add(after - before);
        before = after;
    } while (before - start < budget);
    histogram.add(window);
    return window.quantile(0.5, tick_step()) / ticks_per_ns();
}

// One line of JSON on stdout, so that the driver can read it and a person too.
class Report {
  public:
    explicit Report(const std::string &program);
    void add(const char *key, const std::string &value);
    void add(const char *key, const char *value) { add(key, std::string(value)); }
    void add(const char *key, double value);
    void add(const char *key, long value);
    void add(const char *key, const std::vector<double> &values);
    // mean_ns, p50_ns, p99_ns, p999_ns and samples of a histogram of ticks().
    void add_latency(const Histogram &histogram);
    void print() const;

  private:
    std::string line_;
};

} // namespace sd::bench
