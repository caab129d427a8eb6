// Tables for people.
#include "monitor/sdstat/view.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/core.h>
#include <map>
#include <tuple>

namespace sd::stat {

using monitor::ConnectionRow;
using monitor::RowEnd;
using nlohmann::json;

namespace {

std::string program(const RowEnd &end) { return program_text(comm_of(end), end.pid); }

std::string queue_text(int64_t bytes) { return bytes < 0 ? "-" : amount(static_cast<double>(bytes)); }

/// Why the two directions of an end go where they go; the sending one first.
std::string why_text(const ConnectionRow &row, unsigned side) {
    const char *sends = monitor::blocker_name(static_cast<monitor::Blocker>(row.end[side].blocker));
    const char *receives = monitor::blocker_name(static_cast<monitor::Blocker>(row.end[1 - side].blocker));
    return sends == std::string(receives)
               ? sends
               : fmt::format("{}/{}", *sends == '\0' ? "-" : sends, *receives == '\0' ? "-" : receives);
}

void append(Lines &to, const Lines &more) { to.insert(to.end(), more.begin(), more.end()); }

struct Sum {
    unsigned count = 0;
    double bytes[2] = {0, 0}, messages[2] = {0, 0}, since = INFINITY;
};

Lines summary(const Snapshot &snapshot, const Filter &filter, size_t width) {
    std::map<std::tuple<std::string, std::string, std::string, std::string>, Sum> groups;
    for (const ConnectionRow &row : snapshot.rows) {
        if (!filter.matches(snapshot, row)) {
            continue;
        }
        Sum &sum = groups[{program(row.end[0]), program(row.end[1]), monitor::address_text(row.end[1].address),
                           path_text(static_cast<monitor::Path>(row.end[0].path),
                                     static_cast<monitor::Path>(row.end[1].path))}];
        ++sum.count;
        for (unsigned side = 0; side < 2; ++side) {
            sum.bytes[side] += static_cast<double>(monitor::bytes_from(row, side));
            sum.messages[side] += static_cast<double>(monitor::messages_from(row, side));
        }
        sum.since = std::min(sum.since, row.since);
    }
    if (groups.empty()) {
        return {filter.is_empty() ? "No accelerated connections now." : "No accelerated connection matches."};
    }
    std::vector<Row> rows{
        {"CLIENT", "SERVER", "AT", "OVER", "CONNECTIONS", "BYTES ->", "<-", "MESSAGES ->", "<-", "AGE"}};
    for (const auto &[key, sum] : groups) {
        rows.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key),
                        std::to_string(sum.count), amount(sum.bytes[0]), amount(sum.bytes[1]),
                        amount(sum.messages[0]), amount(sum.messages[1]), age(snapshot.when - sum.since)});
    }
    return table(rows, Fit::columns, width);
}

Lines each_line(const Snapshot &snapshot, const Filter &filter, size_t width) {
    std::vector<Row> rows{{"CLIENT", "FROM", "SERVER", "AT", "OVER", "BYTES ->", "<-", "MESSAGES ->", "<-",
                           "AGE", "STATE", "QUEUE ->", "<-", "ID", "WHY"}};
    for (const ConnectionRow &row : snapshot.rows) {
        if (filter.matches(snapshot, row)) {
            rows.push_back({program(row.end[0]), monitor::address_text(row.end[0].address),
                            program(row.end[1]), monitor::address_text(row.end[1].address),
                            path_text(static_cast<monitor::Path>(row.end[0].path),
                                      static_cast<monitor::Path>(row.end[1].path)),
                            amount(static_cast<double>(monitor::bytes_from(row, 0))),
                            amount(static_cast<double>(monitor::bytes_from(row, 1))),
                            amount(static_cast<double>(monitor::messages_from(row, 0))),
                            amount(static_cast<double>(monitor::messages_from(row, 1))),
                            age(snapshot.when - row.since),
                            monitor::state_name(static_cast<monitor::ConnectionState>(row.state)),
                            queue_text(monitor::queued(row, 0)), queue_text(monitor::queued(row, 1)),
                            monitor::connection_id(row), why_text(row, 0)});
        }
    }
    if (rows.size() == 1) {
        return {filter.is_empty() ? "No accelerated connections now." : "No accelerated connection matches."};
    }
    return table(rows, Fit::columns, width);
}

