// Who may be connected with whom through shared memory.
#include "monitor/service/policy.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <cstring>
#include <fnmatch.h>

namespace sd::monitor {

namespace {

template <typename T> bool contains(const std::vector<T> &list, const T &value) {
    return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

template <typename T> std::optional<T> number(const std::string &text, T limit) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value > limit) {
        return std::nullopt;
    }
    return static_cast<T>(value);
}

/// Is the group, or one above it, what a pattern says?
bool is_in_any(const std::vector<std::string> &patterns, const std::string &group) {
    for (size_t end = group.find('/', 1);; end = group.find('/', end + 1)) {
        const std::string part = group.substr(0, end);
        if (!part.empty() && std::any_of(patterns.begin(), patterns.end(), [&](const std::string &pattern) {
                return fnmatch(pattern.c_str(), part.c_str(), FNM_PATHNAME) == 0;
            })) {
            return true;
        }
        if (end == std::string::npos) {
            return false;
        }
    }
}

bool matches_place(const Rule &rule, const ListenAddress &listener) {
    const auto address = [&](const AddressMatch &m) { return m.matches(listener.ip); };
    const auto port = [&](const PortRange &r) { return r.matches(listener.port); };
    return (rule.addresses.empty() || std::any_of(rule.addresses.begin(), rule.addresses.end(), address)) &&
           (rule.ports.empty() || std::any_of(rule.ports.begin(), rule.ports.end(), port));
}

} // namespace

bool PartyMatch::matches(const Identity &who) const {
    const auto path = [&](const std::string &pattern) {
        return !who.exe.empty() && fnmatch(pattern.c_str(), who.exe.c_str(), 0) == 0;
    };
    return contains(uids, who.uid) && contains(gids, who.gid) &&
           (exes.empty() || std::any_of(exes.begin(), exes.end(), path)) &&
           (cgroups.empty() || is_in_any(cgroups, who.cgroup));
}

bool AddressMatch::matches(const uint8_t (&address)[16]) const {
    const unsigned whole = prefix / 8, rest = prefix % 8;
    return std::memcmp(ip, address, whole) == 0 &&
           (rest == 0 || ((ip[whole] ^ address[whole]) >> (8 - rest)) == 0);
}

std::optional<AddressMatch> AddressMatch::parse(const std::string &text) {
    AddressMatch result;
    const size_t slash = text.find('/');
    const std::string host = text.substr(0, slash);
    unsigned offset = 0;
    if (inet_pton(AF_INET, host.c_str(), result.ip + 12) == 1) {
        result.ip[10] = result.ip[11] = 0xff;
        offset = 96;
    } else if (inet_pton(AF_INET6, host.c_str(), result.ip) != 1) {
        return std::nullopt;
    }
    result.prefix = 128;
    if (slash != std::string::npos) {
        const auto bits = number<unsigned>(text.substr(slash + 1), 128 - offset);
        if (!bits) {
            return std::nullopt;
        }
        result.prefix = offset + *bits;
    }
    return result;
}

std::optional<PortRange> PortRange::parse(const std::string &text) {
    const size_t dash = text.find('-');
    const auto from = number<uint16_t>(text.substr(0, dash), 65535);
    const auto to = dash == std::string::npos ? from : number<uint16_t>(text.substr(dash + 1), 65535);
    if (!from || !to || *from > *to) {
        return std::nullopt;
    }
    return PortRange{*from, *to};
}

namespace {

const Rule *first_match(const std::vector<Rule> &rules, const Identity &client, const Identity &server,
                        const ListenAddress &listener) {
    const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule &rule) {
        return rule.client.matches(client) && rule.server.matches(server) && matches_place(rule, listener);
    });
    return found == rules.end() ? nullptr : &*found;
}

bool is_allowed(Verdict verdict, const Identity &client, const Identity &server) {
    return verdict == Verdict::allow || (verdict == Verdict::same_user && client.uid == server.uid);
}

bool matches_any(const std::vector<std::string> &patterns, const std::string &text) {
    return !text.empty() && std::any_of(patterns.begin(), patterns.end(), [&](const std::string &pattern) {
        return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
    });
}

} // namespace

