// Configuration and policy of the monitor, and that the guide explains every cause.
#include "libsd/layout/causes.hpp"
#include "libsd/layout/link_layout.hpp"
#include "monitor/service/config.hpp"
#include "monitor/service/profiles.hpp"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace sd::monitor;

namespace {

struct File {
    char name[32] = "/tmp/sd-policy-XXXXXX";
    explicit File(const std::string &text) {
        close(mkstemp(name));
        std::ofstream(name) << text;
    }
    ~File() { unlink(name); }
};

Config load(const std::string &text) {
    File file(text);
    return load_config(file.name, Config{});
}

/// The message, with the file's name replaced by FILE.
std::string error_of(const std::string &text) {
    File file(text);
    try {
        load_config(file.name, Config{});
    } catch (const ConfigError &error) {
        std::string message = error.what();
        REQUIRE(message.rfind(file.name, 0) == 0);
        return "FILE" + message.substr(strlen(file.name));
    }
    return "no error";
}

ListenAddress at(const char *ip, uint16_t port) {
    ListenAddress address;
    const auto parsed = AddressMatch::parse(ip);
    REQUIRE(parsed);
    memcpy(address.ip, parsed->ip, sizeof address.ip);
    address.port = port;
    return address;
}

const Identity root{0, 0, "/usr/bin/redis-server"}, alice{1000, 1000, "/usr/bin/curl"},
    bob{1001, 1001, "/opt/x/app"};

} // namespace

TEST_CASE("with another host a rule about who is there can refuse, and cannot allow") {
    const Policy usual;
    CHECK(usual.allows_far(alice, false, at("10.0.0.1", 80))); // the same user is for shared memory
    const Config config = load(R"(
[policy]
default = "deny"
[[policy.rule]]
action = "deny"
client = { uid = 0 }
port = 81
[[policy.rule]]
action = "allow"
client = { uid = 0 }
port = 82
[[policy.rule]]
action = "allow"
server = { uid = 1000 }
port = "80-82"
)");
    CHECK(config.policy.allows_far(alice, true, at("10.0.0.1", 80)));
    CHECK_FALSE(config.policy.allows_far(alice, true, at("10.0.0.1", 81))); // it might be root who asks
    CHECK(config.policy.allows_far(alice, true, at("10.0.0.1", 82)));       // by the rule after it
    CHECK_FALSE(config.policy.allows_far(bob, true, at("10.0.0.1", 80)));
    CHECK_FALSE(config.policy.allows_far(alice, true, at("10.0.0.1", 83)));
    CHECK_FALSE(config.policy.allows_far(bob, false, at("10.0.0.1", 80))); // nor can it be told who serves
    CHECK(config.policy.allows_far(root, false, at("10.0.0.1", 82)));
}

TEST_CASE("a rule that keeps what it allows from RDMA holds between hosts only") {
    const Config config = load(R"(
[policy]
default = "allow"
[[policy.rule]]
action = "allow"
client = { uid = 1000 }
port = 80
rdma = true
[[policy.rule]]
action = "allow"
server = { uid = 1000 }
port = "80-82"
rdma = false
[[policy.rule]]
action = "allow"
address = "192.0.2.0/24"
rdma = false
)");
    const Policy &policy = config.policy;
    CHECK(policy.allows_far(alice, false, at("10.0.0.1", 80)));
    CHECK_FALSE(policy.allows_far(alice, true, at("10.0.0.1", 80)));
    CHECK_FALSE(policy.allows_far(bob, false, at("10.0.0.1", 80))); // who serves there cannot be told
    CHECK(policy.allows_far(bob, true, at("10.0.0.1", 80)));
    CHECK(policy.allows_far(bob, false, at("10.0.0.1", 83)));
    CHECK_FALSE(policy.allows_far(bob, false, at("192.0.2.7", 83)));
    CHECK(policy.allows(bob, alice, at("10.0.0.1", 80)));
    CHECK(policy.allows(bob, alice, at("192.0.2.7", 83)));
    REQUIRE(error_of("[[policy.rule]]\naction = 'allow'\nrdma = 'no'\n") ==
            "FILE:3: policy.rule[1].rdma: must be true or false");
    REQUIRE(error_of("[[policy.rule]]\naction = 'deny'\nrdma = false\n") ==
            "FILE:3: policy.rule[1].rdma: says nothing in a rule that denies");
}

