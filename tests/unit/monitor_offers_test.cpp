// Connections of the kernel whose two ends are offered to the monitor.
#include "tests/unit/monitor_pair.hpp"

#include "tests/support/skip.hpp"

#include <arpa/inet.h>
#include <sys/stat.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

Answer offer(TestProcess &process, const UniqueFd &socket, uint32_t side) {
    return process.channel.ask(Op::offer, wire::Offer{side, 0}, {socket.get()});
}
Answer other_end(TestProcess &process, const UniqueFd &socket) {
    return process.channel.ask(Op::other_end, "", 0, {socket.get()});
}
uint32_t joined(TestProcess &process) { return process.segment.view.header().joined.load(); }
uint64_t cookie_of(const UniqueFd &socket) {
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    REQUIRE(getsockopt(socket.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0);
    return cookie;
}

/// For the monitor that is started next.
struct Joining {
    Joining() { setenv("SD_TEST_PATHS", "kernel", 1); }
    ~Joining() { unsetenv("SD_TEST_PATHS"); }
};
struct JoiningPair : Joining, Pair {};

/// With these limits, and everybody there again.
void restart(JoiningPair &pair, const std::string &limits) {
    const std::string file = pair.monitor.directory + "/monitor.toml";
    FILE *config = fopen(file.c_str(), "w");
    fputs(("[limits]\n" + limits).c_str(), config);
    fclose(config);
    pair.monitor.stop(SIGTERM);
    pair.monitor.start({"--config", file});
    pair.server.hello(pair.monitor);
    pair.client.hello(pair.monitor);
    REQUIRE(pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()}).header.status == 0);
}

} // namespace

TEST_CASE("what discovery has not found is joined for tests only") {
    Pair pair;
    KernelConnection one(pair.socket);
    const Answer refused = offer(pair.client, one.client, 0);
    CHECK(refused.header.status == -EACCES);
    CHECK(static_cast<Cause>(refused.header.cause) == Cause::discovery_off);
    CHECK(other_end(pair.client, one.client).header.status == -ENOENT);
}

TEST_CASE("two ends of a connection get one slot of one link") {
    JoiningPair pair;
    KernelConnection one(pair.socket), two(pair.socket);
    const Answer first = offer(pair.client, one.client, 0);
    REQUIRE(first.header.status == 0);
    CHECK(first.as<wire::OfferReply>().link_id == 0);
    CHECK(first.fds.empty());
    CHECK(other_end(pair.client, one.client).header.status == -ENOENT);
    CHECK(joined(pair.client) == 0);

    const Answer second = offer(pair.server, one.server, 1);
    REQUIRE(second.header.status == 0);
    REQUIRE(second.fds.size() == 1);
    const auto at_server = second.as<wire::OfferReply>();
    CHECK(joined(pair.client) == 1);
    CHECK(joined(pair.server) == 0);
    const Answer told = other_end(pair.client, one.client);
    REQUIRE(told.fds.size() == 1);
    CHECK(told.as<wire::OfferReply>().link_id == at_server.link_id);
    CHECK(told.as<wire::OfferReply>().slot == at_server.slot);
    CHECK(other_end(pair.client, one.client).header.status == -ENOENT); // said once

    // In the other order: the same link, another slot.
    REQUIRE(offer(pair.server, two.server, 1).as<wire::OfferReply>().link_id == 0);
    const Answer third = offer(pair.client, two.client, 0);
    REQUIRE(third.header.status == 0);
    CHECK(third.as<wire::OfferReply>().link_id == at_server.link_id);
    CHECK(third.as<wire::OfferReply>().slot != at_server.slot);
    CHECK(joined(pair.server) == 1);
}

TEST_CASE("only the two ends of one connection are joined") {
    JoiningPair pair;
    KernelConnection one(pair.socket), two(pair.socket);
    REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
    CHECK(offer(pair.server, two.server, 1).as<wire::OfferReply>().link_id == 0);
    CHECK(offer(pair.server, one.client, 1).header.status == -EEXIST); // another's
    CHECK(other_end(pair.server, one.client).header.status == -ENOENT);
    CHECK(offer(pair.client, pair.socket.fd, 0).header.status == -EINVAL);        // a listener
    CHECK(offer(pair.client, two.client, 2).header.status == -EINVAL);            // no such side
    CHECK(offer(pair.client, one.server, 0).as<wire::OfferReply>().link_id == 0); // both say they connected
    CHECK(joined(pair.client) == 0);
    CHECK(joined(pair.server) == 0);
    shutdown(two.client.get(), SHUT_WR);
    CHECK(offer(pair.client, two.client, 0).header.status == -EINVAL); // not open in both directions
}

