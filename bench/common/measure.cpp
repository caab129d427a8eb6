// Clock calibration, quantiles and JSON output.
#include "bench/common/measure.hpp"

#include <cmath>
#include <cstdio>
#include <numeric>

namespace sd::bench {

double ticks_per_ns() {
    static const double rate = [] {
        const std::uint64_t start_ns = now_ns();
        const std::uint64_t start = ticks();
        while (now_ns() - start_ns < 20'000'000ULL) {
        }
        const std::uint64_t end = ticks();
        return static_cast<double>(end - start) / static_cast<double>(now_ns() - start_ns);
    }();
    return rate;
}

Histogram::Histogram() : count_((64 - kSubBits + 1) * kSub) {}

void Histogram::clear() {
    count_.assign(count_.size(), 0);
    total_ = 0;
    sum_ = 0;
}

double Histogram::mean() const {
    return total_ == 0 ? 0.0 : static_cast<double>(sum_) / static_cast<double>(total_);
}

double Histogram::quantile(double part) const {
    const auto wanted = static_cast<std::uint64_t>(std::ceil(part * static_cast<double>(total_)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < count_.size(); ++i) {
        seen += count_[i];
        if (seen >= wanted && count_[i] != 0) {
            if (i < kSub) {
                return static_cast<double>(i);
            }
            const std::size_t shift = i / kSub - 1;
            return std::ldexp(static_cast<double>(i % kSub + kSub) + 0.5, static_cast<int>(shift));
        }
    }
    return 0.0;
}

Report::Report(const std::string &program) : line_("{\"program\": \"" + program + "\"") {}

void Report::add(const char *key, const std::string &value) {
    line_ += std::string(", \"") + key + "\": \"" + value + "\"";
}

void Report::add(const char *key, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.6g", value);
    line_ += std::string(", \"") + key + "\": " + text;
}

void Report::add(const char *key, long value) {
    line_ += std::string(", \"") + key + "\": " + std::to_string(value);
}

void Report::add_latency(const Histogram &histogram) {
    const double rate = ticks_per_ns();
    add("samples", static_cast<long>(histogram.total()));
    add("mean_ns", histogram.mean() / rate);
    add("p50_ns", histogram.quantile(0.5) / rate);
    add("p99_ns", histogram.quantile(0.99) / rate);
    add("p999_ns", histogram.quantile(0.999) / rate);
}

void Report::print() const {
    std::printf("%s}\n", line_.c_str());
    std::fflush(stdout);
}

} // namespace sd::bench