TEST_CASE("a control group is matched with all that is below it") {
    const Policy policy = load(R"(
[policy]
default = "allow"
[[policy.rule]]
action = "deny"
server = { cgroup = ["/system.slice/nginx*.service", "/batch"] }
)")
                              .policy;
    const auto in = [](const char *group) {
        Identity who = alice;
        who.cgroup = group;
        return who;
    };
    const auto serves = [&](const char *group) { return policy.allows(bob, in(group), at("10.0.0.1", 80)); };
    CHECK_FALSE(serves("/batch"));
    CHECK_FALSE(serves("/batch/a/b"));
    CHECK_FALSE(serves("/system.slice/nginx-2.service/worker"));
    CHECK(serves("/batches"));
    CHECK(serves("/system.slice"));
    CHECK(serves("/other/batch"));
    CHECK(serves("/"));
    CHECK(serves("")); // not known
    const Policy slow = load(R"(
[[policy.rule]]
action = "allow"
client = { cgroup = "/slow/*" }
rdma = false
)")
                            .policy;
    CHECK_FALSE(slow.allows_far(in("/slow/a"), false, at("10.0.0.1", 80)));
    CHECK_FALSE(slow.allows_far(in("/slow/a/b"), false, at("10.0.0.1", 80)));
    CHECK(slow.allows_far(in("/slow"), false, at("10.0.0.1", 80)));
    for (const char *wrong : {"''", "'batch'", "'/'", "'/batch/'"}) {
        REQUIRE_THAT(
            error_of("[[policy.rule]]\naction = 'deny'\nclient.cgroup = " + std::string(wrong) + "\n"),
            Catch::StartsWith("FILE:3: policy.rule[1].client.cgroup: must be the path of a control group"));
    }
}

TEST_CASE("which of a host's addresses devices may use, and how much a process may register") {
    REQUIRE(load("[peers]\n").peers.addresses.empty());
    REQUIRE(load("[peers]\n").peers.registered == 0);
    const PeersSettings peers =
        load("[peers]\naddresses = ['10.0.0.0/8', '2001:db8::1']\nregistered = 16\n").peers;
    REQUIRE(peers.addresses == std::vector<std::string>{"10.0.0.0/8", "2001:db8::1"});
    REQUIRE(peers.registered == 16);
    REQUIRE_THAT(error_of("[peers]\nname = 'a'\naddresses = ['10.0.0.0/8', 'eth0']\n"),
                 Catch::StartsWith("FILE:3: peers.addresses: must be an IP address"));
    REQUIRE_THAT(error_of("[peers]\naddresses = []\n"), Catch::StartsWith("FILE:2: "));
    for (const char *wrong : {"0", "-1", "1025", "'16 MiB'"})
        REQUIRE_THAT(error_of("[peers]\n\nregistered = " + std::string(wrong) + "\n"),
                     Catch::StartsWith("FILE:3: peers.registered: must be"));
}

TEST_CASE("an empty file changes nothing") {
    const Config config = load("");
    REQUIRE(config.policy.rules.empty());
    REQUIRE(config.policy.fallback == Verdict::same_user);
    REQUIRE(config.policy.allows(alice, alice, at("127.0.0.1", 80)));
    REQUIRE_FALSE(config.policy.allows(alice, bob, at("127.0.0.1", 80)));
}

TEST_CASE("all keys are read") {
    const Config config = load(R"(
[monitor]
socket = "/run/x.sock"
log_level = "debug"
[limits]
clients = 5
bridges = 4
links_per_client = 6
links_per_server = 10
listeners_per_client = 7
bells_per_client = 8
segments_per_client = 9
[policy]
default = "deny"
[[policy.rule]]
action = "allow"
client = { uid = [1000, "root"], gid = "root", exe = "/usr/bin/*" }
server = { gid = 0, exe = ["/a", "/b*"] }
address = ["10.0.0.0/8", "::1"]
port = [80, "8000-8999"]
)");
    REQUIRE(config.socket == "/run/x.sock");
    REQUIRE(config.log_level == "debug");
    REQUIRE(config.limits.clients == 5);
    REQUIRE(config.limits.bridges == 4);
    REQUIRE(config.limits.links_per_client == 6);
    REQUIRE(config.limits.links_per_server == 10);
    REQUIRE(config.limits.listeners_per_client == 7);
    REQUIRE(config.limits.bells_per_client == 8);
    REQUIRE(config.limits.segments_per_client == 9);
    REQUIRE(config.policy.fallback == Verdict::deny);
    REQUIRE(config.policy.rules.size() == 1);
    const Rule &rule = config.policy.rules[0];
    REQUIRE(rule.client.uids == std::vector<uid_t>{1000, 0});
    REQUIRE(rule.client.gids == std::vector<gid_t>{0});
    REQUIRE(rule.server.exes.size() == 2);
    REQUIRE(rule.addresses.size() == 2);
    REQUIRE(rule.ports.size() == 2);
}

