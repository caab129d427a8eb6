// Who runs sd-bridge for connections that go to another user, and as whom. As root, since it takes several
// users. Not in builds without sd-bridge.
#include "tests/support/skip.hpp"
#include "tests/unit/bridges.hpp"
#include "tests/unit/stranger.hpp"

#include <fstream>
#include <sys/un.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

/// Starts an sd-bridge for each who connects, as a service manager does.
struct BridgeStarter {
    std::string path;
    pid_t pid = -1;

    explicit BridgeStarter(const MonitorProcess &monitor) : path(monitor.directory + "/bridges.sock") {
        const UniqueFd listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, path.c_str());
        REQUIRE(bind(listening.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
        REQUIRE(listen(listening.get(), 8) == 0);
        std::string program(SD_MONITOR_PROGRAM);
        program = program.substr(0, program.rfind('/')) + "/sd-bridge";
        setenv("SD_MONITOR", monitor.socket.c_str(), 1);
        pid = fork();
        while (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const UniqueFd channel(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (channel && fork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(channel.get(), 3);
                execl(program.c_str(), "sd-bridge", "--service", nullptr);
                _exit(127);
            }
        }
        unsetenv("SD_MONITOR");
    }
    ~BridgeStarter() {
        for (const pid_t bridge : bridges_of(pid)) {
            kill(bridge, SIGKILL);
        }
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        unlink(path.c_str());
    }
};

} // namespace

TEST_CASE("a bridge is the user whose connections it carries, and can do nothing else") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    for (const uid_t user : {kOne, kOther}) {
        const OnItsWay way;
        const Stranger sender(pair.monitor, user, {[&](TestProcess &p) {
                                  return way.pass(p, pair.listener, wire::BridgeStart::at_once);
                              }});
        REQUIRE(sender.does(0) == 0);
        const std::string id = std::to_string(user);
        pid_t bridge = 0;
        REQUIRE(eventually([&] {
            for (const pid_t pid : bridges_of(pair.monitor)) {
                if (status_line(pid, "Seccomp") == "2" && status_line(pid, "Uid").rfind(id, 0) == 0) {
                    bridge = pid;
                }
            }
            return bridge != 0;
        }));
        CHECK(status_line(bridge, "Uid") == id + "\t" + id + "\t" + id + "\t" + id);
        CHECK(status_line(bridge, "Gid") == id + "\t" + id + "\t" + id + "\t" + id);
        CHECK(status_line(bridge, "Groups").empty());
        CHECK(status_line(bridge, "CapPrm") == "0000000000000000");
        CHECK(status_line(bridge, "CapEff") == "0000000000000000");
        CHECK(status_line(bridge, "NoNewPrivs") == "1");
    }
}

TEST_CASE("a bridge that the service manager starts is the user whose connections it carries, too") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const BridgeStarter starter(pair.monitor);
    pair.monitor.stop(SIGTERM);
    pair.monitor.start({"--bridge-socket", starter.path});
    pair.server.hello(pair.monitor);
    const auto listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                              .as<wire::ListenReply>()
                              .listener_id;
    const OnItsWay way;
    const Stranger sender(pair.monitor, kOne,
                          {[&](TestProcess &p) { return way.pass(p, listener, wire::BridgeStart::at_once); }});
    REQUIRE(sender.does(0) == 0);
    const std::string id = std::to_string(kOne);
    REQUIRE(eventually([&] {
        const std::vector<pid_t> started = bridges_of(starter.pid);
        return started.size() == 1 && status_line(started[0], "Seccomp") == "2" &&
               status_line(started[0], "Uid") == id + "\t" + id + "\t" + id + "\t" + id &&
               status_line(started[0], "CapPrm") == "0000000000000000";
    }));
    REQUIRE(bridges_of(pair.monitor).empty());
}

TEST_CASE("a user's domains have no more bridges than are left for others") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    Pair pair;
    const std::string file = pair.monitor.directory + "/monitor.toml";
    std::ofstream(file) << "[limits]\nbridges = 2\n";
    pair.monitor.stop(SIGTERM);
    pair.monitor.start({"--config", file});
    pair.server.hello(pair.monitor);
    const auto listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                              .as<wire::ListenReply>()
                              .listener_id;
    const auto pass = [&](const OnItsWay &way, uid_t user) { // closed to others: a domain of its own
        const Stranger sender(
            pair.monitor, user,
            {[&](TestProcess &p) { return way.pass(p, listener, wire::BridgeStart::at_once); }}, false);
        REQUIRE(sender.does(0) == 0);
        std::vector<pid_t> running;
        REQUIRE(eventually([&] { // one that starts has the monitor's name until its exec
            running = bridges_of(pair.monitor);
            return running.size() == children_of(pair.monitor.pid).size();
        }));
        for (const pid_t bridge : running) {
            kill(bridge, SIGSTOP); // and goes on running
        }
        return running;
    };
    const OnItsWay first, second, third;
    CHECK(pass(first, kOne).size() == 1);
    CHECK(pass(second, kOne).size() == 1);
    const std::vector<pid_t> both = pass(third, kOther);
    CHECK(both.size() == 2);
    for (const pid_t bridge : both) {
        kill(bridge, SIGKILL);
    }
}
