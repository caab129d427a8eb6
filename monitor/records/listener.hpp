// A listening socket that accelerated processes hold, and the segment its acceptors share.
#pragma once
#include "libsd/layout/causes.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/kernel/packet_filter.hpp"
#include "monitor/records/directory.hpp"
#include "monitor/records/link.hpp"
#include "monitor/service/event_loop.hpp"
#include "monitor/service/policy.hpp"

#include <string>
#include <vector>

namespace sd::monitor {

/// What a client proved by handing over a listening socket.
struct ListenProof {
    uint64_t netns = 0;  ///< SO_NETNS_COOKIE
    uint64_t cookie = 0; ///< SO_COOKIE: names the socket, whoever holds it
    uid_t owner = 0; ///< whom the kernel takes the socket for: only sockets of one user may share an address
    ListenAddress address;
};
/// Looks at a passed descriptor. 0, or a negative errno and the cause to record.
[[nodiscard]] int examine_listener(int fd, ListenProof &proof, Cause &cause);
/// SO_NETNS_COOKIE of any socket, 0 if it cannot be had.
uint64_t netns_cookie(int fd);
/// The network namespace that possession of this socket opens: that of a TCP socket, since whoever has one
/// can connect there, whatever it was used for before. 0 for all others: Unix sockets are handed about
/// between namespaces, by services, and by ourselves.
uint64_t proven_netns(int fd);
/// Whether a connection to that address would come to the listener.
bool takes(const ListenAddress &listener, const ListenAddress &name);
/// The same of a name that a client has written down.
bool takes(const ListenAddress &listener, const SlotAddress &name);
/// Whether a connection could be meant for both.
bool overlap(const ListenAddress &a, const ListenAddress &b);

/// Of its directory, and of what reads its rules.
constexpr unsigned kDescriptorsOfNamespace = 5;

struct Namespace {
    uint64_t cookie = 0;
    Charge charge; ///< whoever came first
    DirectoryFile directory;
    std::unique_ptr<PacketFilter> filter; ///< null: not asked for yet
    EventLoop::Watch filter_watch = 0;
    EventLoop::Timer rules_timer = 0; ///< while it waits, the rules are not up to date
    EventLoop::Clock::time_point rules_read{};
    EventLoop::Clock::duration reading_took{};
    Namespace(uint64_t cookie_, uint64_t epoch) : cookie(cookie_), directory(epoch) {}
};

struct AcceptBell {
    const Client *owner;
    std::shared_ptr<BellFd> eventfd;
    Domain domain; ///< of the owner, when it was looked at last
};

struct Listener {
    uint32_t id = 0;
    Namespace *ns = nullptr;
    uint64_t cookie = 0;
    uid_t owner = 0; ///< see ListenProof
    int watch = -1;  ///< of the monitor's ListenerWatch
    ListenAddress address;
    uid_t uid = 0; ///< of the process that registered it; what policy looks at
    gid_t gid = 0;
    std::string exe, unit;
    uint32_t backlog = 0;
    /// Who had it under a former monitor, and has not come back yet (kept_listeners.cpp)
    pid_t expected = 0;
    int directory_index = -1;
    UniqueFd memfd;
    Charge charge;
    Mapping map;
    std::set<Client *> holders;
    std::vector<Link *> place; ///< same index as ListenerSegment::link
    unsigned links = 0;        ///< of these, and how many by whom
    std::map<const Account *, unsigned> links_by;
    std::vector<AcceptBell> accept_bells;
    bool is_detached = false; ///< not in the directory, since a holder is detached
    bool orphan = false;      ///< held by nobody; see orphan_listeners.cpp
    unsigned looks = 0;
    EventLoop::Timer timer = 0;
    // crossed_listeners.cpp:
    uint64_t crossings = 0, taken_before = 0; ///< since it was tried last; taken() then
    uint64_t taken_from_former_links = 0;
    EventLoop::Clock::time_point kernel_until{}; ///< until then its connections begin on the kernel
    std::chrono::milliseconds kernel_pause{0};   ///< how long that was last

    Listener(uint32_t id_, const ListenProof &proof, Namespace *ns_);
    Identity identity() const { return {uid, gid, exe, unit}; }
    ListenerSegment &segment() const { return *reinterpret_cast<ListenerSegment *>(map.base()); }
    /// Adds a link at a free place; false if there is none, if some listener has the link, or this one has
    /// another with its id: acceptors know links by that. `syn_head`: where accepting begins.
    [[nodiscard]] bool add(Link &link, uint32_t syn_head);
    void remove(Link &link);
    /// Takes it out of the directory, and has clients make no further request on its links.
    void unlist();
    /// No thread of the process that signs so (wire::folded) is in the kernel's accept any more.
    void forget_acceptors(uint32_t signature);
    /// Tells the acceptors to look at their links again.
    void bump() { segment().link_sequence.fetch_add(1, std::memory_order_seq_cst); }
    void ring_accept_bells() const;
    [[nodiscard]] bool crosses() const;
    [[nodiscard]] uint64_t taken() const;
};

/// First of the client ports for the n-th link of a listener: spread over the kernel's own range for such
/// ports.
uint32_t port_base(uint32_t place, uint32_t listener);

} // namespace sd::monitor
