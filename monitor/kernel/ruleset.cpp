// Going through the rules as a packet on the loopback device would.
#include "monitor/kernel/ruleset.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace sd::monitor {

using nlohmann::json;

namespace {

constexpr unsigned kDeepest = 32; ///< chains that are called by chains

std::string key(const std::string &family, const std::string &table, const std::string &chain) {
    return family + ' ' + table + ' ' + chain;
}

/// The members of a set that is written out, or the value itself; nothing for a set that has a name.
std::optional<std::vector<json>> values(const json &right) {
    if (right.is_string() && right.get_ref<const std::string &>().starts_with('@')) {
        return std::nullopt;
    }
    if (right.is_object() && right.contains("set")) {
        return right["set"].is_array() ? right["set"].get<std::vector<json>>() : std::vector<json>{right["set"]};
    }
    if (right.is_array()) {
        return right.get<std::vector<json>>();
    }
    return std::vector<json>{right};
}

/// yes or no, if it can be told.
using Told = std::optional<bool>;

Told is_device(const json &value, const char *device) {
    if (!value.is_string()) {
        return std::nullopt;
    }
    const std::string name = value;
    if (!name.empty() && name.back() == '*') {
        return std::string(device).starts_with(name.substr(0, name.size() - 1));
    }
    return name == device;
}

Told is_protocol(const json &value) {
    if (value.is_number_integer()) {
        return value == 6;
    }
    return value.is_string() ? Told(value == "tcp") : std::nullopt;
}

Told is_port(const json &value, uint16_t port) {
    if (value.is_number_integer()) {
        return value == port;
    }
    if (value.is_object() && value.contains("range") && value["range"].is_array() && value["range"].size() == 2 &&
        value["range"][0].is_number_integer() && value["range"][1].is_number_integer()) {
        return value["range"][0] <= port && port <= value["range"][1];
    }
    return std::nullopt;
}

/// An address or a prefix, of one that is in 127.0.0.0/8 or is ::1.
Told is_loopback(const json &value, bool v6) {
    std::string address;
    unsigned bits = v6 ? 128 : 32;
    if (value.is_string()) {
        address = value;
    } else if (value.is_object() && value.contains("prefix") && value["prefix"].is_object() &&
               value["prefix"].value("addr", json()).is_string() &&
               value["prefix"].value("len", json()).is_number_unsigned()) {
        address = value["prefix"]["addr"];
        bits = std::min(value["prefix"]["len"].get<unsigned>(), bits);
    }
    std::array<unsigned char, 16> bytes{};
    if (address.empty() || inet_pton(v6 ? AF_INET6 : AF_INET, address.c_str(), bytes.data()) != 1) {
        return std::nullopt;
    }
    if (v6) {
        std::array<unsigned char, 16> one{};
        one[15] = 1;
        for (unsigned i = 0; i < bits; ++i) {
            if (((bytes[i / 8] ^ one[i / 8]) >> (7 - i % 8) & 1) != 0) {
                return false;
            }
        }
        return true;
    }
    const unsigned compared = std::min(bits, 8u);
    if (compared != 0 && ((bytes[0] ^ 127) >> (8 - compared)) != 0) {
        return false;
    }
    return bits <= 8 ? Told(true) : std::nullopt;
}

} // namespace

struct Ruleset::Walk {
    const LocalConnection &to;
    const Chain &base;
    bool arrives; ///< on its way in: it came from the loopback device; else it leaves through that

