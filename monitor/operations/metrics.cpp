// Counters and gauges in Prometheus' text format. packaging/monitoring/README.md lists them: no name is ever
// used for something else.
#include "monitor/operations/monitor.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <iterator>
#include <sys/resource.h>

namespace sd::monitor {

namespace {

constexpr size_t kMostPrograms = 100;
constexpr int kMetricsShare = 4;

class Text {
  public:
    void about(const char *name, const char *type, const char *help) {
        fmt::format_to(std::back_inserter(text_), "# HELP socksdirect_{0} {1}\n# TYPE socksdirect_{0} {2}\n",
                       name, help, type);
    }
    void value(const char *name, double value, const std::string &labels = "") {
        fmt::format_to(std::back_inserter(text_), "socksdirect_{}{} {}\n", name,
                       labels.empty() ? "" : "{" + labels + "}", value);
    }
    void single(const char *name, const char *type, const char *help, double number) {
        about(name, type, help);
        value(name, number);
    }
    std::string take() { return std::move(text_); }

  private:
    std::string text_;
};

std::string label(const char *name, const std::string &value) {
    std::string result = std::string(name) + "=\"";
    for (const char c : value) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            result += '\\';
        }
        result += byte < 0x20 || byte > 0x7e ? '?' : c;
    }
    return result + '"';
}

struct Program {
    double processes = 0, connections = 0;
};

} // namespace

/// What all have made together. Nothing in it is about a single program or peer, unless the configuration
/// says so.
std::string Monitor::make_metrics() {
    Viewer everybody;
    everybody.all = true;
    const ConnectionTable table = connections(everybody);
    Counters total = past_;
    double processes = 0;
    std::map<std::string, Program> programs;
    for (const auto &[id, client] : clients_) {
        if (client->own && (client->kind == Client::Kind::process || client->kind == Client::Kind::ended)) {
            total += client->own->counters();
        }
        if (client->kind == Client::Kind::process) {
            ++processes;
            ++programs[client->comm].processes;
        }
    }
    double states[6]{}, paths[3]{}, stalled = 0, asleep = 0, waiting = 0;
    for (const ConnectionRow &row : table.rows) {
        ++states[std::min<size_t>(row.state, std::size(states) - 1)];
        for (unsigned side = 0; side < 2; ++side) {
            const RowEnd &end = row.end[side];
            ++paths[std::min<size_t>(end.path, std::size(paths) - 1)];
            stalled += end.stalled;
            asleep += end.asleep != 0 ? 1 : 0;
            waiting += static_cast<double>(std::max<int64_t>(0, queued(row, side)));
            if (end.is_known != 0) {
                ++programs[std::string(end.comm, strnlen(end.comm, sizeof end.comm))].connections;
            }
        }
    }
    Text text;
    text.about("build_info", "gauge", "The monitor's version.");
    text.value("build_info", 1, label("version", SD_VERSION));
    text.single("uptime_seconds", "gauge", "Since the monitor started.",
                std::chrono::duration<double>(EventLoop::Clock::now() - started_).count());
    text.single("connects_total", "counter", "Connections that programs made over shared memory.",
                static_cast<double>(total.connects));
    text.single("accepts_total", "counter", "Connections that programs accepted over shared memory.",
                static_cast<double>(total.accepts));
    text.single("joined_total", "counter",
                "Ends of kernel connections that were joined, to go over shared memory.",
                static_cast<double>(total.joined));
    text.about("fallbacks_total", "counter", "Sockets that were left to kernel TCP, by cause (sdstat --causes).");
    for (unsigned i = 1; i < kMaxCauses; ++i) {
        if (*cause_text(i) != '\0') {
            text.value("fallbacks_total", static_cast<double>(total.fallbacks[i]), label("cause", cause_name(i)));
        }
    }
    text.single("sleeps_total", "counter", "Times that a thread went to sleep on accelerated sockets.",
                static_cast<double>(total.sleeps));
    text.single("takeovers_total", "counter", "Times that a direction went over to another thread.",
                static_cast<double>(total.takeovers));
    text.single("ring_changes_total", "counter", "Times that a direction went over to a ring of another size.",
                static_cast<double>(total.ring_changes));
    text.about("connections", "gauge", "Accelerated connections now, by state.");
    for (size_t i = 0; i < std::size(states); ++i) {
        text.value("connections", states[i], label("state", state_name(static_cast<ConnectionState>(i))));
    }
    text.about("directions", "gauge", "Directions of these by what carries them.");
    for (size_t i = 0; i < std::size(paths); ++i) {
        text.value("directions", paths[i], label("path", path_name(static_cast<Path>(i))));
    }
    text.single("stalled_ends", "gauge", "Ends whose program found its ring full.", stalled);
    text.single("asleep_ends", "gauge", "Ends for which a thread waits in the kernel.", asleep);
    text.single("queued_bytes", "gauge", "Sent and not taken yet, in all connections.", waiting);
    text.single("processes", "gauge", "Processes that have the library.", processes);
    text.single("listeners", "gauge", "Listening sockets that can be reached over shared memory.",
                static_cast<double>(listeners_.size()));
    text.single("links", "gauge", "Pairs of a client process and a listener that share memory.",
                static_cast<double>(links_.size()));
    text.single("channels", "gauge", "Channels to the monitor.", static_cast<double>(clients_.size()));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    text.single("descriptors", "gauge", "Descriptors that the monitor holds for programs.", accounts_.used());
    text.single("descriptors_limit", "gauge", "Descriptors that the monitor may have.",
                static_cast<double>(limit.rlim_cur));
    if (config_.metrics.programs) {
        std::vector<std::pair<std::string, Program>> most(programs.begin(), programs.end());
        std::stable_sort(most.begin(), most.end(), [](const auto &a, const auto &b) {
            return a.second.connections > b.second.connections;
        });
        // Whoever makes up names of programs does not fill the database.
        most.resize(std::min(most.size(), kMostPrograms));
        text.about("program_processes", "gauge", "Processes that have the library, by program.");
        for (const auto &[name, program] : most) {
            text.value("program_processes", program.processes, label("program", name));
        }
        text.about("program_connections", "gauge", "Ends of accelerated connections, by program.");
        for (const auto &[name, program] : most) {
            text.value("program_connections", program.connections, label("program", name));
        }
    }
    return text.take();
}

/// As often as anybody likes; made anew once in a second at most, and for no more than a fifth of the time.
std::string Monitor::metrics() {
    const auto start = EventLoop::Clock::now();
    if (metrics_.empty() || start >= next_metrics_) {
        metrics_ = make_metrics();
        const auto end = EventLoop::Clock::now();
        next_metrics_ =
            end + std::max<EventLoop::Clock::duration>(std::chrono::seconds(1), kMetricsShare * (end - start));
    }
    return metrics_;
}

} // namespace sd::monitor
