// sdctl: what stands in a unit's way, how systemctl's answers are read, and what it says to bad input.
#include "monitor/sdctl/blot.hpp"
#include "monitor/sdctl/calibrate.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/failure.hpp"
#include "monitor/sdctl/force/forced_entry.hpp"
#include "monitor/sdctl/obstacles.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>

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

namespace {

/// A process with a library, of which the test can read and spoil the memory.
struct FakeProcess {
    static constexpr uint64_t kBase = 0x10000, kCall = 0x40000;
    std::vector<uint8_t> constants = std::vector<uint8_t>(4096);
    std::vector<sd::ctl::Mapping> mappings =
        parse_mappings("10000-11000 r--p 00000000 08:01 77 /usr/lib/libsd.so\n"
                       "20000-30000 r-xp 00001000 08:01 77 /usr/lib/libsd.so\n"
                       "40000-80000 rw-p 00000000 00:00 0 \n");
    sd::forced::Entry entry{{sd::forced::kMagic, ~sd::forced::kMagic},
                            sd::forced::kVersion,
                            sizeof(sd::forced::Call),
                            reinterpret_cast<void (*)()>(0x21000),
                            reinterpret_cast<uint8_t *>(0x80000),
                            reinterpret_cast<sd::forced::Call *>(kCall)};

    std::optional<ForcedEntry> find(size_t at = 80) {
        memcpy(constants.data() + at, &entry, sizeof entry);
        return find_entry(mappings, [this](uint64_t address, void *to, size_t bytes) {
            if (address != kBase || bytes != constants.size()) {
                return false;
            }
            memcpy(to, constants.data(), bytes);
            return true;
        });
    }
};

} // namespace

TEST_CASE("lines of /proc/PID/maps are read, and what is none is left out") {
    const auto maps =
        parse_mappings("7f00-8f00 r-xp 00001000 08:01 77                 /a b/libsd.so (deleted)\n"
                       "rubbish\n"
                       "9000-8000 rw-p 00000000 00:00 0 \n"
                       "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n"
                       "a000-b000 rw-s 00000000 00:00 0 \n");
    REQUIRE(maps.size() == 3);
    REQUIRE(maps[0].name == "/a b/libsd.so (deleted)");
    REQUIRE((maps[0].readable && !maps[0].writable && maps[0].executable));
    REQUIRE(maps[1].start == 0xffffffffff600000);
    REQUIRE((maps[2].name.empty() && maps[2].writable));
    REQUIRE(maps[2].has(0xaff0, 16));
    REQUIRE_FALSE(maps[2].has(0xaff0, 17));
    REQUIRE_FALSE(maps[2].has(0xb001, 0));
    REQUIRE_FALSE(maps[2].has(0xa000, UINT64_MAX));
}

TEST_CASE("a process's word about its library counts only where its mappings agree") {
    FakeProcess p;
    REQUIRE(p.find().has_value());
    REQUIRE(p.find()->function == 0x21000);
    REQUIRE(p.find()->call == FakeProcess::kCall);
    SECTION("it is found at the very end") { REQUIRE(FakeProcess().find(4096 - sizeof p.entry).has_value()); }
    SECTION("not where it does not lie even") { REQUIRE_FALSE(FakeProcess().find(84).has_value()); }
    SECTION("another version") { p.entry.version += 1; }
    SECTION("another size") { p.entry.call_bytes -= 8; }
    SECTION("a function that is none") { p.entry.function = reinterpret_cast<void (*)()>(0x40000); }
    SECTION("a call that ends behind its mapping") {
        p.entry.call = reinterpret_cast<sd::forced::Call *>(0x7ffc0);
    }
    SECTION("a call in the kernel") {
        p.entry.call = reinterpret_cast<sd::forced::Call *>(0xffffffff81000000);
    }
    SECTION("a call in what cannot be written") {
        p.entry.call = reinterpret_cast<sd::forced::Call *>(0x20000);
    }
    SECTION("a stack at the very bottom") { p.entry.stack_top = reinterpret_cast<uint8_t *>(0x100); }
    SECTION("a stack that begins before its mapping") {
        p.entry.stack_top = reinterpret_cast<uint8_t *>(0x41000);
    }
    SECTION("memory that cannot be read") { p.mappings[0].start += 8; }
    SECTION("a library of another name") {
        for (sd::ctl::Mapping &m : p.mappings) {
            m.name += ".1";
        }
    }
    if (p.find()) { // nothing was spoilt in the first two
        p.mappings.clear();
    }
    REQUIRE_FALSE(p.find().has_value());
}