    Told one(const json &left, const json &value) const {
        if (const auto meta = left.find("meta"); meta != left.end()) {
            const std::string what = meta->value("key", "");
            if (what == (arrives ? "iif" : "oif") || what == (arrives ? "iifname" : "oifname")) {
                return is_device(value, "lo");
            }
            if (what == "l4proto") {
                return is_protocol(value);
            }
            if (what == "nfproto") {
                return value.is_string() ? Told(value == (to.v6 ? "ipv6" : "ipv4")) : std::nullopt;
            }
            return std::nullopt;
        }
        if (const auto payload = left.find("payload"); payload != left.end()) {
            const std::string protocol = payload->value("protocol", ""), field = payload->value("field", "");
            if (protocol == "ip" || protocol == "ip6") {
                if ((protocol == "ip6") != to.v6) {
                    return false;
                }
                if (field == "protocol" || field == "nexthdr") {
                    return is_protocol(value);
                }
                return to.loopback && (field == "saddr" || field == "daddr") ? is_loopback(value, to.v6)
                                                                             : std::nullopt;
            }
            if (protocol == "tcp" || protocol == "th") {
                return field == "dport" ? is_port(value, to.port) : std::nullopt;
            }
            static const std::set<std::string> kOthers{"udp",  "udplite", "sctp", "dccp", "icmp", "icmpv6",
                                                       "igmp", "arp",     "esp",  "ah",   "comp"};
            return kOthers.contains(protocol) ? Told(false) : std::nullopt;
        }
        if (const auto ct = left.find("ct"); ct != left.end() && ct->value("key", "") == "state") {
            return value == "invalid" ? Told(false) : std::nullopt; // what is well-formed is not
        }
        return std::nullopt;
    }

    Matches match(const json &m) const {
        if (!m.is_object() || !m.contains("left") || !m.contains("right") || !m["left"].is_object()) {
            return Matches::maybe;
        }
        const auto members = values(m["right"]);
        bool any = false, sure = members.has_value();
        for (const json &value : members.value_or(std::vector<json>{})) {
            const Told told = one(m["left"], value);
            any = any || told == true;
            sure = sure && told.has_value();
        }
        // Another protocol's header is there for no packet, whatever is asked of it.
        if (const json &left = m["left"]; left.contains("payload") && one(left, json()) == false) {
            return Matches::no;
        }
        const std::string op = m.value("op", "==");
        const bool negated = op == "!=";
        if (!negated && op != "==" && op != "in") {
            return Matches::maybe;
        }
        if (any) {
            return negated ? Matches::no : Matches::yes;
        }
        return !sure ? Matches::maybe : negated ? Matches::yes : Matches::no;
    }
};

Ruleset::Ruleset() = default;
Ruleset::~Ruleset() = default;
Ruleset::Ruleset(Ruleset &&) noexcept = default;
Ruleset &Ruleset::operator=(Ruleset &&) noexcept = default;

Ruleset::Ruleset(const json &listed) {
    for (const json &entry : listed.at("nftables")) {
        if (const auto it = entry.find("chain"); it != entry.end()) {
            Chain &chain = chains_[key(it->at("family"), it->at("table"), it->at("name"))];
            chain.family = it->at("family");
            chain.hook = it->value("hook", "");
            chain.type = it->value("type", "");
            chain.policy = it->value("policy", "accept");
            chain.device = it->contains("dev") && it->at("dev").is_string() ? it->at("dev").get<std::string>()
                                                                            : std::string();
        } else if (const auto rule = entry.find("rule"); rule != entry.end()) {
            chains_[key(rule->at("family"), rule->at("table"), rule->at("chain"))].rules.push_back(
                rule->value("expr", json::array()));
            // The chain that it calls is of the same table.
            chains_[key(rule->at("family"), rule->at("table"), rule->at("chain"))].rules.back().push_back(
                {{"table of the chain", rule->at("table")}});
        }
    }
}

