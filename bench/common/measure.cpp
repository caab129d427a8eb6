// Clock calibration, quantiles and JSON output.
#include "bench/common/measure.hpp"

#include <algorithm>
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

std::uint64_t tick_step() {
    static const std::uint64_t step = [] {
        // Readings with waits of different length between: the largest number that divides nearly all
        // differences.
        std::vector<std::uint64_t> differences;
        for (unsigned i = 0; i < 4000; ++i) {
            const std::uint64_t before = ticks();
            for (unsigned wait = 0; wait < i % 97; ++wait) {
                asm volatile("");
            }
            differences.push_back(ticks() - before);
        }
        const auto divided = [&](std::uint64_t by) {
            return std::count_if(differences.begin(), differences.end(),
                                 [&](std::uint64_t d) { return d % by == 0; });
        };
        std::uint64_t best = 1;
        for (std::uint64_t candidate = 2; candidate <= 256; ++candidate) {
            if (divided(candidate) * 10 >= static_cast<long>(differences.size()) * 7) {
                best = candidate;
            }
        }
        return best;
    }();
    return step;
}

Histogram::Histogram() : count_((64 - kSubBits + 1) * kSub) {}

void Histogram::add(const Histogram &other) {
    for (std::size_t i = 0; i < count_.size(); ++i) {
        count_[i] += other.count_[i];
    }
    total_ += other.total_;
    sum_ += other.sum_;
}

double Histogram::mean() const {
    return total_ == 0 ? 0.0 : static_cast<double>(sum_) / static_cast<double>(total_);
}

double Histogram::quantile(double part, std::uint64_t step) const {
    const double wanted = part * static_cast<double>(total_);
    double below = 0;   // samples below the cell
    double in_cell = 0; // and in it
    double cell_start = 0;
    double cell_end = 0;
    for (std::size_t i = 0; i < count_.size(); ++i) {
        if (count_[i] == 0) {
            continue;
        }
        const std::size_t shift = i < kSub ? 0 : i / kSub - 1;
        const double width = std::ldexp(1.0, static_cast<int>(shift));
        const double start = i < kSub
                                 ? static_cast<double>(i)
                                 : std::ldexp(static_cast<double>(i % kSub + kSub), static_cast<int>(shift));
        if (start + width / 2 >= cell_end) { // the next cell: a whole number of steps lies in its middle
            if (below + in_cell >= wanted && in_cell > 0) {
                break;
            }
            below += in_cell;
            in_cell = 0;
            const auto size = static_cast<double>(step);
            const double middle = std::round((start + (width - 1) / 2) / size) * size;
            cell_start = width > size ? start : middle - size / 2;
            cell_end = width > size ? start + width : middle + size / 2;
        }
        in_cell += static_cast<double>(count_[i]);
    }
    return in_cell > 0 ? cell_start + (wanted - below) / in_cell * (cell_end - cell_start) : 0.0;
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

void Report::add(const char *key, const std::vector<double> &values) {
    line_ += std::string(", \"") + key + "\": [";
    for (std::size_t i = 0; i < values.size(); ++i) {
        char text[64];
        std::snprintf(text, sizeof text, "%s%.6g", i == 0 ? "" : ", ", values[i]);
        line_ += text;
    }
    line_ += "]";
}

void Report::add_latency(const Histogram &histogram) {
    const double rate = ticks_per_ns();
    const std::uint64_t step = tick_step();
    add("samples", static_cast<long>(histogram.total()));
    add("mean_ns", histogram.mean() / rate);
    add("p50_ns", histogram.quantile(0.5, step) / rate);
    add("p99_ns", histogram.quantile(0.99, step) / rate);
    add("p999_ns", histogram.quantile(0.999, step) / rate);
}

void Report::print() const {
    std::printf("%s}\n", line_.c_str());
    std::fflush(stdout);
}

} // namespace sd::bench
