// The monitor's configuration file.
#pragma once
#include "monitor/discovery/discovery.hpp"
#include "monitor/peers/peer_settings.hpp"
#include "monitor/records/accounts.hpp"
#include "monitor/service/policy.hpp"

#include <stdexcept>
#include <string>

namespace sd::monitor {

struct Limits {
    unsigned clients = 65536;         ///< channels at one time
    unsigned bridges = 2048;          ///< processes of sd-bridge
    unsigned links_per_client = 1024; ///< links a process makes by connecting
    /// That lead to one server process, each of which takes kLinkMapped of its address space; 0: no limit.
    /// Below kMaxLinks, which are all that a process can have.
    unsigned links_per_server = 8000;
    unsigned listeners_per_client = 1024;
    unsigned bells_per_client = 16384;
    unsigned segments_per_client = 64;
    /// In the order of Resource: clients, links, listeners, bells, segments, parcels, pools, offers.
    ResourceLimits per_user{32768, 65536, 16384, 262144, 65536, 16384, 16384, 65536};
    ResourceLimits per_cgroup{32768, 65536, 16384, 262144, 65536, 16384, 16384, 65536};
};

/// Counters for Prometheus.
struct Metrics {
    std::string listen;    ///< empty: not offered
    bool programs = false; ///< with names of programs
};

struct Config {
    std::string file; ///< empty: built-in defaults
    std::string socket;
    /// Where containers come; empty: they have no socket of their own. Its directory is theirs to see.
    std::string containers_socket;
    /// Programs of all users come here: to root's, or the system's with a user of its own
    bool all_users = false;
    /// Where the service manager starts an sd-bridge for who connects; empty: the monitor starts it itself
    std::string bridge_socket;
    /// Where the service manager starts sd-peers for who connects; empty: the monitor starts it itself
    std::string peers_socket;
    std::string log_level = "info";
    Limits limits;
    Policy policy;
    Metrics metrics;
    Paths paths;
    PeersSettings peers;
};

/// What is wrong with a configuration, as "file:line: key: reason".
struct ConfigError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Reads a file on top of `defaults`; throws ConfigError. Unknown keys are errors: a misspelt rule must not
/// go unnoticed.
Config load_config(const std::string &file, Config defaults);

} // namespace sd::monitor
