// The containers' socket: what a hostile program in a container can ask there, and what it does not get.
#include "tests/support/skip.hpp"
#include "tests/unit/monitor_client.hpp"
#include "tests/unit/networks.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

/// A monitor with a socket for containers beside its own.
struct Host {
    MonitorProcess monitor;
    std::string directory = monitor.directory + "/containers", socket = directory + "/monitor.sock";
    Host() {
        monitor.stop(SIGKILL);
        mkdir(directory.c_str(), 0755);
        std::ofstream(monitor.directory + "/monitor.toml")
            << "[monitor]\ncontainers_socket = \"" << socket << "\"\n";
        start();
    }
    ~Host() {
        monitor.stop(SIGKILL);
        for (const std::string &file : {socket, socket + ".lock", directory + ".lock"}) {
            unlink(file.c_str());
        }
        rmdir(directory.c_str());
    }
    void start() { monitor.start({"--config", monitor.directory + "/monitor.toml"}); }
    Channel enter() const { return Channel(UniqueFd(monitor::connect_monitor(socket.c_str()))); }
    nlohmann::json status() const {
        Channel asks(monitor);
        const Answer a = asks.ask(Op::status);
        REQUIRE(a.fds.size() == 1);
        std::string text(1 << 20, '\0');
        const ssize_t n = pread(a.fds[0].get(), text.data(), text.size(), 0);
        text.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return nlohmann::json::parse(text.c_str());
    }
};

/// A process that has said hello by a channel of this socket.
struct Contained : TestProcess {
    explicit Contained(const Host &host) {
        channel = host.enter();
        const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
        const Answer a = channel.ask(Op::hello, body, {segment.fd.get(), socket.get()});
        REQUIRE(a.header.status == 0);
        id = a.as<wire::HelloReply>().client_id;
    }
};

int status_of(Channel &channel, Op op, size_t length = 0) {
    const unsigned char body[wire::kMaxBody]{};
    const Answer a = channel.ask(op, body, length);
    REQUIRE_FALSE(a.closed);
    return a.header.status;
}

} // namespace

TEST_CASE("by the containers' socket nobody sees what others have, or writes into the log") {
    Host host;
    const TestProcess of_the_host(host.monitor);
    Channel stranger = host.enter();
    CHECK(status_of(stranger, Op::status) == -EPERM);
    CHECK(status_of(stranger, Op::snapshot) == -EPERM);
    CHECK(status_of(stranger, Op::log, sizeof(wire::Log)) == -EPERM);
    Contained process(host);
    CHECK(status_of(process.channel, Op::status) == -EPERM);
    CHECK(status_of(process.channel, Op::snapshot) == -EPERM);
    CHECK(status_of(process.channel, Op::log, sizeof(wire::Log)) == -EPERM);
    // Not what a request lacks, but where it comes from: it goes on with its connections.
    CHECK(status_of(process.channel, Op::ends) == 0);
    Channel asks(host.monitor);
    CHECK(status_of(asks, Op::status) == 0);
}

TEST_CASE("a channel that a container has made for somebody else is a container's, too") {
    Host host;
    SECTION("for one that cannot connect") {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        Channel answers{UniqueFd(ends[0])};
        const UniqueFd theirs(ends[1]);
        Channel door = host.enter();
        wire::Packet packet{};
        packet.header.magic = wire::kMagic;
        packet.header.version = wire::kVersion;
        packet.header.op = static_cast<uint16_t>(Op::enter);
        packet.header.sequence = wire::kNoAnswer;
        packet.header.fds = 1;
        REQUIRE(door.raw(&packet, sizeof packet.header, {theirs.get()}));
        Answer a = answers.answer();
        REQUIRE(a.fds.size() == 1);
        Channel made(std::move(a.fds[0]));
        CHECK(status_of(made, Op::status) == -EPERM);
    }
    SECTION("for a child") {
        Contained process(host);
        process.segment.view.proc(1).state = 1;
        wire::Fork body{};
        body.segments = 1;
        body.child_in[0] = {process.id, 1, 0};
        Answer a = process.channel.ask(Op::fork, body);
        REQUIRE(a.header.status == 0);
        REQUIRE(a.fds.size() == 1);
        Channel child(std::move(a.fds[0]));
        CHECK(status_of(child, Op::child, sizeof(wire::Child)) == 0);
        CHECK(status_of(child, Op::snapshot) == -EPERM);
    }
}

namespace {

std::set<std::string> payers(const Host &host) {
    std::set<std::string> names;
    for (const auto &account : host.status()["resources"]["accounts"]) {
        if (account["clients"] > 0) {
            names.insert(account["name"]);
        }
    }
    return names;
}

} // namespace

TEST_CASE("what a container's users have the monitor hold is not charged to the host's users") {
    Host host;
    const OwnGroup group;
    if (geteuid() != 0 || !group.is_made()) {
        SKIP_TEST("it takes another user, and a unified hierarchy of control groups");
    }
    chmod(host.monitor.directory.c_str(), 0755);
    constexpr uid_t kSomebody = 60001;
    const auto is_paid_by_the_user = [&](const std::string &socket) {
        REQUIRE(seteuid(kSomebody) == 0);
        Channel channel(UniqueFd(monitor::connect_monitor(socket.c_str())));
        REQUIRE(seteuid(0) == 0);
        REQUIRE(status_of(channel, Op::presence) == 0); // so it has been accepted
        const std::set<std::string> found = payers(host);
        REQUIRE(found.count("group " + group.path().substr(monitor::unified_top().size())) != 0);
        return found.count("user " + std::to_string(kSomebody)) != 0;
    };
    CHECK_FALSE(is_paid_by_the_user(host.socket));
    CHECK(is_paid_by_the_user(host.monitor.socket));
}

TEST_CASE("a restarted monitor's socket is seen in the directory that containers have mounted") {
    Host host;
    const UniqueFd mounted(open(host.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); // as a mount has it
    const std::string seen = "/proc/self/fd/" + std::to_string(mounted.get()) + "/monitor.sock";
    REQUIRE(UniqueFd(monitor::connect_monitor(seen.c_str())).get() >= 0);
    host.monitor.stop(SIGKILL);
    REQUIRE(UniqueFd(monitor::connect_monitor(seen.c_str())).get() < 0);
    host.start();
    Channel again(UniqueFd(monitor::connect_monitor(seen.c_str())));
    CHECK(status_of(again, Op::status) == -EPERM);
}

TEST_CASE("nothing in the directory that containers see says who runs the monitor") {
    Host host;
    std::set<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(host.directory)) {
        names.insert(entry.path().filename());
    }
    CHECK(names == std::set<std::string>{"monitor.sock"});
}
