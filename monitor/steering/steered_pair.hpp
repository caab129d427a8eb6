// The two ends of a connection, for who says where it goes.
#pragma once
#include "monitor/operations/monitor.hpp"

#include <algorithm>
#include <memory>
#include <optional>

namespace sd::monitor {

struct Monitor::SteeredEnd {
    std::shared_ptr<Segment> segment;
    Segment::OpenOfd ofd;
    Ofd &words() const { return segment->view().ofd(ofd.index); }
    bool is_held_by(const Client &client) const {
        return std::find(ofd.holders.begin(), ofd.holders.end(), &client) != ofd.holders.end();
    }
};

/// The ends of a connection that are known.
struct Monitor::SteeredPair {
    const Link *link = nullptr;
    uint32_t slot = 0;
    std::optional<SteeredEnd> end[2];
    /// What its processes call the link, as in a ConnectionRow. At least one end is known.
    uint64_t link_name() const { return (end[0] ? end[0] : end[1])->ofd.link_id; }
    bool has_paths() const { return (end[0] && end[0]->ofd.has_paths) || (end[1] && end[1]->ofd.has_paths); }
};

} // namespace sd::monitor