Lines listeners(const Snapshot &snapshot, size_t width) {
    std::vector<Row> rows{{"LISTENING AT", "LINKS", "PROGRAMS"}};
    for (const json &listener : snapshot.rest.value("listeners", json::array())) {
        std::string programs;
        for (const json &pid : listener.value("pids", json::array())) {
            const auto number = pid.get<uint32_t>();
            const auto it = snapshot.processes.find(number);
            programs += fmt::format("{}{}", programs.empty() ? "" : " ",
                                    program_text(it == snapshot.processes.end() ? "" : it->second.comm, number));
        }
        rows.push_back({listener.value("address", ""), std::to_string(listener.value("links", 0U)), programs});
    }
    return rows.size() == 1 ? Lines{} : table(rows, Fit::columns, width);
}

Lines causes(const json &status, size_t width) {
    Lines out;
    const json &totals = status.at("totals");
    const auto joined = totals.value("joined", uint64_t{0});
    out.push_back(fmt::format("Accelerated since the monitor started: {} connects, {} accepts{}.",
                              totals.value("connects", uint64_t{0}), totals.value("accepts", uint64_t{0}),
                              joined == 0 ? "" : fmt::format(", {} ends that began on the kernel", joined)));
    const json counted = status.value("causes", json::array());
    if (counted.empty()) {
        out.emplace_back("No socket was left to kernel TCP.");
    } else {
        out.emplace_back("Left to kernel TCP (sdstat --causes explains):");
        std::vector<Row> rows{{"  CAUSE", "NAME", "COUNT"}};
        for (const json &cause : counted) {
            rows.push_back({fmt::format("  {}", cause.value("number", 0U)), cause.value("name", ""),
                            std::to_string(cause.value("count", uint64_t{0}))});
        }
        append(out, table(rows, Fit::columns, width));
    }
    const json recent = status.value("recent_fallbacks", json::array());
    for (size_t i = 0; i < recent.size() && i < 5; ++i) {
        const auto when = static_cast<time_t>(recent[i].value("when", 0.0));
        char text[32];
        strftime(text, sizeof text, "%H:%M:%S", localtime(&when));
        const json &pid = recent[i].at("pid"), &address = recent[i].at("address");
        out.push_back(fmt::format(
            "  {} {}{}: {}", text,
            pid.is_null() ? "(gone)" : program_text(recent[i].value("comm", ""), pid.get<uint32_t>()),
            address.is_null() ? "" : fmt::format(" {}", address.get<std::string>()),
            recent[i].value("name", "")));
    }
    return out;
}

/// Only for root: who has the monitor hold how much.
Lines accounts(const json &status, size_t width) {
    const json all = status.value("resources", json::object()).value("accounts", json::array());
    if (all.empty()) {
        return {};
    }
    std::vector<Row> rows{
        {"  WHO", "DESCRIPTORS", "CLIENTS", "LINKS", "LISTENERS", "BELLS", "SEGMENTS", "PARCELS"}};
    for (const json &account : all) {
        Row row{"  " + account.value("name", "")};
        for (const char *what : {"descriptors", "clients", "links", "listeners", "bells", "segments", "parcels"}) {
            row.push_back(std::to_string(account.value(what, 0U)));
        }
        rows.push_back(std::move(row));
    }
    Lines out{"", "Held by the monitor for each user and control group:"};
    append(out, table(rows, Fit::columns, width));
    return out;
}

