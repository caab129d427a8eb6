// Requests that waited to be accepted when the monitor ended, and whose server is long in coming back.
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <fstream>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

constexpr auto kPatience = "20"; ///< milliseconds, instead of ten seconds

void be_impatient() { setenv("SD_TEST_COME_BACK", kPatience, 1); }

/// As long as it is there, this process is one that has libsd, to whoever looks at its memory.
class HasLibrary {
  public:
    explicit HasLibrary(const MonitorProcess &monitor) {
        const std::string path = monitor.directory + "/libsd.so";
        const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        REQUIRE(ftruncate(file.get(), kBytes) == 0);
        page_ = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
        REQUIRE(page_ != MAP_FAILED);
        unlink(path.c_str());
    }
    ~HasLibrary() { munmap(page_, kBytes); }

  private:
    static constexpr size_t kBytes = 4096;
    void *page_;
};

/// A server that has not accepted a client's request.
struct Waiting {
    TestListener socket;
    uint64_t link_id = 0;
    std::unique_ptr<TestLink> link;

    Waiting(TestProcess &server, TestProcess &client) {
        Answer a = client.channel.ask(Op::connect, wire::Connect{listen(server), wire::kLoopbackAddresses});
        REQUIRE(a.header.status == 0);
        link_id = a.as<wire::ConnectReply>().link_id;
        link = std::make_unique<TestLink>(std::move(a.fds.at(0)));
        request(client, *link, link_id);
    }
    uint32_t listen(TestProcess &server) {
        return server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    }
    void request(TestProcess &client, const TestLink &where, uint64_t id) const {
        Slot &slot = where.view.slot(4);
        client.segment.open(1, id, 4, 0);
        slot.identity.server = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, socket.port, AF_INET};
        slot.identity.state = static_cast<uint32_t>(SlotState::syn);
        where.view.syn(0) = 5;
    }
    void bring_back(TestProcess &client) const {
        const wire::Adopt body{link_id, 0, {}};
        REQUIRE(client.channel.ask(Op::adopt_link, body, {link->fd.get()}).header.status == 0);
    }
    bool is_reset() const { return link->view.slot(4).side[1].control.flags != 0; }
};

} // namespace

TEST_CASE("a request waits as long as somebody with libsd has the socket, however long he makes no call") {
    MonitorProcess monitor;
    const HasLibrary library(monitor);
    TestProcess server(monitor), client(monitor);
    Waiting stopped(server, client), ends(server, client), ends_later(server, client);
    monitor.stop(SIGKILL);
    ends.socket.fd.reset();
    monitor.start({}, be_impatient);
    client.hello(monitor);
    stopped.bring_back(client);
    ends_later.bring_back(client);
    ends.bring_back(client); // it is due last, so the others have been looked at when it is reset
    REQUIRE(eventually([&] { return ends.is_reset(); }));
    ends_later.socket.fd.reset();
    REQUIRE(eventually([&] { return ends_later.is_reset(); }));
    REQUIRE(!stopped.is_reset());
    server.hello(monitor);
    const Answer links = server.channel.ask(Op::links, wire::Links{stopped.listen(server), 0});
    REQUIRE(links.as<wire::LinksReply>().count == 1);
    REQUIRE(!stopped.is_reset());
}

TEST_CASE("a request is refused when somebody without libsd alone has the socket") {
    MonitorProcess monitor;
    TestProcess server(monitor), client(monitor);
    const Waiting one(server, client);
    monitor.stop(SIGKILL);
    monitor.start({}, be_impatient);
    client.hello(monitor);
    one.bring_back(client);
    REQUIRE(eventually([&] { return one.is_reset(); }));
}

TEST_CASE("a request is refused when its listener is shown and not taken in") {
    MonitorProcess monitor;
    const HasLibrary library(monitor);
    TestProcess server(monitor), client(monitor);
    Waiting one(server, client);
    monitor.stop(SIGKILL);
    const std::string file = monitor.directory + "/monitor.toml";
    std::ofstream(file) << "[limits]\nlisteners_per_client = 1\n";
    monitor.start({"--config", file});
    client.hello(monitor);
    one.bring_back(client);
    server.hello(monitor);
    const TestListener other;
    REQUIRE(server.channel.ask(Op::listen, wire::Listen{16, 0}, {other.fd.get()}).header.status == 0);
    REQUIRE(!one.is_reset());
    one.listen(server);
    REQUIRE(one.is_reset());
}
