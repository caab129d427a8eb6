// One run of sddump.
#include "monitor/sddump/capture.hpp"
#include "libsd/cpu/instructions.hpp"
#include "monitor/sddump/output.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <fmt/core.h>
#include <poll.h>

namespace sd::dump {

using stat::Exit;
using stat::Failure;

namespace {

using namespace std::chrono_literals;

constexpr auto kLookAtProcess = 50ms;
constexpr int kLastMoments = 200; ///< milliseconds that a process may take to end
constexpr const char *kHasEnded = "the process has ended";
constexpr long kPauseNs = 500'000; ///< between two looks at a ring that was empty
constexpr size_t kWriteAtOnce = 256U << 10;
constexpr unsigned kUnansweredLooks = 3; ///< at the end: until nothing is being written any more

volatile std::sig_atomic_t is_interrupted = 0;
void interrupt(int) { is_interrupted = 1; }

/// Ctrl-C ends the capture in order; writes are broken off, but not started again.
void catch_signals() {
    struct sigaction action {};
    action.sa_handler = interrupt;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        sigaction(signal, &action, nullptr);
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
}

/// What a time stamp of the processor stands for.
class Clock {
  public:
    Clock() : first_(now()) {
        const timespec moment{0, 10'000'000}; // enough for the first rate to be right to a few parts in 10^5
        nanosleep(&moment, nullptr);
        look();
    }
    void look() { last_ = now(); }
    uint64_t ns(uint64_t cycles) {
        const double rate =
            static_cast<double>(last_.ns - first_.ns) / static_cast<double>(last_.cycles - first_.cycles);
        const double ago = static_cast<double>(static_cast<int64_t>(last_.cycles - cycles)) * rate;
        const uint64_t then = last_.ns - static_cast<uint64_t>(static_cast<int64_t>(ago));
        latest_ = std::max(latest_, then); // never goes back
        return latest_;
    }
    uint64_t start() const { return first_.ns; }
    uint64_t last() const { return last_.ns; }

  private:
    struct Moment {
        uint64_t cycles, ns;
    };
    static Moment now() {
        timespec t{};
        clock_gettime(CLOCK_REALTIME, &t);
        return {cpu::cycles(),
                static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec)};
    }
    Moment first_, last_{};
    uint64_t latest_ = 0;
};

/// "17.3". Throws Failure.
Choice parse(const std::string &id) {
    unsigned link = 0, slot = 0;
    int end = 0;
    if (sscanf(id.c_str(), "%u.%u%n", &link, &slot, &end) != 2 || static_cast<size_t>(end) != id.size()) {
        throw Failure(Exit::usage, fmt::format("\"{}\" is no connection: sdstat --each shows their ids", id));
    }
    Choice result;
    result.link = link;
    result.slot = slot;
    return result;
}

/// An end of the connection whose process may be captured: its client's, if there is a choice. Throws
/// Failure.
Process find_end(const Options &options, Choice &choice) {
    const stat::Snapshot snapshot = stat::take_snapshot(options.socket);
    const auto row = std::find_if(snapshot.rows.begin(), snapshot.rows.end(), [&](const auto &r) {
        return static_cast<uint32_t>(r.link) == choice.link && r.slot == choice.slot;
    });
    if (row == snapshot.rows.end()) {
        throw Failure(Exit::nothing, fmt::format("{}: there is no such connection", options.connection));
    }
    std::string why = fmt::format("{}: no process has it", options.connection);
    for (unsigned side = 0; side < 2; ++side) {
        const monitor::RowEnd &end = row->end[side];
        for (uint32_t i = 0; i < end.pids; ++i) {
            try {
                Process process(snapshot.pids[end.first_pid + i]);
                choice.side = side;
                return process;
            } catch (const Failure &failure) {
                why = failure.what();
            }
        }
    }
    throw Failure(Exit::failed, why);
}

Process find_process(const Options &options, Choice &choice) {
    if (options.connection.empty()) {
        choice.all = true;
        return Process(options.pid);
    }
    choice = parse(options.connection);
    return options.pid != 0 ? Process(options.pid) : find_end(options, choice);
}

class Run {
  public:
    Run(const Options &options, Process &process, const Choice &choice)
        : options_(options), process_(process), choice_(choice), output_(options.output),
          file_("sddump " SD_VERSION, "socksdirect",
                fmt::format("connections of {}[{}], copied by libsd", process.name(), process.pid()),
                options.snap == UINT32_MAX ? 0 : options.snap),
          packets_(file_) {}

