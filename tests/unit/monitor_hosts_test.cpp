// What the monitor does with what another host's monitor says: the test stands for sd-peers and for that
// host.
#include "tests/unit/monitor_client.hpp"

#include "monitor/peers/link_message.hpp"
#include "monitor/peers/report.hpp"

#include <catch2/catch.hpp>
#include <sys/un.h>

using namespace sd;
using namespace sd::test;
using namespace sd::monitor;
using namespace sd::monitor::between_hosts;

namespace {

/// The monitor of the host alpha, which knows of the host beta.
class Alpha {
  public:
    Alpha() {
        const std::string directory = monitor.directory;
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, (directory + "/peers.sock").c_str());
        REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr *>(&name), sizeof name) == 0);
        REQUIRE(listen(listener.get(), 4) == 0);
        write(directory + "/key", std::string(64, 'a'));
        write(directory + "/monitor.toml", "[peers]\nname = \"alpha\"\n[[peer]]\nname = \"beta\"\n"
                                           "address = \"192.0.2.2\"\nkey = \"" +
                                               directory + "/key\"\n");
        monitor.stop(SIGTERM);
        monitor.start({"--config", directory + "/monitor.toml", "--peers-socket", name.sun_path});
        channel.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const PeersOrder order = next();
        REQUIRE(order.kind == PeersOrder::settings_come);
        settings = order.settings;
    }
    ~Alpha() {
        for (const char *file : {"/peers.sock", "/key"}) {
            unlink((monitor.directory + file).c_str());
        }
    }

    /// The next order; its file is dropped.
    PeersOrder next() {
        PeersOrder order;
        pollfd ready{channel.get(), POLLIN, 0};
        REQUIRE(poll(&ready, 1, 20000) == 1);
        REQUIRE(recv(channel.get(), &order, sizeof order, 0) == sizeof order);
        return order;
    }
    LinkMessage next_message() {
        const PeersOrder order = next();
        REQUIRE(order.kind == PeersOrder::message);
        REQUIRE(order.session == session);
        const auto message =
            decode(static_cast<MessageKind>(order.message_kind), std::string_view(order.body, order.size));
        REQUIRE(message);
        return *message;
    }
    std::string next_refusal() {
        const PeersOrder order = next();
        REQUIRE(order.kind == PeersOrder::refuse);
        REQUIRE(order.session == session);
        return order.body;
    }
    void report(PeerReport one) {
        one.settings = settings;
        strcpy(one.name, "beta");
        REQUIRE(::send(channel.get(), &one, sizeof one, 0) == sizeof one);
    }
    /// A new session with beta, which has said nothing.
    void come_up(uint32_t version = kPeerVersion) {
        PeerReport one;
        one.state = PeerState::up;
        one.version = version;
        one.session = ++session;
        report(one);
    }
    void go_down() {
        PeerReport one;
        one.cause = PeerCause::closed;
        report(one);
    }
    void say_raw(MessageKind kind, const std::string &body) {
        PeerReport one;
        one.kind = PeerReport::message;
        one.session = session;
        one.message_kind = static_cast<uint16_t>(kind);
        one.size = static_cast<uint16_t>(body.size());
        memcpy(one.detail, body.data(), body.size());
        report(one);
    }
    void say(const LinkMessage &message) { say_raw(kind_of(message), encode(message)); }
    /// Up, and both have told which links there are.
    void meet(uint64_t epoch) {
        come_up();
        hear_list();
        say(Epoch{epoch});
        say(Links{});
    }
    void hear_list() {
        REQUIRE(std::holds_alternative<Epoch>(next_message()));
        REQUIRE(next_message() == LinkMessage(Links{}));
    }

    MonitorProcess monitor;
    UniqueFd listener{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)}, channel;
    uint32_t settings = 0;
    uint64_t session = 0;

  private:
    static void write(const std::string &path, const std::string &text) {
        const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        REQUIRE(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    }
};

} // namespace

