// All connections that somebody may see, put together from what each side's segment says.
#pragma once
#include "monitor/records/client.hpp"
#include "monitor/records/connection_row.hpp"

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace sd::monitor {

struct ConnectionTable {
    std::vector<ConnectionRow> rows; ///< by link and slot
    std::vector<uint32_t> pids;
};

/// After a restart: a process that may hold an end of a link and has not come back yet.
using AwaitedHolders = std::map<std::pair<const Link *, unsigned>, pid_t>;

/// Looks at memory that programs go on using; nothing of it is written, nobody waits. `may_see`: a row is
/// made if that holds for a holder of either end.
ConnectionTable list_connections(const std::vector<std::shared_ptr<Segment>> &segments,
                                 const AwaitedHolders &awaited,
                                 const std::function<bool(const Client &)> &may_see);

} // namespace sd::monitor
