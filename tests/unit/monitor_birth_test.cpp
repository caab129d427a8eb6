// Where something in the kernel could object to a connection, the monitor makes no link for it. With real
// rules, real programs on control groups, and the real daemon; in a network namespace of this test's own.
#include "monitor/kernel/group_programs.hpp"
#include "monitor/kernel/packet_filter.hpp"
#include "monitor/records/listener.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <bpf/bpf.h>
#include <fstream>
#include <grp.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sstream>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace sd;
using namespace sd::test;
using monitor::netns_cookie;
using monitor::PacketFilter;
using wire::Op;

namespace {

/// Once for all of this program's tests. False: that takes root.
bool own_network() {
    static const bool made = [] {
        if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) {
            return false;
        }
        const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        ifreq lo{};
        strcpy(lo.ifr_name, "lo");
        lo.ifr_flags = IFF_UP;
        return ioctl(fd.get(), SIOCSIFFLAGS, &lo) == 0;
    }();
    return made;
}

void nft(const std::string &command) { REQUIRE(system(("nft '" + command + "'").c_str()) == 0); }

struct Rules {
    Rules() { nft("add table inet t; add chain inet t out { type filter hook output priority 0; }"); }
    ~Rules() {
        if (there) {
            [[maybe_unused]] const int ignored = system("nft delete table inet t");
        }
    }
    void gone() {
        nft("delete table inet t");
        there = false;
    }
    bool there = true;
};

Answer ask(Pair &pair, uint32_t reach = wire::kLoopbackAddresses) {
    return pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, reach});
}

Cause refused(Pair &pair, uint32_t reach = wire::kLoopbackAddresses) {
    const Answer a = ask(pair, reach);
    return a.header.status == 0 ? Cause::none : static_cast<Cause>(a.header.cause);
}

/// Once the monitor has heard of what was changed.
bool becomes_closed(const TestLink &link) {
    return eventually([&] { return (link.view.header().side[1].flags.load() & kLinkListenerClosed) != 0; });
}

void restart(Pair &pair, const std::vector<std::string> &arguments, const std::function<void()> &before = {}) {
    pair.monitor.stop(SIGTERM);
    pair.monitor.start(arguments, before);
    pair.server.hello(pair.monitor);
    pair.client.hello(pair.monitor);
    pair.listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                        .as<wire::ListenReply>()
                        .listener_id;
}

void configure(Pair &pair, const char *text) {
    const std::string file = pair.monitor.directory + "/monitor.toml";
    std::ofstream(file) << text;
    restart(pair, {"--config", file});
}

} // namespace

TEST_CASE("a rule that could stop a connection has it begin on the kernel, for as long as it is there") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    REQUIRE(refused(pair) == Cause::none);
    TestLink former(pair.connect());
    Rules rules;
    nft("add rule inet t out tcp dport " + std::to_string(pair.socket.port) + " meta skuid 12345 drop");
    CHECK(refused(pair) == Cause::firewalled);
    CHECK(becomes_closed(former)); // the client asks again, and is refused
    // One that does not look at that is not accepted from.
    CHECK(Acceptors(pair).of(pair.link).syn_end.load() != 0);
    rules.gone();
    CHECK(eventually([&] { return refused(pair) == Cause::none; }));
}

TEST_CASE("a rule for another port is none for this one") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const Rules rules;
    nft("add rule inet t out tcp dport " + std::to_string(pair.socket.port ^ 1) + " drop");
    CHECK(refused(pair) == Cause::none);
}

TEST_CASE("a rule that was made while no monitor ran takes the links that are brought back") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const TestLink link(pair.connect());
    Slot &slot = link.view.slot(4);
    slot.identity.server = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, pair.socket.port, AF_INET};
    syn(link.view, 4);
    pair.monitor.stop(SIGKILL);
    std::optional<Rules> rules;
    const bool is_ruled = GENERATE(false, true);
    if (is_ruled) {
        rules.emplace();
        nft("add rule inet t out drop");
    }
    pair.monitor.start();
    pair.client.hello(pair.monitor);
    pair.server.hello(pair.monitor);
    REQUIRE(pair.client.channel.ask(Op::adopt_link, wire::Adopt{pair.link, 0, {}}, {link.fd.get()}).header.status ==
            0);
    const Acceptors acceptors(pair);
    const Answer links = pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0});
    CHECK(links.as<wire::LinksReply>().count == (is_ruled ? 0 : 1));
}

