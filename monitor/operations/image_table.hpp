// The table that an exec leaves, as the monitor reads it.
#pragma once
#include "monitor/records/client.hpp"
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sd::monitor {

/// What a table says is kept, as far as the client has it.
struct Retained {
    std::map<uint64_t, std::vector<uint64_t>> ofds; ///< by the client's name of the segment; bits
    std::set<std::pair<uint64_t, unsigned>> links;  ///< id and side
    std::set<uint32_t> listeners;
};

/// Nothing: it is no sound table. The client may be writing to it: each word is read once. Counts are
/// checked, names are looked up.
std::optional<Retained> read_table(int fd, const Client &client);

} // namespace sd::monitor
