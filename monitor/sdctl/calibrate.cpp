#include "monitor/sdctl/calibrate.hpp"

#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdctl/measuring.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sd::ctl {
namespace {

using monitor::UniqueFd;

constexpr char kDevice[] = "/dev/socksdirect-zerocopy";
constexpr char kParameters[] = "/sys/module/socksdirect_zerocopy/parameters/";
/// Of messages: those that matter, and all that anybody may want to know of.
constexpr size_t kLeast = 64 << 10, kMost = 4 << 20, kLeastOfAll = kPage, kMostOfAll = 64 << 20;

/// Both ends of a channel in one thread.
class Bench {
  public:
    explicit Bench(size_t most)
        : pool_(open(kDevice, O_RDWR | O_CLOEXEC)), ring_(kRing, MAP_SHARED | MAP_ANONYMOUS, -1),
          from_(most, MAP_SHARED, pool_.get()), to_(most, MAP_SHARED, pool_.get()) {
        sdzc_channel made{};
        if (ioctl(pool_.get(), SDZC_CHANNEL, &made) != 0) {
            cannot_measure("a channel");
        }
        end_[0] = UniqueFd(made.end[0]);
        end_[1] = UniqueFd(made.end[1]);
        memset(from_.at(), 1, most);
        memset(to_.at(), 1, most);
        memset(ring_.at(), 1, kRing);
    }

    void write_all(size_t n) { memset(from_.at(), static_cast<int>(sum_ | 1) & 0x7f, n); }
    void write_word(size_t n) { from_.at()[n / 2] = static_cast<char>(sum_); }
    void read_words(size_t n) {
        for (size_t at = 0; at < n; at += kPage) {
            sum_ += static_cast<volatile char *>(to_.at())[at];
        }
    }
    void read_all(size_t n) {
        const auto *words = reinterpret_cast<const volatile uint64_t *>(to_.at());
        for (size_t i = 0; i < n / sizeof *words; ++i) {
            sum_ += words[i];
        }
    }
    void copy(size_t n) { copy_through(ring_.at(), kRing, from_.at(), to_.at(), n); }
    void hand_over(size_t n, uint32_t flags) {
        for (size_t at = 0; at < n; at += kCall) {
            const size_t part = std::min(n - at, kCall);
            sdzc_give give{};
            give.address = reinterpret_cast<uintptr_t>(from_.at()) + at;
            give.length = part;
            give.flags = flags;
            if (ioctl(end_[0].get(), SDZC_GIVE, &give) != 0) {
                cannot_measure("giving pages");
            }
            sdzc_take take{};
            take.handle = give.handle;
            take.address = reinterpret_cast<uintptr_t>(to_.at()) + at;
            take.length = part;
            take.flags = SDZC_TAKE_POPULATE;
            if (ioctl(end_[1].get(), SDZC_TAKE, &take) != 0) {
                cannot_measure("taking pages");
            }
        }
    }

