// What sdstat prints for programs: JSON, and comma-separated values. The fields are described in sdstat(1).
#pragma once
#include "monitor/sdstat/filter.hpp"
#include "monitor/sdstat/sockets.hpp"

#include <string>
#include <vector>

namespace sd::stat {

/// One line. `kernel`: of `-p`, further sockets.
std::string json_text(const Snapshot &snapshot, const Filter &filter, const std::vector<Socket> &kernel);
/// A header, and a line for each connection.
std::string csv_text(const Snapshot &snapshot, const Filter &filter);
/// The same for sockets.
std::string csv_text(const std::vector<Socket> &sockets);

/// In quotes where RFC 4180 asks for them.
std::string csv_field(const std::string &text);

} // namespace sd::stat
