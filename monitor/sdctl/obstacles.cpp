// What in a unit's settings keeps the library from working, or would be passed by.
#include "monitor/sdctl/obstacles.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <sstream>

namespace sd::ctl {

namespace {

constexpr const char *kSocketDirectory = "/run/socksdirect";

/// Without one of these the library cannot speak to the monitor, or not sleep and wake up.
const std::vector<std::string> kNeededCalls = {
    "close",     "connect", "dup3",   "epoll_create1", "epoll_ctl", "eventfd2",     "fcntl",      "fstat",
    "ftruncate", "futex",   "gettid", "getsockopt",    "madvise",   "memfd_create", "membarrier", "mmap",
    "munmap",    "ppoll",   "read",   "recvmsg",       "sendmsg",   "socket",       "socketpair", "write"};

std::vector<std::string> words(const std::string &text) {
    std::istringstream in(text);
    std::vector<std::string> result;
    for (std::string word; in >> word;) {
        result.push_back(word);
    }
    return result;
}

/// A list of what is allowed, or after "~" of what is not.
class Filter {
  public:
    explicit Filter(const std::string &text) {
        refuses_ = text.empty() || text[0] == '~';
        for (std::string &word : words(text.substr(!text.empty() && refuses_ ? 1 : 0))) {
            names_.insert(word.substr(0, word.find(':'))); // NAME:ERROR
        }
    }
    bool allows(const std::string &name) const { return (names_.count(name) == 0) == refuses_; }