TEST_CASE("a call that a stop has ended, and that the kernel does not make again, is made again") {
    sd::cpu::Registers r{};
    r.rip = 0x1002;
    const auto interrupted = [&r](long call, long answer) {
        sd::cpu::Registers changed = r;
        changed.orig_rax = static_cast<uint64_t>(call);
        changed.rax = static_cast<uint64_t>(answer);
        sd::cpu::make_call_again(changed);
        return std::pair(changed.rip, static_cast<long>(changed.rax));
    };
    REQUIRE(interrupted(SYS_epoll_wait, -EINTR) == std::pair(0x1000ull, static_cast<long>(SYS_epoll_wait)));
    REQUIRE(interrupted(SYS_epoll_wait, 0) == std::pair(0x1002ull, 0L));
    REQUIRE(interrupted(SYS_nanosleep, -516) == std::pair(0x1002ull, -516L)); // the kernel's
    REQUIRE(interrupted(SYS_close, -EINTR) == std::pair(0x1002ull, static_cast<long>(-EINTR)));
    REQUIRE(interrupted(-1, -EINTR) == std::pair(0x1002ull, static_cast<long>(-EINTR)));

    sd::cpu::ReturnFrame frame;
    r.orig_rax = SYS_read;
    r.rax = static_cast<uint64_t>(-512);
    sd::cpu::fill_frame(frame, r, 5, 64);
    REQUIRE((frame.ip == 0x1000 && frame.ax == SYS_read && frame.mask == 5));
    r.rax = static_cast<uint64_t>(-516);
    sd::cpu::fill_frame(frame, r, 5, 64);
    REQUIRE((frame.ip == 0x1002 && frame.ax == static_cast<uint64_t>(-EINTR)));
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

TEST_CASE("doctor looks at everything that it promises, and each finding has a page") {
    const Outcome outcome = sdctl({"doctor", "--json"});
    for (const char *subject : {"monitor", "library", "kernel", "devices"}) {
        INFO(outcome.output);
        REQUIRE(outcome.output.find(std::string("\"subject\": \"") + subject + "\"") != std::string::npos);
    }
    REQUIRE(outcome.output.find("\"page\": \"\"") == std::string::npos);
}

TEST_CASE("doctor finds a process whose library was replaced, and limits of this session") {
    const Outcome outcome = run(
        {"sh", "-c",
         "d=$(mktemp -d) && cp \"$(dirname " SD_CTL_PROGRAM ")/libsd.so\" $d/libsd.so && "
         "{ LD_PRELOAD=$d/libsd.so sleep 20 & } && sleep 0.5 && rm -r $d && ulimit -f 1000 && " SD_CTL_PROGRAM
         " doctor; kill %1 2>/dev/null || kill $!"});
    INFO(outcome.output << outcome.errors);
    REQUIRE(outcome.output.find("remark  version: ") != std::string::npos);
    REQUIRE(outcome.output.find("still have a library that was replaced") != std::string::npos);
    REQUIRE(outcome.output.find("remark  limits: files may not grow") != std::string::npos);
}

TEST_CASE("names and addresses are blotted out, the same one by the same word") {
    Blotter blotter;
    for (const char *name : {"secretd", "secretd-worker", "jane", "web.service", "sd-monitor", "x", "4711"}) {
        blotter.add_name(name);
    }
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"secretd[12] and secretd", "NAME-1[12] and NAME-1"},
        {"secretd-worker, jane: web.service", "NAME-2, NAME-3: NAME-4"},
        {"unsecretd secretdx janes", "unsecretd secretdx janes"},
        {"sd-monitor x 4711", "sd-monitor x 4711"},
        {"\"10.1.2.3:80\" 10.1.2.3. 10.1.2.33", "\"ADDRESS-1:80\" ADDRESS-1. ADDRESS-2"},
        {"[fe80::1]:443 [2001:db8::7]", "[ADDRESS-3]:443 [ADDRESS-4]"},
        {"::ffff:10.0.0.1 52:54:00:12:34:56", "ADDRESS-5 ADDRESS-6"},
        {"12:34:56 a::b 1.2.3 version 0.1.0 5.14.0-18", "12:34:56 ADDRESS-7 1.2.3 version 0.1.0 5.14.0-18"},
        {"/home/jane/x.toml /usr/bin/secretd", "PATH-1 /usr/bin/NAME-1"},
        {"exe=\"/opt/a b\" /etc/socksdirect/sd-monitor.toml",
         "exe=\"PATH-2 b\" /etc/socksdirect/sd-monitor.toml"},
        {"and/or 1/2", "and/or 1/2"},
    };
    for (const auto &[text, blotted] : cases) {
        CHECK(blotter.blot(text) == blotted);
    }
}