TEST_CASE("an end that goes before it has heard is dead for the other") {
    JoiningPair pair;
    KernelConnection one(pair.socket), two(pair.socket);
    REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
    Answer second = offer(pair.server, one.server, 1);
    REQUIRE(second.fds.size() == 1);
    const uint32_t slot = second.as<wire::OfferReply>().slot;
    const TestLink link(std::move(second.fds[0]));
    const auto &flags = link.view.slot(slot).side[0].control.flags;
    CHECK(flags.load() == 0);
    REQUIRE(pair.client.channel.ask(Op::take_back, wire::Offered{cookie_of(one.client)}).header.status == 0);
    CHECK(flags.load() == (kFlagDead | kFlagClosed | kFlagReleased));
    CHECK(other_end(pair.client, one.client).header.status == -ENOENT);
    // What was taken back before anybody came is joined with nobody.
    REQUIRE(offer(pair.client, two.client, 0).header.status == 0);
    REQUIRE(pair.client.channel.ask(Op::take_back, wire::Offered{cookie_of(two.client)}).header.status == 0);
    CHECK(offer(pair.server, two.server, 1).as<wire::OfferReply>().link_id == 0);
    CHECK(pair.client.channel.ask(Op::take_back, wire::Offered{1}).header.status == -ENOENT);
}

TEST_CASE("a link that its client never heard of goes with the ends that it gives up") {
    JoiningPair pair;
    restart(pair, "links_per_client = 2\n");
    std::vector<std::unique_ptr<TestProcess>> servers;
    for (unsigned i = 0; i < 5; ++i) { // each is a link of its own
        auto &server = *servers.emplace_back(std::make_unique<TestProcess>(pair.monitor));
        REQUIRE(server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()}).header.status == 0);
        KernelConnection one(pair.socket), two(pair.socket);
        REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
        REQUIRE(offer(pair.client, two.client, 0).header.status == 0);
        Answer a = offer(server, one.server, 1);
        REQUIRE(a.header.status == 0);
        REQUIRE(offer(server, two.server, 1).header.status == 0);
        const TestLink link(std::move(a.fds.at(0)));
        const auto &flags = link.view.header().side[0].flags;
        pair.client.channel.ask(Op::take_back, wire::Offered{cookie_of(one.client)});
        CHECK((flags.load() & kLinkClientDead) == 0); // it may still ask for the other one
        pair.client.channel.ask(Op::take_back, wire::Offered{cookie_of(two.client)});
        CHECK((flags.load() & kLinkClientDead) != 0);
    }
    // What it has heard of is its own to let go of.
    KernelConnection one(pair.socket), two(pair.socket);
    REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
    REQUIRE(offer(pair.client, two.client, 0).header.status == 0);
    Answer a = offer(pair.server, one.server, 1);
    REQUIRE(offer(pair.server, two.server, 1).header.status == 0);
    const TestLink link(std::move(a.fds.at(0)));
    REQUIRE(other_end(pair.client, one.client).header.status == 0);
    pair.client.channel.ask(Op::take_back, wire::Offered{cookie_of(two.client)});
    CHECK((link.view.header().side[0].flags.load() & kLinkClientDead) == 0);
}

