// JSON and comma-separated values.
#include "monitor/sdstat/export.hpp"

#include <algorithm>
#include <fmt/compile.h>
#include <fmt/core.h>
#include <iterator>

namespace sd::stat {

using monitor::ConnectionRow;
using nlohmann::json;

namespace {

std::string number_or_nothing(int64_t value) { return value < 0 ? "" : std::to_string(value); }
std::string pid_or_nothing(uint32_t pid) { return pid == 0 ? "" : std::to_string(pid); }

const char *asleep_field(uint8_t asleep) {
    static constexpr const char *names[] = {"", "data", "room", "data+room"};
    return names[asleep & 3];
}

std::string unit_of(const Snapshot &snapshot, uint32_t pid) {
    const auto it = snapshot.processes.find(pid);
    return it == snapshot.processes.end() ? "" : it->second.unit;
}

json socket_json(const Socket &s) {
    const auto known = [](int64_t value) { return value < 0 ? json() : json(value); };
    return {{"state", filter_name(s.state)},
            {"local", monitor::address_text(s.local)},
            {"peer", s.peer.port == 0 ? json() : json(monitor::address_text(s.peer))},
            {"descriptor", s.descriptor},
            {"pid", s.pid},
            {"send_queue", known(s.send_queue)},
            {"receive_queue", known(s.receive_queue)},
            {"sent_bytes", s.sent_bytes},
            {"received_bytes", s.received_bytes},
            {"path", monitor::path_name(s.send_path)}};
}

} // namespace

std::string csv_field(const std::string &text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) {
        return text;
    }
    std::string result = "\"";
    for (const char c : text) {
        result += c == '"' ? "\"\"" : std::string(1, c);
    }
    return result + '"';
}

std::string json_text(const Snapshot &snapshot, const Filter &filter, const std::vector<Socket> &kernel) {
    // The connections are many, and are not made into a tree first.
    std::string text = snapshot.rest.dump(-1, ' ', false, json::error_handler_t::replace);
    text.pop_back(); // its closing brace
    text += ",\"connections\":[";
    bool is_first = true;
    for (const ConnectionRow &row : snapshot.rows) {
        if (filter.matches(snapshot, row)) {
            text += is_first ? "" : ",";
            monitor::append_json(text, row, snapshot.pids.data());
            is_first = false;
        }
    }
    text += ']';
    if (!kernel.empty()) {
        json sockets = json::array();
        for (const Socket &s : kernel) {
            sockets.push_back(socket_json(s));
        }
        text += ",\"kernel_sockets\":" + sockets.dump();
    }
    return text + "}\n";
}

std::string csv_text(const Snapshot &snapshot, const Filter &filter) {
    std::string text =
        "id,state,since,client_address,client_pid,client_program,client_unit,client_asleep,server_address,"
        "server_pid,server_program,server_unit,server_asleep,to_server_path,to_server_bytes,to_server_"
        "messages,"
        "to_server_queued,to_server_ring,to_client_path,to_client_bytes,to_client_messages,to_client_queued,"
        "to_client_ring,to_server_why,to_client_why,to_server_given,to_client_given,to_server_mapped,"
        "to_client_mapped\n";
    for (const ConnectionRow &row : snapshot.rows) {
        if (!filter.matches(snapshot, row)) {
            continue;
        }
        auto to = std::back_inserter(text);
        fmt::format_to(to, FMT_COMPILE("{},{},{:.3f}"), monitor::connection_id(row),
                       monitor::state_name(static_cast<monitor::ConnectionState>(row.state)), row.since);
        for (const monitor::RowEnd &end : row.end) {
            fmt::format_to(to, FMT_COMPILE(",{},{},{},{},{}"), monitor::address_text(end.address),
                           pid_or_nothing(end.pid), csv_field(comm_of(end)),
                           csv_field(unit_of(snapshot, end.pid)), asleep_field(end.asleep));
        }
        for (unsigned side = 0; side < 2; ++side) {
            fmt::format_to(to, FMT_COMPILE(",{},{},{},{},{}"),
                           monitor::path_name(static_cast<monitor::Path>(row.end[side].path)),
                           monitor::bytes_from(row, side), monitor::messages_from(row, side),
                           number_or_nothing(monitor::queued(row, side)),
                           kRingSize[std::min<unsigned>(row.end[side].ring, kRingClasses - 1)]);
        }
        for (const monitor::RowEnd &end : row.end) {
            text += ',';
            text += monitor::blocker_name(static_cast<monitor::Blocker>(end.blocker));
        }
        for (const auto count : {&monitor::RowHanded::given, &monitor::RowHanded::mapped}) {
            for (const monitor::RowHanded &handed : row.handed) {
                text += handed.channels == 0 ? "," : fmt::format(FMT_COMPILE(",{}"), handed.*count);
            }
        }
        text += '\n';
    }
    return text;
}

std::string csv_text(const std::vector<Socket> &sockets) {
    std::string text =
        "state,local,peer,pid,program,unit,peer_pid,peer_program,send_path,receive_path,send_queue,"
        "receive_queue,sent_bytes,received_bytes,since,connection,descriptor\n";
    for (const Socket &s : sockets) {
        fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                       filter_name(s.state), monitor::address_text(s.local),
                       s.peer.port == 0 ? "" : monitor::address_text(s.peer), pid_or_nothing(s.pid),
                       csv_field(s.comm), csv_field(s.unit), pid_or_nothing(s.peer_pid), csv_field(s.peer_comm),
                       monitor::path_name(s.send_path), monitor::path_name(s.receive_path),
                       number_or_nothing(s.send_queue), number_or_nothing(s.receive_queue), s.sent_bytes,
                       s.received_bytes, s.row == nullptr ? "" : fmt::format("{:.3f}", s.since),
                       s.row == nullptr ? "" : monitor::connection_id(*s.row), number_or_nothing(s.descriptor));
    }
    return text;
}

} // namespace sd::stat
