// Which rules of the packet filter could stop or redirect a connection that stays on this host. The lists are
// as nft prints them.
#include "monitor/kernel/ruleset.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace sd::monitor;
using nlohmann::json;

namespace {

const char *const kLoInput = R"({"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lo"}})";
const char *const kDrop = R"({"drop":null})";
const char *const kAccept = R"({"accept":null})";
const char *const kPort80 =
    R"({"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}})";

json chain(const char *name, const char *hook, const char *policy = "accept", const char *type = "filter",
           const char *family = "inet") {
    json made{{"family", family}, {"table", "t"}, {"name", name}};
    if (hook != nullptr) {
        made.update({{"hook", hook}, {"policy", policy}, {"type", type}});
    }
    return {{"chain", made}};
}

json rule(const char *in, std::initializer_list<std::string> expressions, const char *family = "inet") {
    json list = json::array();
    for (const std::string &each : expressions) {
        list.push_back(json::parse(each));
    }
    return {{"rule", {{"family", family}, {"table", "t"}, {"chain", in}, {"expr", list}}}};
}

bool objects(std::initializer_list<json> entries, LocalConnection to = {80, false, true}) {
    return Ruleset(json{{"nftables", entries}}).may_object(to);
}

} // namespace

TEST_CASE("without rules nothing objects") {
    CHECK_FALSE(objects({}));
    CHECK_FALSE(objects({chain("i", "input"), chain("o", "output"), chain("unused", nullptr)}));
    CHECK_FALSE(objects({chain("i", "input"), rule("i", {R"({"counter":{"packets":1}})"})}));
}

TEST_CASE("a rule for the port, for whoever it is, and one for another port") {
    const std::string user = R"({"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":1000}})";
    CHECK(objects({chain("o", "output"), rule("o", {kPort80, kDrop})}));
    CHECK(objects({chain("o", "output"), rule("o", {user, kDrop})}));
    CHECK(objects({chain("o", "output"), rule("o", {kPort80, R"({"reject":null})"})}));
    CHECK_FALSE(objects({chain("o", "output"), rule("o", {kPort80, kDrop})}, {81, false, true}));
    const std::string some =
        R"({"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":{"set":[22,{"range":[79,90]}]}}})";
    CHECK(objects({chain("o", "output"), rule("o", {some, kDrop})}));
    CHECK_FALSE(objects({chain("o", "output"), rule("o", {some, kDrop})}, {91, false, true}));
    const std::string named =
        R"({"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":"@blocked"}})";
    CHECK(objects({chain("o", "output"), rule("o", {named, kDrop})}));
    const std::string others =
        R"({"match":{"op":"!=","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}})";
    CHECK_FALSE(objects({chain("o", "output"), rule("o", {others, kDrop})}));
    CHECK(objects({chain("o", "output"), rule("o", {others, kDrop})}, {81, false, true}));
}

TEST_CASE("a firewall that lets the loopback device pass") {
    const std::string invalid = R"({"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"invalid"}})";
    const auto with = [&](std::initializer_list<std::string> lo) {
        return objects({chain("i", "input", "drop"), rule("i", {invalid, kDrop}), rule("i", lo),
                        rule("i", {kPort80, kDrop})});
    };
    CHECK_FALSE(with({kLoInput, kAccept}));
    CHECK(with({kPort80, R"({"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":0}})", kAccept}));
    // Of packets that leave, this says nothing.
    CHECK(objects({chain("o", "output", "drop"), rule("o", {kLoInput, kAccept})}));
    // ufw and firewalld do it in a chain of their own.
    CHECK_FALSE(objects({chain("i", "input", "drop"), chain("before", nullptr),
                         rule("before", {kLoInput, R"({"counter":{}})", kAccept}),
                         rule("i", {R"({"jump":{"target":"before"}})"})}));
    CHECK(objects({chain("i", "input", "drop"), chain("before", nullptr), rule("before", {kLoInput, kAccept}),
                   rule("i", {R"({"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":0}})",
                              R"({"jump":{"target":"before"}})"})}));
    // Perhaps it is left before.
    CHECK(objects(
        {chain("i", "input", "drop"),
         rule("i", {R"({"match":{"op":"==","left":{"meta":{"key":"mark"}},"right":1}})", R"({"return":null})"}),
         rule("i", {kLoInput, kAccept})}));
}

