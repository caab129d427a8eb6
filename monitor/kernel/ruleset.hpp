// The packet filter's rules of a network namespace, and whether one of them could stop or redirect a
// connection that stays on this host.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sd::monitor {

/// A connection over the loopback device, as far as rules can tell it before it is made.
struct LocalConnection {
    uint16_t port = 0; ///< of the listener
    bool v6 = false;
    /// Both ends have an address of 127.0.0.0/8, or ::1; else it is any two of this host.
    bool loopback = false;
};

/// What `nft -j list ruleset` says. What is not understood counts as a rule that may stop anything.
class Ruleset {
  public:
    Ruleset();
    ~Ruleset();
    Ruleset(Ruleset &&) noexcept;
    Ruleset &operator=(Ruleset &&) noexcept;
    /// Throws nlohmann::json::exception for what is no such list.
    explicit Ruleset(const nlohmann::json &listed);

    /// Whether, of the packets that make such a connection, some rule could refuse or change one. Rules that
    /// only replies could meet are not looked at for their ports.
    bool may_object(const LocalConnection &to) const;

  private:
    struct Chain {
        std::string family, hook, type, policy, device;
        std::vector<nlohmann::json> rules; ///< their expressions
    };
    enum class Matches { no, maybe, yes };
    enum class End { goes_on, accepted, may_object };
    struct Walk;

    End walk(const Chain &chain, const Walk &walk, unsigned depth) const;
    /// `tables`: family and name before the chain's.
    std::map<std::string, Chain> chains_;
};

} // namespace sd::monitor