TEST_CASE("where the monitor may not read rules, programs of different users begin on the kernel") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    chmod(pair.monitor.directory.c_str(), 0755);
    restart(pair, {}, [] { prctl(PR_CAPBSET_DROP, CAP_NET_ADMIN); });
    CHECK(refused(pair) == Cause::none); // of the same user: they could do without the kernel anyway
    const bool in_container = GENERATE(false, true); // as its root, who has the number alone in common
    const pid_t other = fork();
    if (other == 0) {
        if (in_container ? unshare(CLONE_NEWNS) != 0
                         : setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(1);
        }
        try {
            TestProcess client(pair.monitor);
            const Answer a =
                client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
            const auto cause = static_cast<Cause>(a.header.cause);
            _exit(a.header.status == -EACCES && cause == Cause::rules_unseen ? 0 : 3);
        } catch (...) {
            _exit(2);
        }
    }
    int status = -1;
    REQUIRE(waitpid(other, &status, 0) == other);
    CHECK(status == 0);
}

/// The kernel here need not have a security module: a file with a label lies where the monitor reads that of
/// this process, which plays both ends.
TEST_CASE("who is confined by a security module begins on the kernel") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const std::string file = pair.monitor.directory + "/label", of = std::to_string(getpid());
    const auto label = [&](const char *text) { std::ofstream(file) << text; };
    label("a_profile (enforce)\n");
    restart(pair, {}, [&] {
        if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount(file.c_str(), ("/proc/" + of + "/attr/current").c_str(), nullptr, MS_BIND, nullptr) != 0) {
            _exit(1);
        }
    });
    CHECK(refused(pair) == Cause::labelled);
    label("a_profile (complain)\n");
    CHECK(refused(pair) == Cause::none);
    label("system_u:system_r:httpd_t:s0\n");
    CHECK(refused(pair) == Cause::labelled);
    label("unconfined\n");
    CHECK(refused(pair) == Cause::none);
    unlink(file.c_str());
}