TEST_CASE("errors name the file, the line and the key") {
    REQUIRE_THAT(error_of("[monitor\n"), Catch::StartsWith("FILE:1: "));
    REQUIRE(error_of("\n[polcy]\n") == "FILE:2: polcy: unknown key");
    REQUIRE(error_of("[monitor]\n\nsokcet = 'x'\n") == "FILE:3: monitor.sokcet: unknown key");
    REQUIRE(error_of("[monitor]\nsocket = 5\n") == "FILE:2: monitor.socket: must be a string");
    REQUIRE_THAT(error_of("[monitor]\nlog_level = 'loud'\n"),
                 Catch::StartsWith("FILE:2: monitor.log_level: must be "));
    REQUIRE(error_of("[limits]\nclients = 'many'\n") == "FILE:2: limits.clients: must be a number");
    REQUIRE_THAT(error_of("[limits]\nclients = 0\n"),
                 Catch::StartsWith("FILE:2: limits.clients: must be between 1 and "));
    REQUIRE_THAT(error_of("[policy]\ndefault = 'maybe'\n"),
                 Catch::StartsWith("FILE:2: policy.default: must be "));
    REQUIRE(error_of("policy = 3\n") == "FILE:1: policy: must be a table");
    REQUIRE(error_of("[policy.rule]\naction = 'allow'\n") ==
            "FILE:1: policy.rule: must be written as [[policy.rule]]");
    REQUIRE(error_of("[[policy.rule]]\nport = 80\n") == "FILE:1: policy.rule[1].action: is missing");
    const std::string rule = "[[policy.rule]]\naction = 'deny'\n[[policy.rule]]\naction = 'allow'\n";
    REQUIRE(error_of(rule + "prot = 80\n") == "FILE:5: policy.rule[2].prot: unknown key");
    REQUIRE(error_of(rule + "port = 65536\n") == "FILE:5: policy.rule[2].port: must be between 0 and 65535");
    REQUIRE_THAT(error_of(rule + "port = '90-80'\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].port: must be a port or a range"));
    REQUIRE_THAT(error_of(rule + "address = '10.0.0.0/33'\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].address: must be an IP address"));
    REQUIRE_THAT(error_of(rule + "address = 'localhost'\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].address: "));
    REQUIRE_THAT(error_of(rule + "address = []\n"), Catch::Contains("would match nothing"));
    REQUIRE_THAT(error_of(rule + "client.uid = 'no-such-user'\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].client.uid: no user is called"));
    REQUIRE_THAT(error_of(rule + "client.gid = -1\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].client.gid: must be between"));
    for (const char *party : {"client", "server"}) { // forged by anybody with LD_PRELOAD
        REQUIRE_THAT(error_of("[[policy.rule]]\naction = 'allow'\n" + std::string(party) + ".exe = '/bin/a'\n"),
                     Catch::StartsWith("FILE:1: policy.rule[1]." + std::string(party) +
                                       ".exe: needs uid or gid in a rule that allows"));
        REQUIRE(error_of("[[policy.rule]]\naction = 'allow'\n" + std::string(party) +
                         " = { uid = 0, exe = '/bin/a' }\n") == "no error");
    }
    REQUIRE_THAT(error_of(rule + "server.exe = 'redis'\n"),
                 Catch::StartsWith("FILE:5: policy.rule[2].server.exe: must be an absolute path"));
    REQUIRE(error_of(rule + "server.name = 'x'\n") == "FILE:5: policy.rule[2].server.name: unknown key");
    REQUIRE_THROWS_AS(load_config("/nonexistent/file", Config{}), ConfigError);
}

