// Reading values out of a TOML file, each with the file, the line and the key where it is wrong.
#pragma once
#include "monitor/service/config.hpp"

#include <cerrno>
#include <cstring>
#include <grp.h>
#include <initializer_list>
#include <limits>
#include <pwd.h>
#include <string_view>
#include <toml++/toml.h>
#include <unistd.h>

namespace sd::monitor {

class Reader {
  public:
    explicit Reader(std::string file) : file_(std::move(file)) {}

    static toml::table parse(const std::string &file) {
        if (access(file.c_str(), R_OK) != 0) { // the parser does not say why a file cannot be opened
            throw ConfigError(file + ": " + strerror(errno));
        }
        try {
            return toml::parse_file(file);
        } catch (const toml::parse_error &error) {
            throw ConfigError(file + ":" + std::to_string(error.source().begin.line) + ": " +
                              std::string(error.description()));
        }
    }

    [[noreturn]] void fail(const toml::source_region &where, const std::string &key,
                           const std::string &reason) const {
        throw ConfigError(file_ + ":" + std::to_string(where.begin.line) + ": " + key + ": " + reason);
    }

    void only(const toml::table &table, const std::string &prefix,
              std::initializer_list<std::string_view> known) const {
        for (const auto &[key, node] : table) {
            bool found = false;
            for (const std::string_view k : known) {
                found = found || key.str() == k;
            }
            if (!found) {
                fail(key.source(), prefix + std::string(key.str()), "unknown key");
            }
        }
    }

    const toml::table *table(const toml::table &parent, const char *name, const std::string &prefix) const {
        const toml::node *node = parent.get(name);
        if (node != nullptr && !node->is_table()) {
            fail(node->source(), prefix + name, "must be a table");
        }
        return node == nullptr ? nullptr : node->as_table();
    }

    void flag(const toml::table &table, const char *name, const std::string &prefix, bool &out) const {
        if (const toml::node *node = table.get(name)) {
            if (!node->is_boolean()) {
                fail(node->source(), prefix + name, "must be true or false");
            }
            out = node->as_boolean()->get();
        }
    }

    std::string text(const toml::node &node, const std::string &key) const {
        if (!node.is_string()) {
            fail(node.source(), key, "must be a string");
        }
        return node.as_string()->get();
    }

    void text(const toml::table &parent, const char *name, const std::string &prefix, std::string &out) const {
        if (const toml::node *node = parent.get(name)) {
            out = text(*node, prefix + name);
        }
    }

    int64_t number(const toml::node &node, const std::string &key, int64_t low, int64_t high) const {
        if (!node.is_integer()) {
            fail(node.source(), key, "must be a number");
        }
        const int64_t value = node.as_integer()->get();
        if (value < low || value > high) {
            fail(node.source(), key, "must be between " + std::to_string(low) + " and " + std::to_string(high));
        }
        return value;
    }

    void number(const toml::table &parent, const char *name, const std::string &prefix, unsigned &out) const {
        if (const toml::node *node = parent.get(name)) {
            out = static_cast<unsigned>(number(*node, prefix + name, 1, 1 << 24));
        }
    }

    /// Calls fn(element) for a single value or for each element of an array.
    template <typename Fn> void each(const toml::table &parent, const char *name, Fn fn) const {
        const toml::node *node = parent.get(name);
        if (node == nullptr) {
            return;
        }
        if (const toml::array *array = node->as_array()) {
            if (array->empty()) {
                fail(node->source(), name,
                     "an empty list would match nothing; leave the key out to match everything");
            }
            for (const toml::node &element : *array) {
                fn(element);
            }
        } else {
            fn(*node);
        }
    }