  private:
    bool refuses_;
    std::set<std::string> names_;
};

/// Whether `path` is `place` or below it.
bool within(const std::string &path, std::string place) {
    while (place.size() > 1 && place.back() == '/') {
        place.pop_back();
    }
    return place == "/" || path == place || path.rfind(place + "/", 0) == 0;
}

/// The first place of a list ("-" and "+" in front, options behind ":") that hides `path`.
std::string hiding(const std::string &list, const std::string &path) {
    for (std::string place : words(list)) {
        place.erase(0, place.find_first_not_of("-+"));
        place.resize(std::min(place.size(), place.find(':')));
        if (within(path, place)) {
            return place;
        }
    }
    return {};
}

void look_at_filters(const Properties &unit, std::vector<Obstacle> &out) {
    const Filter families(value(unit, "RestrictAddressFamilies"));
    if (!families.allows("AF_UNIX")) {
        out.push_back({true, "RestrictAddressFamilies",
                       "leaves out AF_UNIX, over which the library speaks to the monitor"});
    }
    if (!families.allows("AF_NETLINK")) {
        out.push_back({false, "RestrictAddressFamilies",
                       "leaves out AF_NETLINK, over which the library asks the kernel who listens: "
                       "connections that the "
                       "unit accepts are accelerated, those that it makes stay with kernel TCP (cause 3)"});
    }
    std::vector<std::string> missing;
    const Filter calls(value(unit, "SystemCallFilter"));
    for (const std::string &call : kNeededCalls) {
        if (!calls.allows(call)) {
            missing.push_back(call);
        }
    }
    if (!missing.empty()) {
        out.push_back({true, "SystemCallFilter",
                       fmt::format("leaves out {}, which the library needs", fmt::join(missing, ", "))});
    }
}

/// What the kernel checks on packets, which then are none.
void look_at_packet_rules(const Properties &unit, std::vector<Obstacle> &out) {
    for (const char *name : {"IPAddressDeny", "IPAddressAllow", "IPIngressFilterPath", "IPEgressFilterPath",
                             "BPFProgram", "RestrictNetworkInterfaces"}) {
        const std::string text = value(unit, name);
        if (!text.empty() && text != "~") {
            out.push_back(
                {true, name, "is about packets; accelerated connections have none, and would pass it by"});
        }
    }
}

void look_at_files(const Properties &unit, const std::string &library, std::vector<Obstacle> &out) {
    for (const char *name : {"RootDirectory", "RootImage"}) {
        if (const std::string text = value(unit, name); !text.empty() && text != "/") {
            out.push_back({true, name,
                           fmt::format("is {}: neither {} nor {} is there", text, library, kSocketDirectory)});
        }
    }
    for (const char *name : {"InaccessiblePaths", "TemporaryFileSystem"}) {
        for (const std::string &path : {library, std::string(kSocketDirectory)}) {
            if (const std::string place = hiding(value(unit, name), path); !place.empty()) {
                out.push_back({true, name, fmt::format("has {}, which hides {}", place, path)});
            }
        }
    }
    if (const std::string place = hiding(value(unit, "NoExecPaths"), library); !place.empty()) {
        const std::string exception = hiding(value(unit, "ExecPaths"), library);
        if (exception.size() < place.size()) {
            out.push_back(
                {true, "NoExecPaths",
                 fmt::format("has {}: {} cannot be mapped as code; it is not in ExecPaths=", place, library)});
        }
    }
}

void look_at_limits(const Properties &unit, std::vector<Obstacle> &out) {
    const std::string space = value(unit, "LimitAS");
    constexpr uint64_t kEnough = uint64_t{256} << 20;
    if (!space.empty() && space != "infinity" && strtoull(space.c_str(), nullptr, 10) < kEnough) {
        out.push_back(
            {true, "LimitAS",
             fmt::format("is {}: the library takes about 110 MiB of address space (not of memory), and "
                         "8 MiB for each peer",
                         space)});
    }
    const std::string files = value(unit, "LimitNOFILE");
    if (!files.empty() && files != "infinity" && strtoull(files.c_str(), nullptr, 10) < 128) {
        out.push_back({false, "LimitNOFILE", fmt::format("is {}: the library needs a few of them", files)});
    }
}

void look_at_surroundings(const Properties &unit, std::vector<Obstacle> &out) {
    const std::vector<std::string> unset = words(value(unit, "UnsetEnvironment"));
    if (std::find(unset.begin(), unset.end(), "LD_PRELOAD") != unset.end()) {
        out.push_back({true, "UnsetEnvironment", "takes LD_PRELOAD away"});
    }
    if (value(unit, "PrivateNetwork") == "yes" || !value(unit, "NetworkNamespacePath").empty()) {
        out.push_back({false, value(unit, "PrivateNetwork") == "yes" ? "PrivateNetwork" : "NetworkNamespacePath",
                       "only connections within that network can be accelerated"});
    }
    for (const char *name : {"AppArmorProfile", "SELinuxContext", "SmackProcessLabel"}) {
        if (!value(unit, name).empty()) {
            out.push_back(
                {false, name,
                 fmt::format("the policy must let it map the library and connect to {}/monitor.sock",
                             kSocketDirectory)});
        }
    }
}

} // namespace

std::string value(const Properties &unit, const char *name) {
    const auto found = unit.find(name);
    return found == unit.end() ? std::string() : found->second;
}

const std::vector<std::string> &obstacle_properties() {
    static const std::vector<std::string> names = {
        "RestrictAddressFamilies",
        "SystemCallFilter",
        "IPAddressDeny",
        "IPAddressAllow",
        "IPIngressFilterPath",
        "IPEgressFilterPath",
        "BPFProgram",
        "RestrictNetworkInterfaces",
        "RootDirectory",
        "RootImage",
        "InaccessiblePaths",
        "TemporaryFileSystem",
        "NoExecPaths",
        "ExecPaths",
        "LimitAS",
        "LimitNOFILE",
        "UnsetEnvironment",
        "PrivateNetwork",
        "AppArmorProfile",
        "SELinuxContext",
        "SmackProcessLabel",
        "NetworkNamespacePath",
    };
    return names;
}

std::vector<Obstacle> find_obstacles(const Properties &unit, const std::string &library) {
    std::vector<Obstacle> out;
    look_at_filters(unit, out);
    look_at_packet_rules(unit, out);
    look_at_files(unit, library, out);
    look_at_limits(unit, out);
    look_at_surroundings(unit, out);
    return out;
}

std::string variable_of(const std::string &environment, const std::string &name) {
    std::string found, word;
    bool quoted = false;
    const auto take = [&] {
        if (word.rfind(name + "=", 0) == 0) {
            found = word.substr(name.size() + 1);
        }
        word.clear();
    };
    for (size_t i = 0; i < environment.size(); ++i) {
        const char c = environment[i];
        if (c == '\\' && i + 1 < environment.size()) {
            word += environment[++i];
        } else if (c == '"') {
            quoted = !quoted;
        } else if ((c == ' ' || c == '\n') && !quoted) {
            take();
        } else {
            word += c;
        }
    }
    take();
    return found;
}

std::string variable_of_file(const std::string &text, const std::string &name) {
    std::istringstream in(text);
    std::string found;
    for (std::string line; std::getline(in, line);) {
        line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
        if (line.rfind(name + "=", 0) != 0) {
            continue;
        }
        found = line.substr(name.size() + 1);
        while (!found.empty() && isspace(static_cast<unsigned char>(found.back())) != 0) {
            found.pop_back();
        }
        if (found.size() >= 2 && (found[0] == '"' || found[0] == '\'') && found.back() == found[0]) {
            found = found.substr(1, found.size() - 2);
        }
    }
    return found;
}

} // namespace sd::ctl