TEST_CASE("RDMA is left to the devices unless something else is said, and needs discovery") {
    const std::string peers = "[paths]\ndiscovery = true\n[peers]\n";
    REQUIRE(load(peers).peers.rdma == UseRdma::automatic);
    REQUIRE(load(peers + "rdma = 'auto'\n").peers.rdma == UseRdma::automatic);
    REQUIRE(load(peers + "rdma = true\n").peers.rdma == UseRdma::always);
    REQUIRE(load(peers + "rdma = false\n").peers.rdma == UseRdma::never);
    REQUIRE(error_of("[peers]\nrdma = false\n") == "no error");
    for (const std::string said : {"true", "'auto'"})
        REQUIRE_THAT(error_of("[peers]\nport = 7471\nrdma = " + said + "\n"),
                     Catch::StartsWith("FILE:3: peers.rdma: needs paths.discovery = true"));
    for (const std::string wrong : {"'yes'", "1"})
        REQUIRE(error_of("[peers]\nrdma = " + wrong + "\n") ==
                "FILE:2: peers.rdma: must be true, false or \"auto\"");
}

TEST_CASE("addresses") {
    const auto matches = [](const char *pattern, const char *ip) {
        return AddressMatch::parse(pattern)->matches(AddressMatch::parse(ip)->ip);
    };
    REQUIRE(matches("127.0.0.1", "127.0.0.1"));
    REQUIRE_FALSE(matches("127.0.0.1", "127.0.0.2"));
    REQUIRE(matches("127.0.0.0/8", "127.1.2.3"));
    REQUIRE(matches("10.1.0.0/15", "10.0.255.1"));
    REQUIRE_FALSE(matches("10.1.0.0/16", "10.0.0.1"));
    REQUIRE(matches("0.0.0.0/0", "1.2.3.4"));
    REQUIRE_FALSE(matches("0.0.0.0/0", "::1"));
    REQUIRE(matches("::/0", "1.2.3.4"));
    REQUIRE(matches("fd00::/8", "fd12::1"));
    REQUIRE_FALSE(matches("fd00::/8", "fe80::1"));
    for (const char *bad : {"", "1.2.3", "1.2.3.4/", "1.2.3.4/x", "::1/129", "1.2.3.4/-1", "a.b.c.d"}) {
        REQUIRE_FALSE(AddressMatch::parse(bad));
    }
    for (const char *bad : {"", "x", "-", "80-", "-80", "80 ", "1-70000"}) {
        REQUIRE_FALSE(PortRange::parse(bad));
    }
}

TEST_CASE("the first rule that matches decides") {
    const Policy policy = load(R"(
[policy]
default = "allow"
[[policy.rule]]
action = "allow"
client.uid = 1000
port = 6379
[[policy.rule]]
action = "deny"
port = "6000-6999"
[[policy.rule]]
action = "same-user"
server.exe = "/opt/*"
[[policy.rule]]
action = "deny"
address = "10.0.0.0/8"
client.exe = "/usr/bin/curl"
)")
                              .policy;
    REQUIRE(policy.allows(alice, root, at("127.0.0.1", 6379)));
    REQUIRE_FALSE(policy.allows(bob, root, at("127.0.0.1", 6379)));
    REQUIRE_FALSE(policy.allows(alice, root, at("127.0.0.1", 6380)));
    REQUIRE(policy.allows(alice, root, at("127.0.0.1", 80)));
    REQUIRE_FALSE(policy.allows(alice, bob, at("127.0.0.1", 80)));
    REQUIRE(policy.allows(bob, bob, at("127.0.0.1", 80)));
    REQUIRE_FALSE(policy.allows(alice, root, at("10.1.1.1", 80)));
    REQUIRE(policy.allows(bob, root, at("10.1.1.1", 80)));
    // A program whose path cannot be read matches no pattern.
    REQUIRE(policy.allows(Identity{1000, 1000, ""}, root, at("10.1.1.1", 80)));
}