/// "kernel, since 4711 bytes of the ring, 2 moves: it was put there, and stays"
std::string path_line(const ConnectionRow &row, unsigned side) {
    const auto path = static_cast<monitor::Path>(row.end[side].path);
    const auto blocker = static_cast<monitor::Blocker>(row.end[side].blocker);
    std::string text = monitor::path_name(path);
    if (row.path[side].moves != 0) {
        text += fmt::format(", move {}, from {} {} on", row.path[side].moves,
                            path == monitor::Path::shm ? "byte" : "position", row.path[side].offset);
    }
    return blocker == monitor::Blocker::none ? text : text + ": " + monitor::blocker_text(blocker);
}

/// How much of what an end has sent changed hands as pages, and why the rest was copied; nothing where it has
/// no channel of the zero-copy module.
Lines handed_lines(const ConnectionRow &row, unsigned side) {
    const monitor::RowHanded &handed = row.handed[side];
    if (handed.channels == 0) {
        return {};
    }
    Lines out{fmt::format("{} bytes: {} mapped by the receiver, {} copied by it", handed.given, handed.mapped,
                          handed.read)};
    const auto add = [&](uint64_t bytes, const char *why) {
        if (bytes != 0) {
            out.push_back(fmt::format("copied: {} bytes, {}", bytes, why));
        }
    };
    if (row.rewritten[side].once != 0) {
        out.push_back(fmt::format("of these {} bytes were copied once, into pages", row.rewritten[side].once));
    }
    add(monitor::too_small(row, side), "too small");
    add(row.rewritten[side].copied, "the sender writes its pages anew");
    for (unsigned why = 0; why < kCopiedReasons; ++why) {
        add(handed.copied[why], monitor::copied_text(why));
    }
    return out;
}

Lines end_lines(const Snapshot &snapshot, const ConnectionRow &row, unsigned side) {
    const Socket s = socket_of(snapshot, row, side);
    const RowEnd &end = row.end[side];
    Lines out;
    out.push_back(fmt::format("{}  {}  {}", side == 0 ? "client" : "server", program(end),
                              monitor::address_text(end.address)));
    const auto line = [&](const char *what, const std::string &text) {
        out.push_back(fmt::format("  {:<22}{}", what, text));
    };
    line("state", table_name(s.state));
    line("unit", s.unit.empty() ? "-" : s.unit);
    std::string pids;
    for (uint32_t i = 0; i < end.pids; ++i) {
        pids += fmt::format("{}{}", i == 0 ? "" : " ", snapshot.pids[end.first_pid + i]);
    }
    line("processes", pids.empty() ? "-" : pids);
    line("sends over", path_line(row, side));
    line("receives over", path_line(row, 1 - side));
    for (const std::string &text : handed_lines(row, side)) {
        line("sent as pages", text);
    }
    line("send queue", s.send_queue < 0 ? "not known" : fmt::format("{} bytes", s.send_queue));
    line("receive queue", s.receive_queue < 0 ? "not known" : fmt::format("{} bytes", s.receive_queue));
    line("sent", fmt::format("{} bytes, {} messages", s.sent_bytes, monitor::messages_from(row, side)));
    line("ring in which it sends",
         fmt::format("{} bytes{}", kRingSize[std::min<unsigned>(end.ring, kRingClasses - 1)],
                     end.stalled != 0 ? ", found full" : ""));
    line("asleep", asleep_text(end.asleep));
    line("token", fmt::format("sends {}, receives {}",
                              (end.shared & monitor::kSharedSend) != 0 ? "as a lock" : "as an owner",
                              (end.shared & monitor::kSharedReceive) != 0 ? "as a lock" : "as an owner"));
    if (const auto it = snapshot.processes.find(end.pid); it != snapshot.processes.end()) {
        line("all of the process", fmt::format("{:.0f} sleeps, {:.0f} takeovers, {:.0f} changes of a ring",
                                               it->second.sleeps, it->second.takeovers, it->second.ring_changes));
    }
    return out;
}

} // namespace

std::string program_text(const std::string &comm, uint32_t pid) {
    return pid == 0 ? "(gone)" : fmt::format("{}[{}]", printable(comm), pid);
}

