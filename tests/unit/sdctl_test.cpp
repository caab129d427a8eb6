// sdctl: what stands in a unit's way, how systemctl's answers are read, and what it says to bad input.
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/failure.hpp"
#include "monitor/sdctl/obstacles.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace sd::ctl;

namespace {

constexpr const char *kLibrary = "/usr/lib/x86_64-linux-gnu/socksdirect/libsd.so";

/// The names of what stands in the way of a unit; a remark has a "?" behind it.
std::vector<std::string> obstacles(const Properties &unit) {
    std::vector<std::string> names;
    for (const Obstacle &o : find_obstacles(unit, kLibrary)) {
        REQUIRE_FALSE(o.reason.empty());
        names.push_back(o.property + (o.blocks ? "" : "?"));
    }
    return names;
}

using Names = std::vector<std::string>;

Outcome sdctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SD_CTL_PROGRAM);
    return run(arguments);
}

} // namespace

TEST_CASE("a unit without a sandbox has no obstacle") {
    REQUIRE(obstacles({}).empty());
    REQUIRE(
        obstacles({{"RestrictAddressFamilies", "~"}, {"SystemCallFilter", "~"}, {"LimitAS", "infinity"}}).empty());
}

TEST_CASE("each setting that stands in the way is named, and its neighbours are not") {
    const std::vector<std::pair<Properties, Names>> cases = {
        {{{"RestrictAddressFamilies", "AF_INET"}}, {"RestrictAddressFamilies", "RestrictAddressFamilies?"}},
        {{{"RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"}}, {"RestrictAddressFamilies?"}},
        {{{"RestrictAddressFamilies", "AF_INET AF_UNIX AF_NETLINK"}}, {}},
        {{{"RestrictAddressFamilies", "~AF_PACKET"}}, {}},
        {{{"RestrictAddressFamilies", "~AF_PACKET AF_UNIX"}}, {"RestrictAddressFamilies"}},
        {{{"SystemCallFilter", "read write"}}, {"SystemCallFilter"}},
        {{{"SystemCallFilter", "~ptrace reboot"}}, {}},
        {{{"SystemCallFilter", "~ptrace eventfd2:1"}}, {"SystemCallFilter"}},
        {{{"IPAddressDeny", "0.0.0.0/0"}}, {"IPAddressDeny"}},
        {{{"IPAddressAllow", ""}}, {}},
        {{{"BPFProgram", "egress:/sys/fs/bpf/x"}}, {"BPFProgram"}},
        {{{"RootDirectory", "/srv/root"}}, {"RootDirectory"}},
        {{{"RootDirectory", "/"}}, {}},
        {{{"InaccessiblePaths", "-/run/socksdirect"}}, {"InaccessiblePaths"}},
        {{{"InaccessiblePaths", "/run/socks /usr/lib/x86"}}, {}},
        {{{"TemporaryFileSystem", "/usr:ro"}}, {"TemporaryFileSystem"}},
        {{{"NoExecPaths", "/"}}, {"NoExecPaths"}},
        {{{"NoExecPaths", "/"}, {"ExecPaths", "/usr/bin/x /usr/lib"}}, {}},
        {{{"LimitAS", "134217728"}}, {"LimitAS"}},
        {{{"LimitNOFILE", "64"}}, {"LimitNOFILE?"}},
        {{{"UnsetEnvironment", "LANG LD_PRELOAD"}}, {"UnsetEnvironment"}},
        {{{"PrivateNetwork", "yes"}}, {"PrivateNetwork?"}},
        {{{"AppArmorProfile", "web"}}, {"AppArmorProfile?"}},
        {{{"MemoryDenyWriteExecute", "yes"}, {"PrivateTmp", "yes"}, {"RuntimeDirectory", "x"}}, {}},
    };
    for (const auto &[unit, names] : cases) {
        INFO(unit.begin()->first << "=" << unit.begin()->second);
        REQUIRE(obstacles(unit) == names);
    }
}