TEST_CASE("a listener nobody may use is not listed") {
    Policy policy;
    policy.fallback = Verdict::deny;
    REQUIRE_FALSE(policy.may_listen(root, at("127.0.0.1", 80)));
    policy.rules.push_back({Verdict::allow, {{1000}, {}, {}}, {}, {}, {{80, 80}}, {}});
    REQUIRE(policy.may_listen(root, at("127.0.0.1", 80)));
    REQUIRE_FALSE(policy.may_listen(root, at("127.0.0.1", 81)));
    policy.rules.insert(policy.rules.begin(), Rule{Verdict::deny, {}, {}, {}, {{80, 80}}, {}});
    REQUIRE_FALSE(policy.may_listen(root, at("127.0.0.1", 80)));
}

TEST_CASE("docs/operations.md has a row for every cause") {
    std::ifstream file(SD_SOURCE_ROOT "/docs/operations.md");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    REQUIRE_FALSE(text.empty());
    for (unsigned i = 1; i < sd::kMaxCauses; ++i) {
        if (*sd::cause_text(i) != '\0') {
            const std::string row =
                "| " + std::to_string(i) + " | `" + sd::cause_name(i) + "` | " + sd::cause_text(i) + " | ";
            REQUIRE_THAT(text, Catch::Contains(row));
        }
    }
}

TEST_CASE("where connections begin is said for all, and by rules") {
    REQUIRE(load("").policy.birth == Birth::automatic);
    const Config config = load(R"([policy]
birth = "kernel"
[[policy.rule]]
action = "allow"
birth = "shm"
port = 80
[[policy.rule]]
action = "allow"
port = 81
)");
    REQUIRE(config.policy.birth_of(alice, root, at("127.0.0.1", 80)) == Birth::shm);
    REQUIRE(config.policy.birth_of(alice, root, at("127.0.0.1", 81)) == Birth::kernel);
    REQUIRE(config.policy.birth_of(alice, root, at("127.0.0.1", 82)) == Birth::kernel);
    REQUIRE(error_of("[policy]\nbirth = \"tcp\"\n") ==
            "FILE:2: policy.birth: must be \"auto\", \"kernel\" or \"shm\"");
    REQUIRE(error_of("[[policy.rule]]\naction = \"deny\"\nbirth = \"shm\"\n") ==
            "FILE:3: policy.rule[1].birth: says nothing in a rule that denies");
}

namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

/// A folder of profiles, by name and text.
struct Profiles {
    char name[32] = "/tmp/sd-profiles-XXXXXX";
    explicit Profiles(const Files &files) {
        REQUIRE(mkdtemp(name) != nullptr);
        for (const auto &[file, text] : files) {
            std::ofstream(std::string(name) + "/" + file) << text;
        }
    }
    ~Profiles() { std::filesystem::remove_all(name); }
    Policy policy(bool is_system = true) const {
        Policy made;
        made.fallback = Verdict::allow;
        made.profiles = load_profiles(name, is_system);
        return made;
    }
    /// The message, from the file's name on.
    static std::string error_of(const std::string &text, bool is_system = true) {
        const Profiles one(Files{{"a.toml", text}});
        try {
            load_profiles(one.name, is_system);
        } catch (const ConfigError &error) {
            return std::string(error.what()).substr(strlen(one.name) + 1);
        }
        return "no error";
    }
};

const Identity redis{110, 110, "/usr/bin/redis-server", "redis-server.service"};

} // namespace

TEST_CASE("a profile is about a program or a unit") {
    const Profiles files(Files{{"a.toml", "unit = 'redis-*.service'\nspin = 'never'\nbuffer = 300000\n"},
                               {"b.toml", "program = ['/usr/bin/curl']\nspin = 'auto'\n"},
                               {"c.toml", "program = '/bin/*'\nspin = 'always'\n"},
                               {"d.toml", "program = '*'\nspin = 'never'\n"},
                               {"e.conf", "this is not read\n"}});
    const Policy policy = files.policy();
    REQUIRE(policy.profiles.size() == 4);
    CHECK(policy.spin(redis) == sd::wire::Spin::never);
    CHECK(policy.most_ring(redis) == 3u);                   // 256 KiB: not more than was said
    CHECK(policy.spin(alice) == sd::wire::Spin::automatic); // the first by name that says something
    CHECK(policy.spin(bob) == sd::wire::Spin::never);
    CHECK(policy.spin({1, 1, "/bin/low", ""}) == sd::wire::Spin::always);
    CHECK_FALSE(policy.most_ring(alice));
    CHECK(load_profiles("/nonexistent/profiles.d", true).empty());
}

