// Which kernel connections have libsd at both ends, also in two network namespaces, and which of these may
// be joined.
#pragma once
#include "libsd/layout/causes.hpp"
#include "monitor/discovery/pair_key.hpp"
#include "monitor/discovery/programs.hpp"
#include "monitor/discovery/tenants.hpp"

#include <chrono>
#include <map>
#include <optional>

namespace sd::monitor {

/// The configuration's section "paths".
struct Paths {
    bool discovery = false;
    std::string group;                  ///< the control group whose processes are looked at; empty: all
    std::vector<AddressMatch> networks; ///< that are asked
    std::vector<std::string> tenants;   ///< patterns; see same_tenant()
    bool between_tenants = false;       ///< tenants are joined with each other, too
    Paths();                            ///< private networks
};

/// One end, by its descriptor. The descriptor need not be kept.
struct DiscoveredEnd {
    PairKey pair;
    bool has_connected = false; ///< and was not accepted
    uint64_t netns = 0;
    std::set<unsigned> bridges; ///< that its namespace is attached to
};

/// One whose other end has libsd on another host.
struct ForeignEnd {
    PairKey pair;
    bool has_connected = false;
    std::array<uint8_t, SD_OPTION_PROOF> proof{}; ///< as the other end sent it

    /// Was it sent by the host with this key? Nobody else can have, but those who were told the key.
    bool is_of(const ProofKey &key) const;
};

class Discovery {
  public:
    /// The programs stay as long as this lives. Where they cannot be had it is off, and says why.
    explicit Discovery(Paths paths);

    bool is_on() const { return programs_ != nullptr; }
    const std::string &why_off() const { return why_off_; }
    /// What is asked from now on. The group holds from the next start on.
    void reconfigure(Paths paths);

    /// The end whose descriptor a process of the namespace `netns` has handed over. Else why there is none.
    /// It is the kernel that says so: no process states a nonce.
    Cause examine(int socket, uint64_t netns, DiscoveredEnd &end);
    /// The same where it is known that it is connected, and in the namespace `here`. Does not wait for the
    /// socket's lock.
    Cause examine_in(int socket, uint64_t here, uint64_t netns, DiscoveredEnd &end);
    /// An end whose other end another host's key has signed. `here`, `netns`: as above.
    std::optional<ForeignEnd> foreign(int socket, uint64_t here, uint64_t netns) const;
    /// By which other hosts recognise this one's ends. Nothing: it is off.
    std::optional<ProofKey> proof_key() const;
    /// Who has the end; read when it is asked for. `pidfd`: of that process.
    static Party party_of(const DiscoveredEnd &end, pid_t pid, int pidfd);
    /// Why the two must not be joined; none: they may, as far as tenants go.
    Cause objection(const DiscoveredEnd &a, const Party &party_a, const DiscoveredEnd &b,
                    const Party &party_b) const;
    /// How many ends have come to each state.
    OptionPrograms::Counts counts() const { return is_on() ? programs_->counts() : OptionPrograms::Counts{}; }

  private:
    void start();
    const std::set<unsigned> &bridges_of(int socket, uint64_t netns);

    Paths paths_;
    std::unique_ptr<OptionPrograms> programs_;
    std::string why_off_;
    struct Attached {
        std::set<unsigned> bridges;
        std::chrono::steady_clock::time_point read;
    };
    std::map<uint64_t, Attached> attached_; ///< by SO_NETNS_COOKIE
};

} // namespace sd::monitor