  private:
    UniqueFd pool_, end_[2];
    Memory ring_, from_, to_;
    uint64_t sum_ = 0;
};

std::vector<Costs> measure(Bench &b, size_t from, size_t to) {
    constexpr int kRounds = 8;
    constexpr double kNone = std::numeric_limits<double>::max();
    std::vector<Costs> all;
    for (size_t n = from; n <= to; n *= 2) {
        const auto way = [&b, n](bool whole, const std::function<void()> &moves) {
            return [&b, n, whole, moves] {
                whole ? b.write_all(n) : b.write_word(n);
                moves();
                whole ? b.read_all(n) : b.read_words(n);
            };
        };
        const auto copy = [&b, n] { b.copy(n); };
        const auto give = [&b, n] { b.hand_over(n, 0); };
        const auto once = [&b, n] { b.hand_over(n, SDZC_GIVE_COPY); };
        Costs c{n, kNone, kNone, kNone, kNone, kNone};
        const std::pair<double Costs::*, std::function<void()>> ways[] = {
            {&Costs::copy_word, way(false, copy)}, {&Costs::give_word, way(false, give)},
            {&Costs::copy_all, way(true, copy)},   {&Costs::give_all, way(true, give)},
            {&Costs::once_all, way(true, once)},
        };
        // In turns, and the least of each: what else the machine does only adds to it.
        const auto times = static_cast<unsigned>(std::max<size_t>(1, (1 << 20) / n));
        for (int round = 0; round < kRounds; ++round) {
            for (const auto &[cost, run] : ways) {
                run();
                c.*cost = std::min(c.*cost, seconds_of(run, times));
            }
        }
        all.push_back(c);
    }
    return all;
}

/// The largest share by which a prediction misses what was measured.
double worst_miss(const Primitives &p, const std::vector<Costs> &costs) {
    double worst = 0;
    for (const Costs &c : costs) {
        const Predicted said = predicted(p, c.bytes);
        worst = std::max({worst, std::abs(said.copy / c.copy_word - 1), std::abs(said.give / c.give_word - 1)});
    }
    return worst;
}

void tell_module(const char *name, uint64_t bytes) {
    const std::string path = std::string(kParameters) + name, text = std::to_string(bytes);
    const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        cannot_measure(path);
    }
}

std::string size_text(uint64_t bytes) {
    return bytes == kNeverPays ? "never" : fmt::format("from {} KiB on", bytes >> 10);
}

} // namespace

namespace {

nlohmann::json as_json(const Primitives &p) {
    return {{"call", p.call},
            {"flush", p.flush},
            {"unmap", p.unmap},
            {"map", p.map},
            {"access", p.access},
            {"atomic", p.atomic},
            {"fault_copy", p.fault_copy},
            {"object", p.object},
            {"copy", p.page_copy.front().page},
            {"copy_far", p.page_copy.back().page}};
}

void print(const Primitives &p) {
    fmt::print(
        "A page: unmapped {:.3f} us, mapped {:.3f}, copied at a write {:.2f}, copied {:.2f} (of {} KiB "
        "{:.2f}), looked at {:.3f}; a call {:.2f}, flush {:.2f}, a word {:.3f}, an object {:.2f}.\n",
        p.unmap * 1e6, p.map * 1e6, p.fault_copy * 1e6, p.page_copy.front().page * 1e6,
        p.page_copy.back().bytes >> 10, p.page_copy.back().page * 1e6, p.access * 1e6, p.call * 1e6,
        p.flush * 1e6, p.atomic * 1e6, p.object * 1e6);
}

/// What the model alone says.
void predict(bool json) {
    Primitives p;
    {
        const Spinner busy;
        p = measure_primitives(kMostOfAll);
    }
    std::vector<Costs> costs;
    nlohmann::json sizes = nlohmann::json::array();
    for (size_t n = kLeastOfAll; n <= kMostOfAll; n *= 2) {
        const Predicted said = predicted(p, n);
        costs.push_back({n, said.copy, said.give, 0, said.rewritten, 0});
        sizes.push_back({{"bytes", n}, {"copy", said.copy}, {"give", said.give}, {"rewritten", said.rewritten}});
    }
    const uint64_t give = crossing(costs, &Costs::copy_word, &Costs::give_word);
    if (json) {
        fmt::print("{}\n",
                   nlohmann::json{{"primitives", as_json(p)},
                                  {"costs", sizes},
                                  {"least_give", give == kNeverPays ? nlohmann::json() : nlohmann::json(give)}}
                       .dump(2));
        return;
    }
    fmt::print("Predicted microseconds for a message of which one word of each page is used\n"
               "{:>8}  {:>10} {:>10} {:>14}\n",
               "KiB", "copied", "pages", "copied / pages");
    for (const Costs &c : costs) {
        fmt::print("{:>8}  {:>10.1f} {:>10.1f} {:>14.2f}\n", c.bytes >> 10, c.copy_word * 1e6,
                   c.give_word * 1e6, c.copy_word / c.give_word);
    }
    fmt::print("Handing over pages should pay {}.\n", size_text(give));
    print(p);
}

} // namespace

