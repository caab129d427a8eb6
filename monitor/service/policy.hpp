// Who may be connected with whom through shared memory.
#pragma once
#include "libsd/layout/protocol.hpp"
#include "monitor/records/directory.hpp"

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

struct Identity {
    uid_t uid = 0;
    gid_t gid = 0;
    std::string exe;    ///< empty: not known, matches no pattern
    std::string unit{}; ///< of the system's service manager: "nginx.service"; empty: it runs in none
    /// Path of its control group in the unified hierarchy, when it said hello; empty: not known, matches none
    std::string cgroup{};
};

/// What a rule asks of one end. An empty list asks nothing.
struct PartyMatch {
    std::vector<uid_t> uids;
    std::vector<gid_t> gids;
    std::vector<std::string> exes;      ///< fnmatch patterns of the program's path
    std::vector<std::string> cgroups{}; ///< fnmatch patterns of a control group, or of one above it
    /// Does it ask anything?
    bool is_asking() const { return !uids.empty() || !gids.empty() || !exes.empty() || !cgroups.empty(); }
    bool matches(const Identity &who) const;
};

struct AddressMatch {
    uint8_t ip[16]{}; ///< v4-mapped for v4
    unsigned prefix = 0;
    bool matches(const uint8_t (&address)[16]) const;
    /// "127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"; nothing if it is none of these.
    static std::optional<AddressMatch> parse(const std::string &text);
};

struct PortRange {
    uint16_t from = 0, to = 65535;
    bool matches(uint16_t port) const { return from <= port && port <= to; }
    /// "80", "8000-8999".
    static std::optional<PortRange> parse(const std::string &text);
};

enum class Verdict { allow, deny, same_user };

/// How an allowed connection begins.
enum class Birth {
    automatic, ///< in shared memory unless something in the kernel could object
    kernel,    ///< as a TCP connection of the kernel
    shm,       ///< in shared memory, whatever the kernel could object
};

struct Rule {
    Verdict action = Verdict::allow;
    PartyMatch client, server;
    std::vector<AddressMatch> addresses; ///< of the listener
    std::vector<PortRange> ports;
    std::optional<Birth> birth; ///< nothing: as the policy says
    bool rdma = true;           ///< what it allows may go over RDMA, with another host
};

/// The class of a ring that every program may use (most_class() in libsd).
constexpr unsigned kLeastRing = 2;
/// The class of the largest ring that a program may use whose control group has that much memory. Rings are
/// memory of the group that the kernel cannot take back: when it has no other left, it kills. So some
/// thousand connections that are full both ways fit in, or fewer with rings of kLeastRing.
unsigned most_ring_within(uint64_t bytes);
/// How much of so much memory the arenas of one process may take, in wire::kArenasUnit. Never 0, nor the size
/// of a directory (wire::HelloReply).
uint32_t most_arenas_within(uint64_t bytes);

/// What is said of a program or a unit, whoever it talks to (profiles.hpp).
struct Profile {
    std::string file;
    std::vector<std::string> programs, units; ///< fnmatch patterns, of which one must match
    std::vector<Rule> rules; ///< refuse what the policy allows; the first that matches decides
    std::optional<Birth> birth;
    std::optional<wire::Spin> spin;
    std::optional<unsigned> most_ring; ///< class of the largest ring
    bool rdma = true;                  ///< its connections may go over RDMA

    bool matches(const Identity &who) const;
};

struct Policy {
    Verdict fallback = Verdict::same_user; ///< where no rule matches
    std::vector<Rule> rules;               ///< the first that matches decides
    Birth birth = Birth::automatic;
    std::vector<Profile> profiles; ///< by name

    bool allows(const Identity &client, const Identity &server, const ListenAddress &listener) const;
    /// Of a connection whose other end is on another host, of which nothing more is known: `who` is its
    /// server or its client. What a rule asks of the other end keeps it from allowing, and not from refusing.
    /// The same user is not asked for: that is for memory that two programs share, and these share none.
    bool allows_far(const Identity &who, bool is_server, const ListenAddress &listener) const;
    /// Of a connection that is allowed.
    Birth birth_of(const Identity &client, const Identity &server, const ListenAddress &listener) const;
    /// Whether anyone at all might connect to this listener: if not, it is not worth listing.
    bool may_listen(const Identity &server, const ListenAddress &listener) const;
    /// How that program looks before it sleeps, and the class of its largest ring, if a profile says.
    wire::Spin spin(const Identity &who) const;
    std::optional<unsigned> most_ring(const Identity &who) const;
};

} // namespace sd::monitor
