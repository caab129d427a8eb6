// A channel to the monitor and the process at its other end, with all that it has registered.
#pragma once
#include "monitor/hosts/backoff.hpp"
#include "monitor/kernel/client_socket.hpp"
#include "monitor/records/listener.hpp"
#include "monitor/records/segment.hpp"
#include "monitor/service/event_loop.hpp"
#include "monitor/service/policy.hpp"

#include <map>
#include <string>

namespace sd::monitor {

using OfferKey = std::pair<uint64_t, uint64_t>; ///< network namespace and cookie of the socket

struct Client {
    enum class Kind {
        fresh,    ///< connected, has not said what it is
        presence, ///< only says that somebody is here
        expected, ///< made for a child by its parent before fork; the child has not spoken yet
        process,  ///< a process with libsd
        ended,    ///< it has ended, and what it held is ending
    };

    uint64_t id = 0;
    Kind kind = Kind::fresh;
    /// None: the process gave up its channel (exec) but a presence says that it goes on
    ClientChannel channel;
    EventLoop::Watch channel_watch = 0;
    UniqueFd pidfd;
    EventLoop::Watch pidfd_watch = 0;

    bool unread = false;    ///< does not read its replies, so none of its requests is answered
    bool awaits = false;    ///< its turn to be answered, and is not read from before
    bool stays = false;     ///< Op::stay
    bool entered = false;   ///< Op::enter: its other end may lie in a queue, and cannot be closed by us
    bool detached = false;  ///< what it has and makes anew is the kernel's
    bool sandboxed = false; ///< in a sandbox: only what living connections need is answered
    bool contained = false; ///< it, or whoever had its channel made, came by the containers' socket
    bool leaving = false;   ///< about to execute something that takes nothing over
    bool impatient = false; ///< gave up waiting for an answer of ours: it lives, and comes back with a hello

    std::optional<uid_t> last_sender; ///< of a packet
    Payer payer;                      ///< of what it has us hold
    pid_t payer_pid = 0;              ///< whose user and group those are
    Charge charge;
    Copies copies;
    pid_t pid = 0; ///< 0: not known, or not visible from here (another pid namespace)
    uint64_t start = 0;
    Identity who;
    std::string comm;
    Namespace *ns = nullptr;
    ino_t netns_inode = 0; ///< where the process was when it proved that it may be in `ns`; 0: not to be seen
    uint64_t lineage = 0;  ///< Domain::lineage
    unsigned filters = 0;  ///< Domain::filters when the lineage began, or the channel was kept
    uint64_t bridge = 0;   ///< the BridgeProgram that it is
    /// See bell_domain(), and whose it was then
    mutable std::optional<BellDomain> bell_domain;
    mutable std::pair<uid_t, gid_t> bell_domain_of;

    struct Share {
        std::shared_ptr<Segment> segment;
        unsigned proc_index;
        uint64_t name; ///< what this client calls the segment
    };
    std::vector<Share> segments;
    std::shared_ptr<Segment> own; ///< the one it created

    struct Attachment {
        Link *link;
        bool side[2];
        bool untold[2]{}; ///< made for ends that it has offered; it has not heard of it, and cannot let go
    };
    std::unordered_map<uint64_t, Attachment> links; ///< by the link id this client knows it under
    std::set<Listener *> listeners;
    /// By kernel number, so that each is kept open once
    std::unordered_map<uint64_t, std::weak_ptr<BellFd>> eventfds;
    unsigned bells_given = 0;
    unsigned links_made = 0;
    /// offers.cpp: whose other ends have not come, or that it has not asked for since
    std::set<OfferKey> offers;
    /// After queue pairs were lost, by host (null: this one) and number of the process there
    std::map<std::pair<const void *, uint64_t>, Backoff> lost_pairs;
    Backoff pairing;      ///< until it is given a further link that needs a queue pair
    uint32_t arenas = 0;  ///< HelloReply::arenas
    bool no_room = false; ///< could not map a link, and has not let go of one since
    uint64_t ending = 0;  ///< the Ending of what it held; 0: none
    /// Names and sides of links that it lets go of when that is over
    std::vector<std::pair<uint64_t, unsigned>> to_drop;

    Link *link(uint64_t link_id, unsigned side) const {
        const auto it = links.find(link_id);
        return it != links.end() && side < 2 && it->second.side[side] ? it->second.link : nullptr;
    }
};

/// A process may be more than one client.
inline bool same_process(const Client &a, const Client &b) {
    return &a == &b || (a.pid > 0 && a.pid == b.pid && a.start == b.start);
}

/// hosts/lost_links.cpp: a queue pair that the client had connected by may have been lost with the link.
void note_loss(Client &connector, Link &link);

/// Of somebody else than who asks, as it is now.
inline Domain domain_now(const Client &client) {
    Domain domain = client.pid > 0 ? read_domain(client.pid) : Domain{};
    domain.lineage = client.lineage;
    return domain;
}

} // namespace sd::monitor