    unsigned look_for_segments() {
        unsigned marked = 0;
        for (FoundSegment &found : process_.new_segments()) {
            rings_.emplace_back(std::move(found.map), found.proc, static_cast<uint32_t>(options_.buffer),
                                options_.snap);
            marked += rings_.back().start(choice_);
        }
        return marked;
    }

    /// Returns why it is over.
    std::string loop() {
        flush();
        auto next_look = SteadyClock::now() + kLookAtProcess;
        for (;;) {
            const bool any = read();
            if (is_interrupted != 0) {
                return {};
            }
            if (is_full()) {
                return {};
            }
            if (process_.has_ended()) {
                return kHasEnded;
            }
            for (const Ring &ring : rings_) {
                if (const CaptureEnd end = ring.ended(); end != CaptureEnd::none) {
                    return end == CaptureEnd::exec          ? "the process executes another program"
                           : end == CaptureEnd::credentials ? "the process changes its credentials"
                                                            : "the program has ended the capture";
                }
            }
            if (SteadyClock::now() >= next_look) {
                next_look = SteadyClock::now() + kLookAtProcess;
                if (const std::string why = objection(); !why.empty()) {
                    // Its descriptors go before the rest.
                    return process_.has_ended(kLastMoments) ? kHasEnded : why;
                }
                if (choice_.all) {
                    look_for_segments();
                }
            }
            if (!any) {
                const timespec pause{0, kPauseNs};
                nanosleep(&pause, nullptr);
            }
        }
    }

    /// After the loop: what is left, what was dropped, and why.
    void end(const std::string &why) {
        const bool has_ended = process_.has_ended();
        for (Ring &ring : rings_) {
            ring.stop();
        }
        for (unsigned i = 0; i < kUnansweredLooks && !is_full();) {
            i = read() ? 0 : i + 1;
            const timespec pause{0, kPauseNs};
            nanosleep(&pause, nullptr);
        }
        clock_.look();
        if (has_ended && !is_full()) {
            packets_.process_ended(clock_.last());
        }
        uint64_t dropped = 0, dropped_bytes = 0;
        for (const Ring &ring : rings_) {
            dropped += ring.dropped();
            dropped_bytes += ring.dropped_bytes();
        }
        file_.statistics(clock_.start(), clock_.last(), packets_.count() + dropped, dropped);
        fmt::print(stderr, "{}sddump: {} packets with {} bytes; {} dropped with {} bytes\n",
                   why.empty() ? "" : fmt::format("sddump: {}\n", why), packets_.count(), packets_.bytes(),
                   dropped, dropped_bytes);
        flush();
    }

  private:
    bool is_full() const { return options_.count != 0 && packets_.count() >= options_.count; }

    bool read() {
        clock_.look();
        bool any = false;
        for (Ring &ring : rings_) {
            any |= ring.read([this](uint64_t cycles) { return clock_.ns(cycles); },
                             [this](const Captured &record) {
                                 packets_.add(record);
                                 if (file_.size() >= kWriteAtOnce) {
                                     flush();
                                 }
                                 return !is_full() && is_interrupted == 0;
                             });
        }
        flush();
        return any;
    }

    void flush() {
        if (file_.size() != 0) {
            output_.write(file_.take());
        }
    }

    std::string objection() const {
        std::vector<const SegmentMap *> maps;
        for (const Ring &ring : rings_) {
            maps.push_back(&ring.segment());
        }
        const std::string why = process_.objection(maps);
        return why.empty() ? why : fmt::format("process {}: {}", process_.pid(), why);
    }

    const Options &options_;
    Process &process_;
    Choice choice_;
    Output output_;
    Pcapng file_;
    Packets packets_;
    std::deque<Ring> rings_;
    Clock clock_;
};

} // namespace

void capture(const Options &options) {
    catch_signals();
    Choice choice;
    Process process = find_process(options, choice);
    if (!process.is_accelerated()) {
        throw Failure(Exit::nothing,
                      fmt::format("process {} ({}) does not run with libsd.so", process.pid(), process.name()));
    }
    Run run(options, process, choice);
    unsigned marked = run.look_for_segments();
    while (process.is_new()) {
        const timespec pause{0, kPauseNs};
        nanosleep(&pause, nullptr);
        marked += run.look_for_segments();
    }
    if (!choice.all && marked == 0) {
        throw Failure(Exit::nothing, fmt::format("{}: process {} does not have that connection",
                                                 options.connection, process.pid()));
    }
    fmt::print(stderr, "sddump: capturing {} of {}[{}]; Ctrl-C ends it\n",
               choice.all ? fmt::format("all connections ({} now)", marked) : options.connection,
               process.name(), process.pid());
    run.end(run.loop());
}

} // namespace sd::dump