bool Policy::allows(const Identity &client, const Identity &server, const ListenAddress &listener) const {
    const Rule *rule = first_match(rules, client, server, listener);
    if (!is_allowed(rule == nullptr ? fallback : rule->action, client, server)) {
        return false;
    }
    return std::all_of(profiles.begin(), profiles.end(), [&](const Profile &profile) {
        const Rule *own = profile.matches(client) || profile.matches(server)
                              ? first_match(profile.rules, client, server, listener)
                              : nullptr;
        return own == nullptr || is_allowed(own->action, client, server);
    });
}

bool Policy::allows_far(const Identity &who, bool is_server, const ListenAddress &listener) const {
    const auto decides = [&](const Rule &rule) {
        const PartyMatch &own = is_server ? rule.server : rule.client,
                         &other = is_server ? rule.client : rule.server;
        const bool refuses = rule.action == Verdict::deny || !rule.rdma;
        return own.matches(who) && matches_place(rule, listener) && (refuses || !other.is_asking());
    };
    const auto denies = [&](const std::vector<Rule> &all) {
        const auto found = std::find_if(all.begin(), all.end(), decides);
        return found == all.end() ? std::nullopt : std::optional(found->action == Verdict::deny || !found->rdma);
    };
    return !denies(rules).value_or(fallback == Verdict::deny) &&
           std::none_of(profiles.begin(), profiles.end(), [&](const Profile &profile) {
               return profile.matches(who) && (!profile.rdma || denies(profile.rules).value_or(false));
           });
}

Birth Policy::birth_of(const Identity &client, const Identity &server, const ListenAddress &listener) const {
    const Rule *rule = first_match(rules, client, server, listener);
    const Birth general = rule == nullptr ? birth : rule->birth.value_or(birth);
    std::optional<Birth> said;
    for (const Profile &profile : profiles) {
        if (profile.birth && (profile.matches(client) || profile.matches(server))) {
            // Of several, the one that leaves most to the kernel.
            said = !said || *profile.birth == Birth::kernel || *said == Birth::shm ? *profile.birth : *said;
        }
    }
    if (!said || general == Birth::kernel) {
        return general;
    }
    return *said;
}

bool Profile::matches(const Identity &who) const {
    return matches_any(programs, who.exe) || matches_any(units, who.unit);
}

wire::Spin Policy::spin(const Identity &who) const {
    const auto found = std::find_if(profiles.begin(), profiles.end(), [&](const Profile &profile) {
        return profile.spin && profile.matches(who);
    });
    return found == profiles.end() ? wire::Spin::automatic : *found->spin;
}

unsigned most_ring_within(uint64_t bytes) {
    constexpr uint64_t kRings = 4096;
    unsigned cls = kLeastRing;
    while (cls + 1 < kRingClasses && kRingSize[cls + 1] <= bytes / kRings) {
        ++cls;
    }
    return cls;
}

uint32_t most_arenas_within(uint64_t bytes) {
    constexpr uint64_t kShare = 4;
    const uint64_t units = std::clamp<uint64_t>(bytes / kShare / wire::kArenasUnit, 1, UINT32_MAX);
    return static_cast<uint32_t>(units == sizeof(Directory) ? units - 1 : units);
}

std::optional<unsigned> Policy::most_ring(const Identity &who) const {
    const auto found = std::find_if(profiles.begin(), profiles.end(), [&](const Profile &profile) {
        return profile.most_ring && profile.matches(who);
    });
    return found == profiles.end() ? std::nullopt : found->most_ring;
}

bool Policy::may_listen(const Identity &server, const ListenAddress &listener) const {
    for (const Rule &rule : rules) {
        if (rule.server.matches(server) && matches_place(rule, listener)) {
            if (rule.action != Verdict::deny) {
                return true;
            }
            if (!rule.client.is_asking()) {
                return false;
            }
        }
    }
    return fallback != Verdict::deny;
}

} // namespace sd::monitor
