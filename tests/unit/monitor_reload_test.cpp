// SIGHUP: the configuration is read again.
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <fstream>

using namespace sd;
using namespace sd::test;

namespace {

struct Reloading {
    MonitorProcess monitor;
    std::string file = monitor.directory + "/monitor.toml";

    explicit Reloading(const std::string &text) {
        monitor.stop(SIGKILL);
        write(text);
        monitor.start({"--config", file});
    }
    void write(const std::string &text) const { std::ofstream(file) << text; }
    /// Signals, and waits for the line in the log that says what came of it.
    bool reload(const char *outcome) const {
        kill(monitor.pid, SIGHUP);
        return eventually([&] { return monitor.log().find(outcome) != std::string::npos; });
    }
};

int status_of_connect(TestProcess &client, uint32_t listener) {
    return client.channel.ask(wire::Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).header.status;
}

} // namespace

TEST_CASE("SIGHUP: the rules of the file hold for what is asked for from then on") {
    Reloading r("[policy]\ndefault = \"allow\"\n");
    TestListener socket;
    TestProcess server(r.monitor), client(r.monitor), second(r.monitor);
    const Answer listening = server.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    const uint32_t listener = listening.as<wire::ListenReply>().listener_id;
    REQUIRE(status_of_connect(client, listener) == 0);
    r.write("[policy]\ndefault = \"deny\"\n");
    REQUIRE(r.reload("is in force for new connections"));
    REQUIRE(status_of_connect(second, listener) == -EACCES);
    // What there was goes on: the listener, and the channels of all three.
    REQUIRE(find_entry(client.directory(), socket.port) != nullptr);
    REQUIRE(server.channel.ask(wire::Op::links, wire::Links{listener, 0}).as<wire::LinksReply>().count == 1);
}

TEST_CASE("SIGHUP: a wrong file changes nothing, and the log names the place") {
    Reloading r("[policy]\ndefault = \"allow\"\n");
    TestListener socket;
    TestProcess server(r.monitor), client(r.monitor);
    const Answer listening = server.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    r.write("[policy]\ndefault = \"deny\"\ndefautl = \"allow\"\n");
    REQUIRE(r.reload("stays as it was"));
    REQUIRE(r.monitor.log().find(r.file + ":3: policy.defautl: unknown key") != std::string::npos);
    REQUIRE(status_of_connect(client, listening.as<wire::ListenReply>().listener_id) == 0);
}