TEST_CASE("slots are given out again when both ends have let go of them") {
    JoiningPair pair;
    std::set<uint32_t> slots;
    std::optional<TestLink> link;
    for (unsigned i = 0; i < 2 * kLinkSlots + 10; ++i) {
        KernelConnection one(pair.socket);
        const linger now{1, 0};
        setsockopt(one.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
        REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
        Answer a = offer(pair.server, one.server, 1);
        REQUIRE(a.header.status == 0);
        REQUIRE(a.fds.size() == 1);
        if (!link) {
            link.emplace(std::move(a.fds[0]));
        }
        REQUIRE(other_end(pair.client, one.client).header.status == 0);
        const uint32_t slot = a.as<wire::OfferReply>().slot;
        slots.insert(slot);
        Slot &s = link->view.slot(slot);
        REQUIRE(s.side[0].control.flags.load() == 0); // as new
        REQUIRE(s.side[1].credit.path.offer.load() == 0);
        s.side[1].credit.path.offer = 7;
        if (i != 3) {
            s.side[0].control.flags = s.side[1].control.flags = kFlagReleased;
        }
    }
    CHECK(slots.size() == kLinkSlots);
    // The one still in use
    CHECK(link->view.slot(*std::next(slots.begin(), 3)).side[1].control.flags.load() == 0);
}

TEST_CASE("who may not be joined stays with the kernel") {
    JoiningPair pair;
    const std::string file = pair.monitor.directory + "/monitor.toml";
    FILE *config = fopen(file.c_str(), "w");
    fputs("[policy]\nbirth = \"kernel\"\n", config);
    fclose(config);
    pair.monitor.stop(SIGTERM);
    pair.monitor.start({"--config", file});
    pair.server.hello(pair.monitor);
    pair.client.hello(pair.monitor);
    KernelConnection one(pair.socket);
    REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
    const Answer nobody_listens = offer(pair.server, one.server, 1);
    CHECK(nobody_listens.header.status == -EACCES);
    CHECK(nobody_listens.header.cause == static_cast<uint16_t>(Cause::listener_gone));
    REQUIRE(pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()}).header.status == 0);
    const Answer refused = offer(pair.server, one.server, 1);
    CHECK(refused.header.status == -EACCES);
    CHECK(refused.header.cause == static_cast<uint16_t>(Cause::born_on_kernel));
}

TEST_CASE(
    "who was forked from a server, and has no listener any more, is joined as long as somebody listens") {
    JoiningPair pair;
    restart(pair, "");
    TestProcess child(pair.monitor);
    KernelConnection one(pair.socket), two(pair.socket);
    REQUIRE(offer(pair.client, one.client, 0).header.status == 0);
    Answer joined_end = offer(child, one.server, 1);
    REQUIRE(joined_end.header.status == 0);
    REQUIRE(joined_end.fds.size() == 1);
    CHECK(other_end(pair.client, one.client).as<wire::OfferReply>().link_id ==
          joined_end.as<wire::OfferReply>().link_id);
    const auto listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                              .as<wire::ListenReply>()
                              .listener_id;
    REQUIRE(pair.server.channel.ask(Op::unlisten, wire::ListenerRef{listener, 0}).header.status == 0);
    REQUIRE(offer(pair.client, two.client, 0).header.status == 0);
    CHECK(static_cast<Cause>(offer(child, two.server, 1).header.cause) == Cause::listener_gone);
}

TEST_CASE("links for connections that began in the kernel count as links to the server") {
    JoiningPair pair;
    restart(pair, "links_per_server = 2\n");
    TestProcess more(pair.monitor), most(pair.monitor);
    const auto join = [&](TestProcess &client) {
        KernelConnection one(pair.socket);
        REQUIRE(offer(client, one.client, 0).header.status == 0);
        return offer(pair.server, one.server, 1).header.status;
    };
    CHECK(join(pair.client) == 0);
    CHECK(join(more) == 0);
    CHECK(join(most) == -EACCES);
    CHECK(join(pair.client) == 0); // which has one
    const uint32_t listener = pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()})
                                  .as<wire::ListenReply>()
                                  .listener_id;
    CHECK(most.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).header.cause ==
          static_cast<uint16_t>(Cause::server_full));
}

TEST_CASE("a user has so many ends offered, whichever of its processes offers them") {
    if (getuid() != 0) {
        SKIP_TEST("needs root to become another user");
    }
    JoiningPair pair;
    restart(pair, "offers_per_user = 2\n");
    KernelConnection one(pair.socket), two(pair.socket), three(pair.socket);
    chmod(pair.monitor.directory.c_str(), 0755);
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(9);
        }
        TestProcess first(pair.monitor), second(pair.monitor);
        int right = 0;
        right += offer(first, one.client, 0).header.status == 0 ? 1 : 0;
        right += offer(second, two.client, 0).header.status == 0 ? 1 : 0;
        right += offer(second, three.client, 0).header.status == -EMFILE ? 1 : 0;
        right +=
            first.channel.ask(Op::take_back, wire::Offered{cookie_of(one.client)}).header.status == 0 ? 1 : 0;
        right += offer(second, three.client, 0).header.status == 0 ? 1 : 0;
        _exit(right);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 5);
}