    PartyMatch party(const toml::table &rule, const char *name, const std::string &prefix) const {
        PartyMatch match;
        const toml::table *t = table(rule, name, prefix);
        if (t == nullptr) {
            return match;
        }
        const std::string here = prefix + name + ".";
        only(*t, here, {"uid", "gid", "exe", "cgroup"});
        constexpr int64_t kLastId = std::numeric_limits<uid_t>::max() - 1;
        each(*t, "uid", [&](const toml::node &node) {
            if (node.is_string()) {
                const passwd *user = getpwnam(text(node, here + "uid").c_str());
                if (user == nullptr) {
                    fail(node.source(), here + "uid", "no user is called \"" + text(node, "") + "\"");
                }
                match.uids.push_back(user->pw_uid);
            } else {
                match.uids.push_back(static_cast<uid_t>(number(node, here + "uid", 0, kLastId)));
            }
        });
        each(*t, "gid", [&](const toml::node &node) {
            if (node.is_string()) {
                const group *g = getgrnam(text(node, here + "gid").c_str());
                if (g == nullptr) {
                    fail(node.source(), here + "gid", "no group is called \"" + text(node, "") + "\"");
                }
                match.gids.push_back(g->gr_gid);
            } else {
                match.gids.push_back(static_cast<gid_t>(number(node, here + "gid", 0, kLastId)));
            }
        });
        each(*t, "exe", [&](const toml::node &node) {
            const std::string pattern = text(node, here + "exe");
            if (pattern.empty() || (pattern[0] != '/' && pattern[0] != '*')) {
                fail(node.source(), here + "exe", "must be an absolute path, in which * ? [] may be used");
            }
            match.exes.push_back(pattern);
        });
        each(*t, "cgroup", [&](const toml::node &node) {
            const std::string pattern = text(node, here + "cgroup");
            if (pattern.size() < 2 || pattern[0] != '/' || pattern.back() == '/') {
                fail(node.source(), here + "cgroup",
                     "must be the path of a control group as in \"/system.slice/nginx.service\", in which * "
                     "? [] "
                     "may be used");
            }
            match.cgroups.push_back(pattern);
        });
        return match;
    }

    Verdict verdict(const toml::node &node, const std::string &key) const {
        const std::string value = text(node, key);
        if (value == "allow") {
            return Verdict::allow;
        }
        if (value == "deny") {
            return Verdict::deny;
        }
        if (value == "same-user") {
            return Verdict::same_user;
        }
        fail(node.source(), key, "must be \"allow\", \"deny\" or \"same-user\"");
    }

    Birth birth(const toml::node &node, const std::string &key) const {
        const std::string value = text(node, key);
        if (value == "auto") {
            return Birth::automatic;
        }
        if (value == "kernel") {
            return Birth::kernel;
        }
        if (value == "shm") {
            return Birth::shm;
        }
        fail(node.source(), key, "must be \"auto\", \"kernel\" or \"shm\"");
    }

    Rule rule(const toml::table &t, const std::string &prefix) const {
        only(t, prefix, {"action", "client", "server", "address", "port", "birth", "rdma"});
        Rule result;
        const toml::node *action = t.get("action");
        if (action == nullptr) {
            fail(t.source(), prefix + "action", "is missing");
        }
        result.action = verdict(*action, prefix + "action");
        if (const toml::node *node = t.get("birth")) {
            result.birth = birth(*node, prefix + "birth");
            if (result.action == Verdict::deny) {
                fail(node->source(), prefix + "birth", "says nothing in a rule that denies");
            }
        }
        if (const toml::node *node = t.get("rdma")) {
            flag(t, "rdma", prefix, result.rdma);
            if (result.action == Verdict::deny) {
                fail(node->source(), prefix + "rdma", "says nothing in a rule that denies");
            }
        }
        result.client = party(t, "client", prefix);
        result.server = party(t, "server", prefix);
        for (const auto &[name, match] :
             {std::pair("client", &result.client), std::pair("server", &result.server)}) {
            if (result.action == Verdict::allow && !match->exes.empty() && match->uids.empty() &&
                match->gids.empty()) {
                fail(t.source(),
                     prefix + name + ".exe", "needs uid or gid in a rule that allows: whoever starts a program can have it do anything");
            }
        }
        each(t, "address", [&](const toml::node &node) {
            const auto address = AddressMatch::parse(text(node, prefix + "address"));
            if (!address) {
                fail(node.source(), prefix + "address",
                     "must be an IP address, or one with a prefix length as in \"10.0.0.0/8\"");
            }
            result.addresses.push_back(*address);
        });
        each(t, "port", [&](const toml::node &node) {
            if (node.is_string()) {
                const auto range = PortRange::parse(text(node, prefix + "port"));
                if (!range) {
                    fail(node.source(), prefix + "port", "must be a port or a range as in \"8000-8999\"");
                }
                result.ports.push_back(*range);
            } else {
                const auto port = static_cast<uint16_t>(number(node, prefix + "port", 0, 65535));
                result.ports.push_back({port, port});
            }
        });
        return result;
    }

  private:
    std::string file_;
};

} // namespace sd::monitor