void calibrate(const Calibration &how) {
    if (how.predict) {
        predict(how.as_json);
        return;
    }
    const UniqueFd device(open(kDevice, O_RDWR | O_CLOEXEC));
    sdzc_info info{};
    if (!device && errno == ENOENT && how.if_needed) {
        return;
    }
    if (!device || ioctl(device.get(), SDZC_INFO, &info) != 0) {
        cannot_measure(kDevice);
    }
    if (info.version < 2) {
        throw Failure(Exit::failed, "calibrate: the module is too old: it cannot be told");
    }
    if (how.if_needed && info.least_give != 0 && info.least_copy != 0) {
        return;
    }
    const size_t from = how.all_sizes ? kLeastOfAll : kLeast, to = how.all_sizes ? kMostOfAll : kMost;
    Bench bench(to);
    std::vector<Costs> costs;
    Primitives p;
    {
        const Spinner busy;
        costs = measure(bench, from, to);
        p = measure_primitives(to);
    }
    const uint64_t give = crossing(costs, &Costs::copy_word, &Costs::give_word),
                   once = crossing(costs, &Costs::copy_all, &Costs::once_all);
    if (!how.only_look) {
        tell_module("least_give", give);
        tell_module("least_copy", once);
    }
    const double miss = worst_miss(p, costs);
    if (how.as_json) {
        nlohmann::json sizes = nlohmann::json::array();
        for (const Costs &c : costs) {
            const Predicted said = predicted(p, c.bytes);
            sizes.push_back({{"bytes", c.bytes},
                             {"copy_word", c.copy_word},
                             {"give_word", c.give_word},
                             {"copy_all", c.copy_all},
                             {"give_all", c.give_all},
                             {"once_all", c.once_all},
                             {"predicted_copy", said.copy},
                             {"predicted_give", said.give},
                             {"predicted_rewritten", said.rewritten}});
        }
        fmt::print("{}\n",
                   nlohmann::json{{"least_give", give == kNeverPays ? nlohmann::json() : nlohmann::json(give)},
                                  {"least_copy", once == kNeverPays ? nlohmann::json() : nlohmann::json(once)},
                                  {"model_misses_by", miss},
                                  {"primitives", as_json(p)},
                                  {"costs", sizes}}
                       .dump(2));
        return;
    }
    fmt::print(
        "Microseconds for a message\n{:>8}  {:>27}  {:>38}\n{:>8}  {:>13} {:>13}  {:>12} {:>12} {:>12}\n", "",
        "one word of a page is used", "each byte is written and read", "KiB", "copied", "pages", "copied",
        "pages", "copied once");
    for (const Costs &c : costs) {
        fmt::print("{:>8}  {:>13.1f} {:>13.1f}  {:>12.1f} {:>12.1f} {:>12.1f}\n", c.bytes >> 10,
                   c.copy_word * 1e6, c.give_word * 1e6, c.copy_all * 1e6, c.give_all * 1e6, c.once_all * 1e6);
    }
    fmt::print("Handing over pages pays {}; copying once into pages, for senders that write them anew, {}.\n",
               size_text(give), size_text(once));
    print(p);
    for (const Costs &c : costs) {
        const Predicted said = predicted(p, c.bytes);
        fmt::print("{:>8} KiB  predicted / measured: copied {:.2f}, pages {:.2f}\n", c.bytes >> 10,
                   said.copy / c.copy_word, said.give / c.give_word);
    }
    fmt::print("The model from these misses by {:.0f} % at most{}.\n", miss * 100,
               miss <= 0.2 ? "" : ": do not go by it");
}

} // namespace sd::ctl