TEST_CASE("a profile keeps its program from RDMA") {
    const Profiles files(Files{{"a.toml", "unit = 'redis-server.service'\nrdma = false\n"},
                               {"b.toml", "program = '/usr/bin/curl'\nrdma = true\n"}});
    const Policy policy = files.policy();
    for (const bool serves : {false, true})
        CHECK_FALSE(policy.allows_far(redis, serves, at("10.0.0.1", 80)));
    CHECK(policy.allows_far(alice, false, at("10.0.0.1", 80)));
    CHECK(policy.allows(redis, alice, at("127.0.0.1", 80)));
    CHECK(Profiles::error_of("program = '/bin/a'\nrdma = 'off'\n") ==
          "a.toml:2: rdma: must be true or false");
}

TEST_CASE("rules of a profile only narrow what the policy allows") {
    const Profiles files(
        Files{{"a.toml", "unit = 'redis-server.service'\n[[rule]]\naction = 'allow'\nport = 6379\n"
                         "client = { uid = 1000 }\n[[rule]]\naction = 'deny'\n"}});
    Policy policy = files.policy();
    CHECK(policy.allows(alice, redis, at("127.0.0.1", 6379)));
    CHECK_FALSE(policy.allows(bob, redis, at("127.0.0.1", 6379)));
    CHECK_FALSE(policy.allows(redis, bob, at("127.0.0.1", 80))); // also where it is the client
    CHECK(policy.allows(alice, bob, at("127.0.0.1", 80)));
    policy.fallback = Verdict::deny;
    CHECK_FALSE(policy.allows(alice, redis, at("127.0.0.1", 6379)));
}

TEST_CASE("the path of a profile: to the kernel always, past it only for a unit of the system") {
    const Profiles files(Files{{"a.toml", "unit = 'redis-server.service'\npath = 'shm'\n"},
                               {"b.toml", "program = '/opt/x/app'\npath = 'kernel'\n"}});
    Policy policy = files.policy();
    CHECK(policy.birth_of(alice, redis, at("127.0.0.1", 6379)) == Birth::shm);
    CHECK(policy.birth_of(bob, redis, at("127.0.0.1", 6379)) == Birth::kernel);
    CHECK(policy.birth_of(alice, root, at("127.0.0.1", 6379)) == Birth::automatic);
    policy.birth = Birth::kernel;
    CHECK(policy.birth_of(alice, redis, at("127.0.0.1", 6379)) == Birth::kernel);
    CHECK(Profiles::error_of("unit = 'a.service'\npath = 'kernel'\n", false) == "no error");
    CHECK_THAT(Profiles::error_of("unit = 'a.service'\npath = 'shm'\n", false),
               Catch::StartsWith("a.toml:2: path: \"shm\" is for the system's profiles"));
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\npath = 'shm'\n"),
               Catch::StartsWith("a.toml:2: path: \"shm\" needs unit"));
}

TEST_CASE("errors in profiles name the file, the line and the key") {
    CHECK(Profiles::error_of("program = '/bin/a'\n\nspinn = 'auto'\n") == "a.toml:3: spinn: unknown key");
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\nspin = 5\n"),
               Catch::StartsWith("a.toml:2: spin: must be a string"));
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\nspin = 'x'\n"),
               Catch::StartsWith("a.toml:2: spin: must be"));
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\nbuffer = 1\n"),
               Catch::StartsWith("a.toml:2: buffer: must be between"));
    CHECK_THAT(Profiles::error_of("spin = 'auto'\n"), Catch::StartsWith("a.toml:"));
    CHECK_THAT(Profiles::error_of("program = 'a'\n"),
               Catch::StartsWith("a.toml:1: program: must be an absolute path"));
    CHECK_THAT(Profiles::error_of("unit = 'a.socket'\n"),
               Catch::StartsWith("a.toml:1: unit: must be a service"));
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\n[[rule]]\nport = 80\n"),
               Catch::StartsWith("a.toml:2: rule[1].action: is missing"));
    CHECK_THAT(Profiles::error_of("program = '/bin/a'\n[[rule]]\naction = 'deny'\nprot = 80\n"),
               Catch::StartsWith("a.toml:4: rule[1].prot: unknown key"));
}