TEST_CASE("a peer that comes up is told the epoch and the links, the same epoch each time") {
    Alpha alpha;
    alpha.come_up();
    const LinkMessage first = alpha.next_message();
    REQUIRE(std::holds_alternative<Epoch>(first));
    CHECK(alpha.next_message() == LinkMessage(Links{}));
    alpha.go_down();
    alpha.come_up();
    CHECK(alpha.next_message() == first);
    CHECK(alpha.next_message() == LinkMessage(Links{}));
    alpha.come_up(); // another session, of whose predecessor's end nobody has told
    CHECK(alpha.next_message() == first);
}

TEST_CASE("a peer whose version knows nothing of links is told nothing") {
    Alpha alpha;
    alpha.come_up(1);
    alpha.go_down();
    alpha.come_up();
    alpha.hear_list();
}

TEST_CASE("what is said out of turn ends the channel") {
    Alpha alpha;
    for (const LinkMessage &early : {LinkMessage(Offer{1, 1, {}}), LinkMessage(Links{}), LinkMessage(Gone{1})}) {
        alpha.come_up();
        alpha.hear_list();
        alpha.say(early);
        CHECK(alpha.next_refusal() == "a message about links out of turn");
    }
    alpha.come_up();
    alpha.hear_list();
    alpha.say(Epoch{1});
    alpha.say(Offer{1, 1, {}}); // before its list has ended
    CHECK(alpha.next_refusal() == "a message about links out of turn");
    for (const LinkMessage &late : {LinkMessage(Epoch{1}), LinkMessage(Links{})}) {
        alpha.meet(1);
        alpha.say(late);
        CHECK(alpha.next_refusal() == "a message about links out of turn");
    }
}

TEST_CASE("what is said of lost links that there are none of is passed over, and answered with nothing") {
    Alpha alpha;
    alpha.meet(1);
    for (const LinkMessage &message :
         std::initializer_list<LinkMessage>{Lost{1, 1, 0}, Changed{1, 2, 0}, Words{1, 2}, Records{1, 2, 8, {}},
                                            Pulled{1, 2, 1}, Pull{1, 2, 3}, Pull{4, 2, 3}})
        alpha.say(message);
    alpha.say(Epoch{1});
    CHECK(alpha.next_refusal() == "a message about links out of turn");
}

TEST_CASE("a message of a form that it cannot have ends the channel, though sd-peers has let it through") {
    Alpha alpha;
    alpha.meet(1);
    alpha.say_raw(MessageKind::joined, "short");
    CHECK(alpha.next_refusal() == "a message about links that is none");
    alpha.meet(1);
    alpha.say_raw(MessageKind::ping, "");
    CHECK(alpha.next_refusal() == "a message about links that is none");
}

TEST_CASE("what names an offer or a link that is none is refused, or dropped, and the channel stays") {
    Alpha alpha;
    alpha.meet(1);
    alpha.say(between_hosts::Joined{77, 5, 6, 7, 8});
    const LinkMessage answer = alpha.next_message();
    REQUIRE(std::holds_alternative<Refused>(answer));
    CHECK(std::get<Refused>(answer).theirs == 5);
    alpha.say(Taken{77, 5, 6});
    alpha.say(Refused{77, 5, 0});
    alpha.say(Greeting{77, wire::kGreets, 0, {}});
    alpha.say(Gone{77});
    alpha.say(Withdrawn{77});
    for (uint64_t i = 1; i <= 1000; ++i) {
        alpha.say(Offer{i, 1, {i, 0, 0, 0}});
    }
    alpha.say(between_hosts::Joined{78, 9, 6, 7, 8});
    CHECK(std::get<Refused>(alpha.next_message()).theirs == 9);
}

TEST_CASE("messages of a session that is over are dropped") {
    Alpha alpha;
    alpha.meet(1);
    alpha.session -= 1; // sd-peers may not have heard yet
    alpha.say(Epoch{2});
    alpha.session += 1;
    alpha.say(between_hosts::Joined{77, 5, 6, 7, 8});
    CHECK(std::get<Refused>(alpha.next_message()).theirs == 5);
}
