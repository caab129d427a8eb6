// Tenants, read off the tree of control groups.
#include "monitor/discovery/tenants.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/records/accounts.hpp"

#include <algorithm>
#include <cctype>
#include <fnmatch.h>
#include <poll.h>

namespace sd::monitor {

namespace {

/// Where the component that begins at `from` ends.
size_t component_end(const std::string &path, size_t from) {
    return std::min(path.find('/', from + 1), path.size());
}

/// The leading part of the path that a pattern names; empty: none does.
std::string named_part(const std::string &path, const std::vector<std::string> &patterns) {
    for (size_t end = component_end(path, 0);; end = component_end(path, end)) {
        std::string part = path.substr(0, end);
        for (const std::string &pattern : patterns) {
            if (fnmatch(pattern.c_str(), part.c_str(), FNM_PATHNAME) == 0) {
                return part;
            }
        }
        if (end == path.size()) {
            return {};
        }
    }
}

/// Engines name the group of a container by its identifier, 64 hexadecimal digits, with something of their
/// own in front. What stands before it is the same for all that one engine starts at one place; empty: none
/// of them did.
std::string engine_of(const std::string &path) {
    constexpr size_t kIdentifier = 64;
    for (size_t at = 0; at + kIdentifier <= path.size(); ++at) {
        const auto begin = path.begin() + static_cast<std::ptrdiff_t>(at);
        if (std::all_of(begin, begin + kIdentifier, [](unsigned char c) { return std::isxdigit(c) != 0; })) {
            return path.substr(0, at);
        }
    }
    return {};
}

} // namespace

Party read_party(pid_t pid, int pidfd) {
    Party party;
    static const Domain own = read_domain(getpid());
    const Domain domain = pid > 0 ? read_domain(pid) : Domain{};
    party.group = whole_group_of(pid, pidfd);
    party.is_contained = !domain.known || domain.pid != own.pid || domain.user != own.user;
    pollfd ended{pidfd, POLLIN, 0};
    if (pid <= 0 || pidfd < 0 || poll(&ended, 1, 0) != 0) {
        party.group.assign(1, '?');
    }
    return party;
}

bool same_tenant(const Party &a, const Party &b, const std::vector<std::string> &patterns) {
    if (a.group == "?" || b.group == "?") {
        return false;
    }
    const std::string part_a = named_part(a.group, patterns), part_b = named_part(b.group, patterns);
    if (!part_a.empty() && !part_b.empty()) {
        return part_a == part_b;
    }
    std::string engine_a = engine_of(a.group), engine_b = engine_of(b.group);
    const auto is_of_host = [](const Party &party, const std::string &part, const std::string &engine) {
        return part.empty() && engine.empty() && !party.is_contained;
    };
    if (is_of_host(a, part_a, engine_a) || is_of_host(b, part_b, engine_b)) {
        return true;
    }
    if (!part_a.empty() || !part_b.empty()) {
        return false;
    }
    engine_a = engine_a.empty() ? a.group : engine_a; // made by hand: what one unit or session has made
    engine_b = engine_b.empty() ? b.group : engine_b;
    return engine_a == engine_b && std::any_of(a.bridges.begin(), a.bridges.end(),
                                               [&](unsigned bridge) { return b.bridges.count(bridge) != 0; });
}

const char *objection_to_tenant(const std::string &pattern) {
    return pattern.size() < 2 || pattern[0] != '/' || pattern.back() == '/'
               ? "must be a path in the tree of control groups, in which * ? [] may be used"
               : nullptr;
}

} // namespace sd::monitor
