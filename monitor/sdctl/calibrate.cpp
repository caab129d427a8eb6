#include "monitor/sdctl/calibrate.hpp"

#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <functional>
#include <limits>
#include <linux/membarrier.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace sd::ctl {
namespace {

using monitor::UniqueFd;
using Clock = std::chrono::steady_clock;

constexpr char kDevice[] = "/dev/socksdirect-zerocopy";
constexpr char kParameters[] = "/sys/module/socksdirect_zerocopy/parameters/";
constexpr size_t kPage = 4096, kRing = 256 << 10, kCall = 1 << 20, kLeast = 64 << 10, kMost = 4 << 20,
                 kMostPages = kMost / kPage;

[[noreturn]] void fail(const std::string &what) {
    throw Failure(Exit::failed, fmt::format("calibrate: {}: {}", what, strerror(errno)));
}

/// Memory that is mapped for as long as this lives.
class Memory {
  public:
    Memory(size_t bytes, int flags, int fd) : bytes_(bytes) {
        void *got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
        if (got == MAP_FAILED) {
            fail("memory");
        }
        at_ = static_cast<char *>(got);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { munmap(at_, bytes_); }
    char *at() const { return at_; }

  private:
    char *at_;
    size_t bytes_;
};

/// Keeps another processor of this process busy, as programs with threads do: flushes have to reach it.
class Spinner {
  public:
    Spinner() {
        if (std::thread::hardware_concurrency() > 1) {
            thread_ = std::thread([this] {
                while (!stop_.load(std::memory_order_relaxed)) {
                }
            });
        }
    }
    Spinner(const Spinner &) = delete;
    Spinner &operator=(const Spinner &) = delete;
    ~Spinner() {
        stop_.store(true, std::memory_order_relaxed);
        if (thread_.joinable()) {
            thread_.join();
        }
    }

