// Names and addresses out of text that goes to strangers.
#include "monitor/sdctl/blot.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <cstring>
#include <set>

namespace sd::ctl {

namespace {

bool is_word(char c) {
    return isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

bool is_kept(const std::string &name) {
    static const std::set<std::string> kept = {
        "sd-monitor", "sd-bridge", "sdstat", "sdctl",   "sdrun",  "sddump",    "socksdirect",
        "systemd",    "root",      "libsd",  "monitor", "system", "user",      "group",
        "true",       "false",     "null",   "shm",     "kernel", "localhost", "rdma"};
    return name.size() < 2 || kept.contains(name) ||
           std::all_of(name.begin(), name.end(), [](unsigned char c) { return isdigit(c) != 0; });
}

/// What may be an address: digits, letters up to f, points and colons.
bool is_address_part(char c) { return isxdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':'; }

bool is_address(const std::string &text) {
    std::array<unsigned char, 16> bytes{};
    return inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
           // "a:b" is more often something else, and "::" says nothing
           (std::count(text.begin(), text.end(), ':') >= 2 && text != "::" &&
            (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1 || text.size() == 17));
}

/// Directories whose names are the system's own. What is in others may name anything.
bool is_system_path(const std::string &path) {
    static const std::array<const char *, 8> own = {
        "/usr/", "/etc/socksdirect", "/run/socksdirect", "/proc/", "/sys/", "/dev/", "/lib/", "/etc/ld.so"};
    return std::any_of(own.begin(), own.end(), [&](const char *prefix) { return path.starts_with(prefix); });
}

} // namespace

std::string Blotter::stand_in(const char *kind, const std::string &what) {
    std::string &given = given_[std::string(kind) + ' ' + what];
    if (given.empty()) {
        given = std::string(kind) + '-' + std::to_string(++count_[kind]);
    }
    return given;
}

void Blotter::add_name(const std::string &name) {
    if (!is_kept(name) && !names_.contains(name)) {
        names_[name] = stand_in("NAME", name);
    }
}

std::string Blotter::blot(const std::string &text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const bool begins = at == 0 || !is_word(text[at - 1]);
        if (begins && is_address_part(text[at])) {
            size_t end = at;
            while (end < text.size() && is_address_part(text[end])) {
                ++end;
            }
            // With a port behind it, or a full stop: the longest part that is an address.
            size_t last = end;
            for (; last > at && !is_address(text.substr(at, last - at)); --last) {
            }
            if (last > at && (last == text.size() || !is_word(text[last]) || last < end)) {
                out += stand_in("ADDRESS", text.substr(at, last - at));
                at = last;
                continue;
            }
        }
        if (text[at] == '/' && begins) {
            size_t end = at;
            while (end < text.size() && strchr(" \t\n\"'`,;()<>=|", text[end]) == nullptr) {
                ++end;
            }
            if (const std::string path = text.substr(at, end - at); path.size() > 1 && !is_system_path(path)) {
                out += stand_in("PATH", path);
                at = end;
                continue;
            }
        }
        if (begins && text[at] != '\0') {
            // Names that have other signs in them are longer than the word that begins here.
            const std::string *best = nullptr, *with = nullptr;
            const std::string first = text.substr(at, 1);
            for (auto it = names_.lower_bound(first); it != names_.end() && it->first[0] == text[at]; ++it) {
                const size_t end = at + it->first.size();
                if (text.compare(at, it->first.size(), it->first) == 0 &&
                    (end >= text.size() || !is_word(text[end]) || !is_word(it->first.back())) &&
                    (best == nullptr || it->first.size() > best->size())) {
                    best = &it->first;
                    with = &it->second;
                }
            }
            if (best != nullptr) {
                out += *with;
                at += best->size();
                continue;
            }
        }
        out += text[at++];
    }
    return out;
}

} // namespace sd::ctl