TEST_CASE("a variable is read as the service manager writes it") {
    REQUIRE(variable_of("A=1 LD_PRELOAD=/x.so B=2", "LD_PRELOAD") == "/x.so");
    REQUIRE(variable_of("\"LD_PRELOAD=/x.so /y.so\" B=2", "LD_PRELOAD") == "/x.so /y.so");
    REQUIRE(variable_of("\"A=LD_PRELOAD=/x.so LD_PRELOAD=/z.so\"", "LD_PRELOAD").empty());
    REQUIRE(variable_of("LD_PRELOAD=/a\nLD_PRELOAD=/b", "LD_PRELOAD") == "/b");
    REQUIRE(variable_of("", "LD_PRELOAD").empty());
    REQUIRE(variable_of("A=\"", "A").empty());
    REQUIRE(variable_of_file("# LD_PRELOAD=/no\n  LD_PRELOAD=\"/x y\" \nB=1\n", "LD_PRELOAD") == "/x y");
    REQUIRE(variable_of_file("MY_LD_PRELOAD=/no\n", "LD_PRELOAD").empty());
}

TEST_CASE("bad input: the message names it, and the status is that of the manual's table") {
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{}, "subcommand"},
        {{"frob"}, "frob: there is no such command"},
        {{"enable"}, "UNIT is required"},
        {{"enable", "a/b"}, "\"a/b\": can be no unit's name"},
        {{"enable", ""}, "\"\": can be no unit's name"},
        {{"enable", "--", "-x"}, "\"-x\": can be no unit's name"},
        {{"enable", "web.socket"}, "web.socket: only services have programs"},
        {{"disable"}, "disable: needs either --all or units"},
        {{"disable", "--all", "x"}, "disable: needs either --all or units"},
        {{"list", "--frob"}, "--frob"},
        {{"run"}, "COMMAND is required"},
    };
    for (const auto &[arguments, text] : cases) {
        const Outcome outcome = sdctl(arguments);
        INFO(outcome.errors);
        REQUIRE(outcome.status == static_cast<int>(Exit::usage));
        REQUIRE(outcome.errors.rfind("sdctl: ", 0) == 0);
        REQUIRE(outcome.errors.find(text) != std::string::npos);
        REQUIRE(outcome.output.empty());
    }
}

TEST_CASE("without a service manager enable says so and changes nothing") {
    const Outcome outcome = run({"env", "PATH=/nonexistent", SD_CTL_PROGRAM, "enable", "web"});
    REQUIRE(outcome.status == static_cast<int>(Exit::failed));
    REQUIRE(outcome.errors.find("systemctl: No such file or directory") != std::string::npos);
}

TEST_CASE("run is sdrun with all that follows, and its status") {
    const Outcome outcome = sdctl({"run", "sh", "-c", "echo \"$LD_PRELOAD\" \"$1\"; exit 7", "sh", "--now"});
    REQUIRE(outcome.status == 7);
    REQUIRE(outcome.output.find("/libsd.so --now\n") != std::string::npos);
    REQUIRE(sdctl({"run", "--", "no-such-program-here"}).status == 127);
}

TEST_CASE("doctor finds a monitor that is named and not there") {
    setenv("SD_MONITOR", "/nonexistent/monitor.sock", 1);
    const Outcome outcome = sdctl({"doctor"});
    unsetenv("SD_MONITOR");
    REQUIRE(outcome.status == static_cast<int>(Exit::trouble));
    REQUIRE(outcome.output.find("wrong   monitor: none runs at /nonexistent/monitor.sock") != std::string::npos);
    REQUIRE(outcome.output.find("do: unset SD_MONITOR") != std::string::npos);
}

TEST_CASE("what cannot be printed is an error") {
    const Outcome outcome = run({"sh", "-c", "exec " SD_CTL_PROGRAM " list >/dev/full"});
    REQUIRE(outcome.status == static_cast<int>(Exit::failed));
    REQUIRE(outcome.errors.find("standard output: No space left on device") != std::string::npos);
}