TEST_CASE("rules for other devices, protocols, families and hooks") {
    const std::string eth = R"({"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth*"}})",
                      not_lo = R"({"match":{"op":"!=","left":{"meta":{"key":"iif"}},"right":"lo"}})",
                      udp = R"({"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":80}})",
                      not_udp =
                          R"({"match":{"op":"!=","left":{"payload":{"protocol":"udp","field":"dport"}},"right":80}})",
                      icmp = R"({"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"icmp"}})";
    for (const std::string &match : {eth, not_lo, udp, not_udp, icmp}) {
        CAPTURE(match);
        CHECK_FALSE(objects({chain("i", "input"), rule("i", {match, kDrop})}));
    }
    CHECK_FALSE(objects({chain("f", "forward", "drop")}));
    CHECK_FALSE(objects({chain("i", "input", "drop", "filter", "ip6")}));
    CHECK(objects({chain("i", "input", "drop", "filter", "ip6")}, {80, true, true}));
    CHECK_FALSE(objects({chain("i", "input", "drop", "filter", "bridge")}));
    json device = chain("n", "ingress", "drop", "filter", "netdev");
    device["chain"]["dev"] = "eth0";
    CHECK_FALSE(objects({device}));
    device["chain"]["dev"] = "lo";
    CHECK(objects({device}));
}

TEST_CASE("the rules of a container engine leave loopback addresses alone, and the others not") {
    const std::string
        outside =
            R"({"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":{"prefix":{"addr":"127.0.0.0","len":8}}}})",
        subnet =
            R"({"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"172.17.0.0","len":16}}}})",
        bridge = R"({"match":{"op":"!=","left":{"meta":{"key":"oifname"}},"right":"docker0"}})";
    const std::initializer_list<json> rules{
        chain("PREROUTING", "prerouting", "accept", "nat", "ip"),
        chain("OUTPUT", "output", "accept", "nat", "ip"),
        chain("POSTROUTING", "postrouting", "accept", "nat", "ip"),
        chain("DOCKER", nullptr, nullptr, nullptr, "ip"),
        rule("DOCKER",
             {R"({"match":{"op":"!=","left":{"meta":{"key":"iifname"}},"right":"docker0"}})", kPort80,
              R"({"dnat":{"addr":"172.17.0.2","port":80}})"},
             "ip"),
        rule("PREROUTING",
             {R"({"xt":{"type":"match","name":"addrtype"}})", R"({"jump":{"target":"DOCKER"}})"}, "ip"),
        rule("OUTPUT",
             {outside, R"({"xt":{"type":"match","name":"addrtype"}})", R"({"counter":{}})",
              R"({"jump":{"target":"DOCKER"}})"},
             "ip"),
        rule("POSTROUTING", {subnet, bridge, R"({"masquerade":null})"}, "ip")};
    CHECK_FALSE(objects(rules, {80, false, true}));
    CHECK(objects(rules, {80, false, false}));
    CHECK_FALSE(objects(rules, {80, true, false}));
}

TEST_CASE("what is not known may object") {
    CHECK(objects({chain("o", "output"), rule("o", {R"({"xt":{"type":"target","name":"DNAT"}})"})}));
    CHECK(objects({chain("o", "output"), rule("o", {R"({"xt":null})"})}));
    CHECK_FALSE(objects({chain("o", "output"), rule("o", {R"({"xt":{"type":"target","name":"LOG"}})"})}));
    CHECK(objects({chain("o", "output"), rule("o", {R"({"something new":{}})"})}));
    CHECK(objects({chain("o", "output"), rule("o", {R"({"jump":{"target":"gone"}})"})}));
    CHECK(objects({chain("o", "output"), chain("a", nullptr), rule("a", {R"({"jump":{"target":"a"}})"}),
                   rule("o", {R"({"jump":{"target":"a"}})"})}));
    const std::string map =
        R"({"vmap":{"key":{"payload":{"protocol":"tcp","field":"dport"}},"data":{"set":[[80,{"drop":null}],[81,{"accept":null}]]}}})";
    CHECK(objects({chain("o", "output"), rule("o", {map})}));
    CHECK_FALSE(objects({chain("o", "output"), rule("o", {map})}, {81, false, true}));
    CHECK_THROWS_AS(Ruleset(json::parse(R"({"nftables":[{"rule":{}}]})")), json::exception);
}