std::string path_text(monitor::Path sends, monitor::Path receives) {
    return sends == receives ? monitor::path_name(sends)
                             : fmt::format("{}/{}", monitor::path_name(sends), monitor::path_name(receives));
}

const char *asleep_text(uint8_t asleep) {
    static constexpr const char *names[] = {"no", "for data", "for room", "for data or room"};
    return names[asleep & 3];
}

Lines connections_view(const Snapshot &snapshot, const Filter &filter, bool each, size_t width) {
    return each ? each_line(snapshot, filter, width) : summary(snapshot, filter, width);
}

Lines rest_view(const Snapshot &snapshot, size_t width) {
    Lines out;
    if (const Lines listening = listeners(snapshot, width); !listening.empty()) {
        out.emplace_back();
        append(out, listening);
    }
    out.emplace_back();
    append(out, causes(snapshot.rest, width));
    append(out, accounts(snapshot.rest, width));
    const json &monitor = snapshot.rest.at("monitor");
    out.emplace_back();
    out.push_back(fmt::format("sd-monitor {} [{}] at {}, up {}.", monitor.value("version", ""),
                              monitor.value("pid", 0), monitor.value("socket", ""),
                              age(monitor.value("uptime", 0.0))));
    return out;
}

Lines sockets_view(const std::vector<Socket> &sockets, double now, size_t width) {
    std::vector<Row> rows{{"STATE", "RECV-Q", "SEND-Q", "LOCAL", "PEER", "PATH", "PROGRAM", "PEER PROGRAM",
                           "AGE", "SENT", "RECEIVED", "ASLEEP", "ID", "WHY"}};
    for (const Socket &s : sockets) {
        const bool is_kernel = s.row == nullptr;
        rows.push_back({table_name(s.state), queue_text(s.receive_queue), queue_text(s.send_queue),
                        monitor::address_text(s.local), s.peer.port == 0 ? "*" : monitor::address_text(s.peer),
                        path_text(s.send_path, s.receive_path), program_text(s.comm, s.pid),
                        is_kernel ? "-" : program_text(s.peer_comm, s.peer_pid),
                        is_kernel ? "-" : age(now - s.since), amount(static_cast<double>(s.sent_bytes)),
                        amount(static_cast<double>(s.received_bytes)),
                        is_kernel ? "-" : asleep_text(s.row->end[s.side].asleep),
                        is_kernel ? fmt::format("fd {}", s.descriptor) : monitor::connection_id(*s.row),
                        is_kernel ? "" : why_text(*s.row, s.side)});
    }
    return table(rows, Fit::columns, width);
}

bool is_connection_name(const std::string &word) {
    return !word.empty() && (isdigit(static_cast<unsigned char>(word[0])) != 0 || word[0] == '[');
}

std::vector<const ConnectionRow *> find_connections(const Snapshot &snapshot, const std::string &which) {
    std::vector<const ConnectionRow *> found;
    for (const ConnectionRow &row : snapshot.rows) {
        if (monitor::connection_id(row) == which || monitor::address_text(row.end[0].address) == which ||
            monitor::address_text(row.end[1].address) == which) {
            found.push_back(&row);
        }
    }
    return found;
}

Lines one_view(const Snapshot &snapshot, const std::string &which) {
    const auto found = find_connections(snapshot, which);
    if (found.empty()) {
        throw Failure(Exit::nothing,
                      fmt::format("{}: there is no such connection, or none that is yours to see; "
                                  "sdstat --each lists them",
                                  which));
    }
    if (found.size() > 1) {
        throw Failure(Exit::usage,
                      fmt::format("{}: {} connections have that name; sdstat --each lists their ids", which,
                                  found.size()));
    }
    const ConnectionRow &row = *found[0];
    Lines out{fmt::format("connection {}, {}, for {}", monitor::connection_id(row),
                          monitor::state_name(static_cast<monitor::ConnectionState>(row.state)),
                          age(snapshot.when - row.since))};
    append(out, end_lines(snapshot, row, 0));
    append(out, end_lines(snapshot, row, 1));
    return out;
}

} // namespace sd::stat
