// What the monitor says of all connections at one moment.
#pragma once
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/records/connection_row.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace sd::stat {

/// As in the table of sdstat(1).
enum class Exit {
    done = 0,
    failed = 1,  ///< no monitor, no right, output that cannot be written
    usage = 2,   ///< an option, a filter or a name that cannot be
    nothing = 3, ///< the process or connection that was named is not there
};

struct Failure : std::runtime_error {
    Failure(Exit status, const std::string &message) : std::runtime_error(message), status(status) {}
    Exit status;
};

struct Process {
    std::string comm, unit; ///< unit: the last part of its control group; empty if not known
    double sleeps = 0, takeovers = 0, ring_changes = 0;
};

struct Snapshot {
    std::vector<monitor::ConnectionRow> rows;
    std::vector<uint32_t> pids; ///< to which rows point
    nlohmann::json rest;        ///< the document of sdstat(1), without connections
    std::map<uint32_t, Process> processes;
    double when = 0; ///< seconds since 1970
};

/// Connects to the monitor at `socket`, or to the one that this user's programs use if that is empty. Throws
/// Failure.
monitor::UniqueFd find_monitor(const std::string &socket);
/// Asks the monitor at `socket`, or the one that this user's programs use if that is empty. Throws Failure.
Snapshot take_snapshot(const std::string &socket);

/// Bytes as they came: a document that is to be shown although it is not understood.
Snapshot read_snapshot(const std::string &bytes);

/// "redis-server.service" of "/system.slice/redis-server.service".
std::string unit_of_group(const std::string &group);
std::string comm_of(const monitor::RowEnd &end);

} // namespace sd::stat
