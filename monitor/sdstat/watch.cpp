// The screen of "sdstat --watch".
#include "monitor/sdstat/watch.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/core.h>
#include <set>

namespace sd::stat {

using monitor::ConnectionRow;
using nlohmann::json;

namespace {

constexpr double kMinute = 60, kLongAgo = 600;

/// `since` is worked out anew for each snapshot, from two clocks.
std::pair<std::string, double> key_of(const ConnectionRow &row) {
    return {monitor::connection_id(row), std::round(row.since)};
}

std::map<unsigned, double> causes_of(const json &rest) {
    std::map<unsigned, double> result;
    for (const json &cause : rest.value("causes", json::array())) {
        result[cause.value("number", 0U)] = cause.value("count", 0.0);
    }
    return result;
}

std::string rate_text(double per_second) { return per_second <= 0 ? "0" : amount(std::max(1.0, per_second)); }

std::string ring_text(unsigned ring) {
    const uint32_t bytes = kRingSize[std::min(ring, kRingClasses - 1)];
    return bytes < 1024       ? std::to_string(bytes)
           : bytes < 1u << 20 ? fmt::format("{}K", bytes >> 10)
                              : fmt::format("{}M", bytes >> 20);
}

} // namespace

void Watch::take(Snapshot snapshot) {
    counts_.clear();
    for (const ConnectionRow &row : now_.rows) {
        counts_[key_of(row)] = {{static_cast<double>(monitor::bytes_from(row, 0)),
                                 static_cast<double>(monitor::bytes_from(row, 1))},
                                {static_cast<double>(monitor::messages_from(row, 0)),
                                 static_cast<double>(monitor::messages_from(row, 1))}};
    }
    former_processes_ = std::move(now_.processes);
    elapsed_ = now_.when > 0 ? snapshot.when - now_.when : 0;
    now_ = std::move(snapshot);
    history_.push_back({now_.when, causes_of(now_.rest)});
    while (history_.size() > 1 && history_[1].when <= now_.when - kLongAgo) {
        history_.pop_front();
    }
}

bool Watch::key(char c) {
    switch (c) {
    case 'q':
        return false;
    case '1':
        group_ = Group::connections;
        break;
    case '2':
        group_ = Group::processes;
        break;
    case '3':
        group_ = Group::units;
        break;
    case 'r':
        sort_ = Sort::rate;
        break;
    case 'b':
        sort_ = Sort::bytes;
        break;
    case 'c':
        sort_ = Sort::connections;
        break;
    case 'a':
        sort_ = Sort::age;
        break;
    case 'u':
        sort_ = Sort::queue;
        break;
    case 'n':
        sort_ = Sort::name;
        break;
    case ' ':
        is_paused_ = !is_paused_;
        break;
    case 'h':
    case '?':
        is_help_ = !is_help_;
        break;
    default:
        break;
    }
    return true;
}

Watch::Counts Watch::rate(const ConnectionRow &row) const {
    Counts result{};
    if (elapsed_ <= 0) {
        return result;
    }
    const auto it = counts_.find(key_of(row));
    // One that is new has made all that it has since then.
    const Counts before = it == counts_.end() ? Counts{} : it->second;
    for (unsigned side = 0; side < 2; ++side) {
        const auto bytes = static_cast<double>(monitor::bytes_from(row, side));
        const auto messages = static_cast<double>(monitor::messages_from(row, side));
        result.bytes[side] = std::max(0.0, bytes - before.bytes[side]) / elapsed_;
        result.messages[side] = std::max(0.0, messages - before.messages[side]) / elapsed_;
    }
    return result;
}

std::vector<Watch::Entry> Watch::of_connections() const {
    std::vector<Entry> result;
    for (const ConnectionRow &row : now_.rows) {
        if (!filter_.matches(now_, row)) {
            continue;
        }
        const Counts rates = rate(row);
        Entry e;
        e.name = program_text(comm_of(row.end[0]), row.end[0].pid) + " > " +
                 program_text(comm_of(row.end[1]), row.end[1].pid);
        e.detail = monitor::address_text(row.end[1].address);
        e.path =
            path_text(static_cast<monitor::Path>(row.end[0].path), static_cast<monitor::Path>(row.end[1].path));
        e.ring = ring_text(row.end[0].ring) + "/" + ring_text(row.end[1].ring);
        for (const monitor::RowEnd &end : row.end) {
            e.asleep += end.asleep != 0 ? 's' : '.';
            e.stalled += end.stalled;
            e.queue += 0;
        }
        e.id = monitor::connection_id(row);
        e.count = 1;
        e.sent = rates.bytes[0];
        e.received = rates.bytes[1];
        e.messages = rates.messages[0] + rates.messages[1];
        for (unsigned side = 0; side < 2; ++side) {
            e.bytes += static_cast<double>(monitor::bytes_from(row, side));
            e.queue += static_cast<double>(std::max<int64_t>(0, monitor::queued(row, side)));
        }
        e.since = row.since;
        result.push_back(std::move(e));
    }
    return result;
}

/// By process, or by unit: an end counts for the process that holds it.
std::vector<Watch::Entry> Watch::of_processes() const {
    std::map<std::string, Entry> all;
    std::map<std::string, std::set<uint32_t>> members;
    for (const ConnectionRow &row : now_.rows) {
        const Counts rates = rate(row);
        for (unsigned side = 0; side < 2; ++side) {
            const Socket s = socket_of(now_, row, side);
            if (s.pid == 0 || !filter_.matches(s)) {
                continue;
            }
            const std::string name = group_ == Group::processes ? program_text(s.comm, s.pid)
                                     : s.unit.empty()           ? "(no unit)"
                                                                : printable(s.unit);
            Entry &e = all[name];
            e.name = name;
            e.detail = group_ == Group::processes ? printable(s.unit) : "";
            ++e.count;
            e.sent += rates.bytes[side];
            e.received += rates.bytes[1 - side];
            e.messages += rates.messages[side];
            e.bytes += static_cast<double>(s.sent_bytes + s.received_bytes);
            e.queue += static_cast<double>(std::max<int64_t>(0, s.receive_queue));
            e.stalled += row.end[side].stalled;
            e.since = e.since == 0 ? row.since : std::min(e.since, row.since);
            members[name].insert(s.pid);
        }
    }
    std::vector<Entry> result;
    for (auto &[name, e] : all) {
        e.processes = static_cast<unsigned>(members[name].size());
        for (const uint32_t pid : members[name]) {
            const auto now = now_.processes.find(pid), before = former_processes_.find(pid);
            if (elapsed_ > 0 && now != now_.processes.end() && before != former_processes_.end()) {
                e.sleeps += std::max(0.0, now->second.sleeps - before->second.sleeps) / elapsed_;
                e.takeovers += std::max(0.0, now->second.takeovers - before->second.takeovers) / elapsed_;
            }
        }
        result.push_back(std::move(e));
    }
    return result;
}

std::vector<Watch::Entry> Watch::entries() const {
    std::vector<Entry> all = group_ == Group::connections ? of_connections() : of_processes();
    const auto weight = [this](const Entry &e) {
        switch (sort_) {
        case Sort::rate:
            return e.sent + e.received;
        case Sort::bytes:
            return e.bytes;
        case Sort::connections:
            return static_cast<double>(e.count);
        case Sort::age:
            return -e.since;
        case Sort::queue:
            return e.queue;
        default:
            return 0.0;
        }
    };
    std::stable_sort(all.begin(), all.end(), [&](const Entry &a, const Entry &b) {
        const double x = weight(a), y = weight(b);
        return x != y ? x > y : a.name != b.name ? a.name < b.name : a.id < b.id;
    });
    return all;
}

Lines Watch::entries_table(size_t width, size_t room) const {
    const std::vector<Entry> all = entries();
    if (all.empty()) {
        return {filter_.is_empty() ? "No accelerated connections now." : "No accelerated connection matches."};
    }
    std::vector<Row> rows;
    switch (group_) {
    case Group::connections:
        rows.push_back({"SENT/s", "RECV/s", "CLIENT > SERVER", "AT", "MSG/s", "QUEUE", "ASLEEP", "RING",
                        "PATH", "STALL", "AGE", "ID"});
        break;
    case Group::processes:
        rows.push_back({"SENT/s", "RECV/s", "PROGRAM", "CONN", "MSG/s", "QUEUE", "SLEEP/s", "TAKEN/s",
                        "STALL", "AGE", "UNIT"});
        break;
    case Group::units:
        rows.push_back({"SENT/s", "RECV/s", "UNIT", "CONN", "PROC", "MSG/s", "QUEUE", "SLEEP/s", "TAKEN/s",
                        "STALL", "AGE"});
        break;
    }
    for (size_t i = 0; i < all.size() && rows.size() < room; ++i) {
        const Entry &e = all[i];
        const std::string old = age(now_.when - e.since), stalled = std::to_string(e.stalled);
        Row row{rate_text(e.sent), rate_text(e.received), e.name};
        switch (group_) {
        case Group::connections:
            row.insert(row.end(), {e.detail, rate_text(e.messages), amount(e.queue), e.asleep, e.ring, e.path,
                                   stalled, old, e.id});
            break;
        case Group::processes:
            row.insert(row.end(), {std::to_string(e.count), rate_text(e.messages), amount(e.queue),
                                   rate_text(e.sleeps), rate_text(e.takeovers), stalled, old, e.detail});
            break;
        case Group::units:
            row.insert(row.end(), {std::to_string(e.count), std::to_string(e.processes), rate_text(e.messages),
                                   amount(e.queue), rate_text(e.sleeps), rate_text(e.takeovers), stalled, old});
            break;
        }
        rows.push_back(std::move(row));
    }
    return table(rows, Fit::columns, width);
}

Lines Watch::causes_table(size_t width) const {
    if (history_.empty() || history_.back().count.empty()) {
        return {};
    }
    std::vector<Row> rows{{"LEFT TO KERNEL TCP", "NOW", "1 MIN", "10 MIN", "TOTAL"}};
    const auto before = [this](unsigned number, double seconds) {
        // What is not in the history was before it began.
        const Causes *at = &history_.front();
        for (const Causes &c : history_) {
            at = c.when <= now_.when - seconds ? &c : at;
        }
        const auto it = at->count.find(number);
        return it == at->count.end() ? 0.0 : it->second;
    };
    const size_t last = history_.size() < 2 ? 0 : history_.size() - 2;
    for (const json &cause : now_.rest.value("causes", json::array())) {
        const unsigned number = cause.value("number", 0U);
        const double count = cause.value("count", 0.0);
        const auto former = history_[last].count.find(number);
        const double latest = former == history_[last].count.end() ? (last + 1 < history_.size() ? count : 0)
                                                                   : count - former->second;
        rows.push_back({fmt::format("{} {}", number, cause.value("name", "")), amount(std::max(0.0, latest)),
                        amount(std::max(0.0, count - before(number, kMinute))),
                        amount(std::max(0.0, count - before(number, kLongAgo))), amount(count)});
    }
    return table(rows, Fit::columns, width);
}

Lines Watch::help() {
    return {"1 2 3   connections, processes, units",
            "r b c   sort by rate, bytes, connections",
            "a u n   sort by age, queue, name",
            "space   stop and go on",
            "h q     this help, quit",
            "",
            "ASLEEP: client and server, s: a thread",
            "waits in the kernel for it. STALL: ends",
            "whose program found the ring full.",
            "TAKEN: directions that went over to",
            "another thread. RING: where client and",
            "server send. NOW: since the last look."};
}

Lines Watch::screen(size_t width, size_t height, const std::string &note) const {
    static constexpr const char *groups[] = {"connections", "processes", "units"};
    static constexpr const char *sorts[] = {"rate", "bytes", "connections", "age", "queue", "name"};
    double bytes = 0;
    size_t shown = 0;
    for (const ConnectionRow &row : now_.rows) {
        if (filter_.matches(now_, row)) {
            const Counts rates = rate(row);
            bytes += rates.bytes[0] + rates.bytes[1];
            ++shown;
        }
    }
    const auto when = static_cast<time_t>(now_.when);
    char clock[16];
    strftime(clock, sizeof clock, "%H:%M:%S", localtime(&when));
    Lines out{fmt::format("{} {} connections, {}B/s{}", clock, shown, rate_text(bytes),
                          is_paused_ ? " (stopped)" : ""),
              fmt::format("{} by {}; h: help, q: quit", groups[static_cast<size_t>(group_)],
                          sorts[static_cast<size_t>(sort_)])};
    if (!note.empty()) {
        out.push_back(note.substr(0, note.find('\n')));
    }
    out.emplace_back();
    if (is_help_) {
        const Lines text = help();
        out.insert(out.end(), text.begin(), text.end());
    } else {
        const Lines causes = causes_table(width);
        const size_t below = causes.empty() ? 0 : causes.size() + 1;
        const size_t room = height > out.size() + below + 2 ? height - out.size() - below : 2;
        const Lines top = entries_table(width, room);
        out.insert(out.end(), top.begin(), top.end());
        if (!causes.empty()) {
            out.emplace_back();
            out.insert(out.end(), causes.begin(), causes.end());
        }
    }
    if (out.size() > height) {
        out.resize(height);
    }
    for (std::string &line : out) {
        line.resize(std::min(line.size(), width));
    }
    return out;
}

} // namespace sd::stat