TEST_CASE("rules cannot be read without descriptors, and the monitor goes on") {
    if (!own_network()) {
        return;
    }
    const pid_t child = fork();
    if (child == 0) { // libnftables ends a process in which it gets no socket
        const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const uint64_t cookie = netns_cookie(socket.get());
        const int last = dup(socket.get());
        close(last);
        int seen = 0;
        for (rlim_t room = 0; room < 16; ++room) {
            const rlimit limit{static_cast<rlim_t>(last) + room, 1024};
            setrlimit(RLIMIT_NOFILE, &limit);
            const PacketFilter filter(cookie, getpid());
            seen += filter.is_seen() ? 1 : 0;
        }
        _exit(seen != 0 ? 42 : 1); // with some it is as ever
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("rules of a namespace that anybody can have made are not read: any could object") {
    if (!own_network()) {
        return;
    }
    const pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
            _exit(77);
        }
        const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        PacketFilter filter(netns_cookie(socket.get()), getpid()); // of its own namespaces: as ever
        _exit(filter.is_seen() ? 0 : 1);
    }
    int ready[2], go[2];
    REQUIRE(pipe(ready) == 0);
    REQUIRE(pipe(go) == 0);
    const pid_t elsewhere = fork();
    if (elsewhere == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uint64_t cookie = unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 1 : 0;
        std::ofstream("/proc/self/uid_map") << "0 0 1"; // so that nft has what this process has
        const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        cookie = cookie == 0 ? 0 : netns_cookie(socket.get());
        char byte;
        if (write(ready[1], &cookie, sizeof cookie) != sizeof cookie || read(go[0], &byte, 1) != 1) {
            _exit(2);
        }
        byte = system("nft add table inet t") == 0 ? 'y' : 'n';
        _exit(write(ready[1], &byte, 1) == 1 ? pause() : 3);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    uint64_t cookie = 0;
    REQUIRE(read(ready[0], &cookie, sizeof cookie) == sizeof cookie);
    if (cookie != 0) {
        CHECK(status == 0);
        PacketFilter filter(cookie, elsewhere);
        REQUIRE(filter.is_seen());
        CHECK_FALSE(filter.may_object({80, false, true}));
        char byte = 'x';
        REQUIRE(write(go[1], &byte, 1) == 1);
        REQUIRE(read(ready[0], &byte, 1) == 1);
        REQUIRE(byte == 'y');
        CHECK(filter.drain());
        filter.refresh();
        CHECK(filter.may_object({80, false, true})); // an empty table: read, it would be harmless
    }
    kill_child(elsewhere);
    for (const int fd : {ready[0], ready[1], go[0], go[1]}) {
        close(fd);
    }
}

TEST_CASE("rules that change while the last process of the namespace goes") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    REQUIRE(refused(pair) == Cause::none);
    const Rules rules;
    std::string many; // which take long to read, so that the next change is read later
    for (int port = 1; port <= 1000; ++port) {
        many += "add rule inet t out tcp dport " + std::to_string(port) + " accept;";
    }
    nft(many);
    REQUIRE(eventually([&] { return refused(pair) == Cause::none; }));
    nft("add rule inet t out tcp dport 1 accept");
    CHECK(refused(pair) == Cause::firewalled); // until it has been read
    pair.client.channel.close();
    pair.server.channel.close();
    sleep(2);
    const TestProcess next(pair.monitor);
    CHECK(next.id != 0);
}

TEST_CASE("rules that spare loopback addresses are asked for the others") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const Rules rules;
    nft("add rule inet t out ip daddr != 127.0.0.0/8 drop; add rule inet t out ip6 daddr != ::1 drop");
    const Answer a = ask(pair);
    REQUIRE(a.header.status == 0);
    CHECK(a.as<wire::ConnectReply>().reach == wire::kLoopbackAddresses);
    CHECK(refused(pair, wire::kOtherAddresses) == Cause::firewalled);
    CHECK(ask(pair, 7).header.status == -EINVAL);
}

TEST_CASE("the configuration says where connections begin") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const Rules rules;
    nft("add rule inet t out drop");
    configure(pair, "[policy]\nbirth = \"shm\"\n");
    CHECK(refused(pair) == Cause::none);
    configure(pair, "[policy]\nbirth = \"kernel\"\n");
    CHECK(refused(pair) == Cause::born_on_kernel);
    const std::string rule =
        "[[policy.rule]]\naction = \"allow\"\nbirth = \"shm\"\nport = " + std::to_string(pair.socket.port) + "\n";
    configure(pair, ("[policy]\nbirth = \"kernel\"\n" + rule).c_str());
    CHECK(refused(pair) == Cause::none);
}

TEST_CASE("a reload takes the links of those who are to begin on the kernel") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    configure(pair, "[policy]\nbirth = \"shm\"\n");
    const TestLink link(pair.connect());
    std::ofstream(pair.monitor.directory + "/monitor.toml") << "[policy]\nbirth = \"kernel\"\n";
    kill(pair.monitor.pid, SIGHUP);
    CHECK(becomes_closed(link));
    CHECK(refused(pair) == Cause::born_on_kernel);
}

