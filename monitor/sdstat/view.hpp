// What sdstat prints for people.
#pragma once
#include "monitor/sdstat/filter.hpp"
#include "monitor/sdstat/sockets.hpp"
#include "monitor/sdstat/text.hpp"

#include <string>
#include <vector>

namespace sd::stat {

using Lines = std::vector<std::string>;

/// A line for each pair of programs and server's address, or for each connection.
Lines connections_view(const Snapshot &snapshot, const Filter &filter, bool each, size_t width);
/// Listening sockets, causes, accounts, and the monitor itself.
Lines rest_view(const Snapshot &snapshot, size_t width);
/// A line for each socket, as ss(8) has it.
Lines sockets_view(const std::vector<Socket> &sockets, double now, size_t width);
/// Everything about a connection that has this id, or an end of this name. Throws Failure.
Lines one_view(const Snapshot &snapshot, const std::string &which);

/// "nginx[4711]", "(gone)".
std::string program_text(const std::string &comm, uint32_t pid);
/// "shm", or "shm/kernel" of what is sent and received.
std::string path_text(monitor::Path sends, monitor::Path receives);
const char *asleep_text(uint8_t asleep);

/// Is it the id or the name of a connection, and no filter's word?
bool is_connection_name(const std::string &word);
/// Those that are meant. Empty: none.
std::vector<const monitor::ConnectionRow *> find_connections(const Snapshot &snapshot, const std::string &which);

} // namespace sd::stat
