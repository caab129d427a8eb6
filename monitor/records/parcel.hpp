// A connection on its way to another process: see the rules in libsd/layout/protocol.hpp.
#pragma once
#include "libsd/layout/protocol.hpp"
#include "monitor/kernel/client_socket.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/records/segment.hpp"
#include "monitor/service/event_loop.hpp"

namespace sd::monitor {

/// A running sd-bridge.
struct BridgeProgram {
    uint64_t id = 0;
    UniqueFd channel;
    EventLoop::Watch watch = 0;
    pid_t pid = 0; ///< 0: the service manager is starting it
    UniqueFd pidfd;
    Domain domain;               ///< whose connections it carries, and no others
    std::set<uint64_t> segments; ///< Segment::name of what it got: it has those mapped for as long as it runs

    /// Can it take a connection of that segment? Its own segment counts as well.
    bool has_room_for(uint64_t segment) const {
        return segments.count(segment) != 0 || segments.size() + 1 < kMaxSegments;
    }
};

struct Parcel {
    uint64_t id = 0;
    uint64_t cookie = 0;          ///< SO_COOKIE of the kernel socket that is passed
    ino_t inode = 0;              ///< of the same
    unsigned looks = 0;           ///< how often it was looked for among the descriptors of all processes
    unsigned seen_at_library = 0; ///< how often at somebody's who should claim it
    Charge charge;
    ClientSocket far; ///< the other end of its connection; none once a bridge has it
    EventLoop::Watch watch = 0;
    EventLoop::Timer timer = 0;

    HandoffRecord handoff{};
    std::shared_ptr<Segment> segment;
    Link *link = nullptr; ///< counted in LinkSide::parcels
    uint64_t sender = 0;  ///< client id
    uid_t uid = 0;        ///< the sender's
    wire::BridgeStart start{};

    bool bridged = false;      ///< sd-bridge has been told of it, and has not claimed it yet
    uint64_t bridge = 0;       ///< then: the BridgeProgram's id
    uint64_t token_cookie = 0; ///< then: SO_COOKIE of the socket that stands for it towards sd-bridge
};

} // namespace sd::monitor