  private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

double seconds_of(const std::function<void()> &what, unsigned times) {
    const auto begun = Clock::now();
    for (unsigned i = 0; i < times; ++i) {
        what();
    }
    return std::chrono::duration<double>(Clock::now() - begun).count() / times;
}

/// Both ends of a channel in one thread.
class Bench {
  public:
    Bench()
        : pool_(open(kDevice, O_RDWR | O_CLOEXEC)), ring_(kRing, MAP_SHARED | MAP_ANONYMOUS, -1),
          from_(kMost, MAP_SHARED, pool_.get()), to_(kMost, MAP_SHARED, pool_.get()) {
        sdzc_channel made{};
        if (ioctl(pool_.get(), SDZC_CHANNEL, &made) != 0) {
            fail("a channel");
        }
        end_[0] = UniqueFd(made.end[0]);
        end_[1] = UniqueFd(made.end[1]);
        memset(from_.at(), 1, kMost);
        memset(to_.at(), 1, kMost);
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
    /// The fences keep the compiler from leaving copies out.
    void copy(size_t n) {
        for (size_t at = 0; at < n; at += kRing) {
            const size_t part = std::min(n - at, kRing);
            memcpy(ring_.at(), from_.at() + at, part);
            std::atomic_signal_fence(std::memory_order_seq_cst);
            memcpy(to_.at() + at, ring_.at(), part);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        }
    }
    void hand_over(size_t n, uint32_t flags) {
        for (size_t at = 0; at < n; at += kCall) {
            const size_t part = std::min(n - at, kCall);
            sdzc_give give{};
            give.address = reinterpret_cast<uintptr_t>(from_.at()) + at;
            give.length = part;
            give.flags = flags;
            if (ioctl(end_[0].get(), SDZC_GIVE, &give) != 0) {
                fail("giving pages");
            }
            sdzc_take take{};
            take.handle = give.handle;
            take.address = reinterpret_cast<uintptr_t>(to_.at()) + at;
            take.length = part;
            take.flags = SDZC_TAKE_POPULATE;
            if (ioctl(end_[1].get(), SDZC_TAKE, &take) != 0) {
                fail("taking pages");
            }
        }
    }
    int pool() const { return pool_.get(); }
    char *from() const { return from_.at(); }
    char *ring() const { return ring_.at(); }

  private:
    UniqueFd pool_, end_[2];
    Memory ring_, from_, to_;
    uint64_t sum_ = 0;
};

std::vector<Costs> measure(Bench &b) {
    constexpr int kRounds = 8;
    constexpr double kNone = std::numeric_limits<double>::max();
    std::vector<Costs> all;
    for (size_t n = kLeast; n <= kMost; n *= 2) {
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

Primitives measure_primitives(Bench &b) {
    constexpr int kRounds = 12;
    constexpr size_t kPages = kCall / kPage;
    constexpr double kNone = std::numeric_limits<double>::max();
    Primitives p{kNone, kNone, kNone, kNone, kNone, kNone, kNone};
    const UniqueFd file(memfd_create("calibrate", MFD_CLOEXEC));
    if (!file || ftruncate(file.get(), kCall) != 0) {
        fail("memory");
    }
    const Memory shared(kCall, MAP_SHARED, file.get());
    memset(shared.at(), 1, kCall);
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    const auto least = [](double &to, double value) { to = std::min(to, value); };
    for (int round = 0; round < kRounds; ++round) {
        sdzc_info info;
        least(p.call, seconds_of([&] { ioctl(b.pool(), SDZC_INFO, &info); }, 200));
        least(p.flush, seconds_of([] { syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); }, 50));
        least(p.unmap, seconds_of([&] { madvise(shared.at(), kCall, MADV_DONTNEED); }, 1) / kPages);
        least(p.map, seconds_of([&] { madvise(shared.at(), kCall, MADV_POPULATE_READ); }, 1) / kPages);
        least(p.access, seconds_of(
                            [&] {
                                for (size_t at = 0; at < kCall; at += kPage) {
                                    (void)static_cast<volatile char *>(shared.at())[at];
                                }
                            },
                            1) /
                            kPages);
        {
            const Memory own(kCall, MAP_PRIVATE, file.get());
            madvise(own.at(), kCall, MADV_POPULATE_READ);
            least(p.fault_copy, seconds_of(
                                    [&] {
                                        for (size_t at = 0; at < kCall; at += kPage) {
                                            own.at()[at] = 1;
                                        }
                                    },
                                    1) /
                                    kPages);
        }
        least(p.page_copy, seconds_of(
                               [&] {
                                   for (size_t at = 0; at < kMost; at += kRing) {
                                       memcpy(b.ring(), b.from() + at, kRing);
                                       std::atomic_signal_fence(std::memory_order_seq_cst);
                                   }
                               },
                               1) /
                               static_cast<double>(kMostPages));
    }
    return p;
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
        fail(path);
    }
}

std::string size_text(uint64_t bytes) {
    return bytes == kNeverPays ? "never" : fmt::format("from {} KiB on", bytes >> 10);
}

} // namespace

void calibrate(bool only_look, bool if_needed, bool as_json) {
    const UniqueFd device(open(kDevice, O_RDWR | O_CLOEXEC));
    sdzc_info info{};
    if (!device && errno == ENOENT && if_needed) {
        return;
    }
    if (!device || ioctl(device.get(), SDZC_INFO, &info) != 0) {
        fail(kDevice);
    }
    if (info.version < 2) {
        throw Failure(Exit::failed, "calibrate: the module is too old: it cannot be told");
    }
    if (if_needed && info.least_give != 0 && info.least_copy != 0) {
        return;
    }
    Bench bench;
    std::vector<Costs> costs;
    Primitives p;
    {
        const Spinner busy;
        costs = measure(bench);
        p = measure_primitives(bench);
    }
    const uint64_t give = crossing(costs, &Costs::copy_word, &Costs::give_word),
                   once = crossing(costs, &Costs::copy_all, &Costs::once_all);
    if (!only_look) {
        tell_module("least_give", give);
        tell_module("least_copy", once);
    }
    const double miss = worst_miss(p, costs);
    if (as_json) {
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
    fmt::print("A page: call {:.2f} us, unmapped {:.3f}, mapped {:.3f}, copied at a write {:.2f}, copied "
               "{:.2f}, looked "
               "at {:.3f}; flush {:.2f}.\n",
               p.call * 1e6, p.unmap * 1e6, p.map * 1e6, p.fault_copy * 1e6, p.page_copy * 1e6,
               p.access * 1e6, p.flush * 1e6);
    for (const Costs &c : costs) {
        const Predicted said = predicted(p, c.bytes);
        fmt::print("{:>8} KiB  predicted / measured: copied {:.2f}, pages {:.2f}\n", c.bytes >> 10,
                   said.copy / c.copy_word, said.give / c.give_word);
    }
    fmt::print("The model from these misses by {:.0f} % at most{}.\n", miss * 100,
               miss <= 0.2 ? "" : ": do not go by it");
}

} // namespace sd::ctl