namespace {

/// This process in a control group below a new one.
struct Group {
    std::string root, path;
    Group() {
        std::ifstream mounts("/proc/self/mountinfo");
        for (std::string line; std::getline(mounts, line);) {
            if (line.find(" - cgroup2 ") != std::string::npos) {
                std::istringstream words(line);
                std::string skipped;
                words >> skipped >> skipped >> skipped >> skipped >> root;
            }
        }
        path = root + "/sd-birth-" + std::to_string(getpid());
        made = !root.empty() && mkdir(path.c_str(), 0755) == 0 && mkdir((path + "/below").c_str(), 0755) == 0;
        join(path + "/below");
    }
    ~Group() {
        join(root);
        rmdir((path + "/below").c_str());
        rmdir(path.c_str());
    }
    static void join(const std::string &group) { std::ofstream(group + "/cgroup.procs") << getpid(); }
    bool made;
};

/// A program that lets everything pass; the monitor cannot know that.
UniqueFd harmless_program() {
    const bpf_insn code[] = {{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = BPF_CGROUP_INET4_CONNECT);
    return UniqueFd(
        bpf_prog_load(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, "sd_birth", "GPL", code, std::size(code), &options));
}

/// This process in such a group, and a program that can be attached to it.
struct GroupWithProgram {
    const Group group;
    const UniqueFd program = harmless_program();
    const UniqueFd directory{open(group.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    /// False: not here.
    bool made() const {
        if (!group.made || !program) {
            WARN("no control groups, or no BPF here");
        }
        return group.made && program;
    }
    void attach() const {
        REQUIRE(bpf_prog_attach(program.get(), directory.get(), BPF_CGROUP_INET4_CONNECT, 0) == 0);
    }
    void detach() const {
        REQUIRE(bpf_prog_detach2(program.get(), directory.get(), BPF_CGROUP_INET4_CONNECT) == 0);
    }
};

} // namespace

TEST_CASE("control groups are looked at in pieces") {
    if (!own_network()) {
        return;
    }
    const Group group;
    if (!group.made || !monitor::has_connection_programs("/")) {
        WARN("no control groups, or no BPF here");
        return;
    }
    const std::string name = group.path.substr(group.root.size());
    monitor::SeenGroups seen;
    for (const char *below : {"", "/below", "/gone"}) {
        seen.note(name + below, false);
    }
    using Clock = monitor::SeenGroups::Clock;
    CHECK_FALSE(seen.look(Clock::time_point::min()));
    CHECK_FALSE(seen.look(Clock::time_point::min()));
    CHECK(seen.look(Clock::time_point::min()));
    CHECK_FALSE(seen.take_changed());
    seen.note(name, true); // what is not so
    CHECK(seen.take_changed());
    CHECK(seen.look(Clock::time_point::max()));
    CHECK(seen.take_changed());
}

TEST_CASE("a link that is idle is paused, and what objects by then is seen when its client asks") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const GroupWithProgram group;
    if (!group.made()) {
        return;
    }
    const TestLink link(pair.connect());
    const Acceptors acceptors(pair);
    const auto paused = [&] { return (link.view.header().side[1].flags.load() & kLinkPaused) != 0; };
    const auto renewed = [&] {
        return pair.client.channel.ask(Op::renew, wire::LinkRef{pair.link, 0, 0}).header.status;
    };
    CHECK(eventually(paused));
    CHECK(acceptors.of(pair.link).syn_end.load() != 0); // whoever does not ask is not accepted
    CHECK(renewed() == 0);
    CHECK_FALSE(paused());
    CHECK(acceptors.of(pair.link).syn_end.load() == 0);
    CHECK(renewed() == 0);
    CHECK(eventually(paused));
    group.attach();
    CHECK(renewed() == -EACCES);
    CHECK(becomes_closed(link));
    CHECK(acceptors.of(pair.link).syn_end.load() != 0);
    CHECK(pair.client.channel.ask(Op::renew, wire::LinkRef{pair.link, 1, 0}).header.status == -ENOENT);
}

TEST_CASE("a program on a control group has the connections of those below it begin on the kernel") {
    if (!own_network()) {
        return;
    }
    Pair pair;
    const GroupWithProgram group;
    if (!group.made()) {
        return;
    }
    REQUIRE(refused(pair) == Cause::none);
    const TestLink former(pair.connect());
    group.attach();
    CHECK(refused(pair) == Cause::group_filtered);
    CHECK(becomes_closed(former)); // that nobody tells it of: it looks from time to time
    group.detach();
    CHECK(refused(pair) == Cause::none);
}