TEST_CASE("a report has what is needed, is for its user only, and leaks no name and no address") {
    // A program with a name of its own, on a connection of its own.
    const Outcome outcome = run({"sh", "-c", R"sh(
        ctl=)sh" SD_CTL_PROGRAM R"sh(
        d=$(mktemp -d) && export XDG_RUNTIME_DIR=$d && unset SD_MONITOR && cd $d && umask 0 &&
        cp "$(readlink -f /usr/bin/python3)" $d/secretprog &&
        cat > pair.py <<'END'
import socket, subprocess, sys
a = socket.create_server(("127.83.71.59", 0))
b = socket.create_connection(a.getsockname())
c, _ = a.accept()
subprocess.run(sys.argv[1:], check=True)
END
        $ctl run $d/secretprog pair.py $ctl report -o $d/r.tar.gz > out || exit
        stat -c %a r.tar.gz; tar -xOzf r.tar.gz > all; tar -tzf r.tar.gz
        grep -c '"connections":\[{' all; grep -o '"to_server":{"bytes"' all | head -1
        grep -n -e secretprog -e 127.83.71.59 -e "$d" -e "$(uname -n)" -e pair.py all && echo LEAK
        $ctl report -o r.tar.gz; echo "again $?"
        $ctl report -o /nonexistent/r; echo "nowhere $?"
        rm -r $d)sh"});
    INFO(outcome.output << outcome.errors);
    REQUIRE(outcome.output.find("600\n") == 0);
    for (const char *part : {"versions", "doctor", "configuration", "status.json", "journal", "limits"}) {
        CHECK(outcome.output.find(std::string("socksdirect-report/") + part + "\n") != std::string::npos);
    }
    // There was something to leak.
    CHECK(outcome.output.find("\n1\n\"to_server\":{\"bytes\"\n") != std::string::npos);
    CHECK(outcome.output.find("LEAK") == std::string::npos);
    CHECK(outcome.output.find("again 1\nnowhere 1\n") != std::string::npos);
    CHECK(outcome.errors.find("/nonexistent/r: No such file or directory") != std::string::npos);
}

TEST_CASE("what cannot be printed is an error") {
    const Outcome outcome = run({"sh", "-c", "exec " SD_CTL_PROGRAM " list >/dev/full"});
    REQUIRE(outcome.status == static_cast<int>(Exit::failed));
    REQUIRE(outcome.errors.find("standard output: No space left on device") != std::string::npos);
}

TEST_CASE("pages are handed over from where they always cost clearly less") {
    const auto at = [](uint64_t kib, double copied, double paged) {
        return Costs{kib << 10, copied, paged, 0, 0, 0};
    };
    const auto from = [](const std::vector<Costs> &costs) {
        return crossing(costs, &Costs::copy_word, &Costs::give_word);
    };
    CHECK(from({at(64, 1, 2), at(128, 2, 1), at(256, 4, 1)}) == 128 << 10);
    CHECK(from({at(64, 2, 1), at(128, 2, 2), at(256, 4, 1)}) == 256 << 10); // a lucky one does not count
    CHECK(from({at(64, 2, 1), at(128, 2, 1), at(256, 1, 2)}) == kNeverPays);
    CHECK(from({at(64, 1, 0.97)}) == kNeverPays); // about the same
    CHECK(from({}) == kNeverPays);
}

TEST_CASE("a message costs what its calls and pages cost") {
    const Primitives p{100, 1, 2, 50, 3, 7, 5, 11, {{4096, 10}, {1 << 20, 20}}};
    const Predicted one = predicted(p, 4096), many = predicted(p, 2 << 20);
    CHECK(one.copy == 23);
    CHECK(one.give == 2 * (100 + 7 + 11) + 1 + 2 + 3 + 8 * 5 + 50);
    CHECK(many.copy == 512 * (2 * 20 + 3)); // it does not fit into the caches any more
    CHECK(many.give == 4 * (100 + 7 + 11) + 512 * (6 + 8 * 5) + 50);
    CHECK(many.rewritten == many.give + 512 * (20 + 1 + 2));
}