Ruleset::End Ruleset::walk(const Chain &chain, const Walk &walk_, unsigned depth) const {
    if (depth > kDeepest) {
        return End::may_object;
    }
    bool left = false; // perhaps: what accepts for sure from here on may not be met
    for (const json &expressions : chain.rules) {
        Matches rule = Matches::yes;
        const std::string table = expressions.back()["table of the chain"];
        // The end of a verdict, if it is one, of a rule that matches so.
        const auto judge = [&](const std::string &name, const json &what, Matches so) -> std::optional<End> {
            static const std::set<std::string> kHarmless{
                "counter",        "log",      "comment",   "mangle",
                "notrack",        "set",      "map",       "meter",
                "flow",           "last",     "ct helper", "ct timeout",
                "ct expectation", "ct count", "secmark",   "continue"};
            if (name == "accept") {
                return so == Matches::yes && !left ? std::optional(End::accepted) : std::nullopt;
            }
            if (name == "return") {
                if (so == Matches::yes && !left) {
                    return End::goes_on;
                }
                left = true;
                return std::nullopt;
            }
            if (name == "jump" || name == "goto") {
                const auto called = what.is_object() && what.contains("target") && what["target"].is_string()
                                        ? chains_.find(key(walk_.base.family, table, what["target"]))
                                        : chains_.end();
                const End end =
                    called == chains_.end() ? End::may_object : walk(called->second, walk_, depth + 1);
                const bool sure = so == Matches::yes && !left;
                if (end == End::may_object || (end == End::accepted && sure)) {
                    return end;
                }
                if (name == "goto" && end == End::goes_on) {
                    if (sure) {
                        return End::goes_on;
                    }
                    left = true;
                }
                return std::nullopt;
            }
            return kHarmless.contains(name) ? std::nullopt : std::optional(End::may_object);
        };
        for (const json &expression : expressions) {
            if (!expression.is_object() || expression.empty() || rule == Matches::no) {
                continue;
            }
            const std::string name = expression.begin().key();
            const json &what = expression.begin().value();
            if (name == "table of the chain") {
                continue;
            }
            if (name == "match") {
                rule = std::min(rule, walk_.match(what));
            } else if (name == "limit" || name == "quota") {
                rule = std::min(rule, Matches::maybe);
            } else if (name == "xt") { // of iptables, for which nft has no words
                static const std::set<std::string> kHarmless{"AUDIT",  "CHECKSUM", "CLASSIFY", "CONNMARK",
                                                             "CT",     "LOG",      "MARK",     "NFLOG",
                                                             "TCPMSS", "TRACE"};
                const std::string type = what.is_object() ? what.value("type", "") : "";
                if (type == "match") {
                    rule = std::min(rule, Matches::maybe);
                } else if (type != "target" || !kHarmless.contains(what.value("name", ""))) {
                    return End::may_object;
                }
            } else if (name == "vmap") {
                const json data = what.value("data", json());
                const auto pairs = values(data);
                if (!pairs) {
                    return End::may_object;
                }
                for (const json &pair : *pairs) {
                    if (!pair.is_array() || pair.size() != 2 || !pair[1].is_object() || pair[1].empty()) {
                        return End::may_object;
                    }
                    const json one{{"op", "=="}, {"left", what.value("key", json())}, {"right", pair[0]}};
                    if (walk_.match(one) == Matches::no) {
                        continue;
                    }
                    const auto end =
                        judge(pair[1].begin().key(), pair[1].begin().value(), std::min(rule, Matches::maybe));
                    if (end) {
                        return *end;
                    }
                }
            } else if (const auto end = judge(name, what, rule)) {
                return *end;
            }
        }
    }
    return End::goes_on;
}

bool Ruleset::may_object(const LocalConnection &to) const {
    // Neither forwarded packets nor those of other hosts come into question; and a connection of this host's
    // own has its translation decided on its way out, so that prerouting and input are not asked about it.
    static const std::set<std::string> kFilters{"prerouting", "input", "output", "postrouting"},
        kTranslations{"output", "postrouting"}, kDevices{"ingress", "egress"};
    return std::any_of(chains_.begin(), chains_.end(), [&](const auto &entry) {
        const Chain &chain = entry.second;
        const bool concerns = chain.family == "netdev" || kDevices.contains(chain.hook)
                                  ? !chain.hook.empty() && (chain.device.empty() || chain.device == "lo")
                                  : (chain.type == "nat" ? kTranslations : kFilters).contains(chain.hook) &&
                                        (chain.family == "inet" || chain.family == (to.v6 ? "ip6" : "ip"));
        if (!concerns) {
            return false;
        }
        const bool arrives = chain.hook == "prerouting" || chain.hook == "input" || chain.hook == "ingress";
        const End end = walk(chain, {to, chain, arrives}, 0);
        return end == End::may_object || (end == End::goes_on && chain.policy != "accept");
    });
}

} // namespace sd::monitor
