// Links that clients bring back: what they call them is nobody else's name, and they lead to nobody to whom a
// new link would not have led.
#include "monitor/records/listener.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/stranger.hpp"

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

constexpr uint32_t kSlot = 4;

/// A link of a client's own making.
std::unique_ptr<TestLink> forged_link() {
    UniqueFd fd = monitor::make_memfd("link", kLinkBytes);
    monitor::seal(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    auto link = std::make_unique<TestLink>(std::move(fd));
    link->view.header().version = kLayoutVersion;
    link->view.header().slots = kLinkSlots;
    link->view.header().magic = kLinkMagic;
    return link;
}

/// A request that no acceptor has had yet.
void request(const TestLink &link, const TestListener &server) {
    Slot &slot = link.view.slot(kSlot);
    slot.identity.server = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, server.port, AF_INET};
    syn(link.view, kSlot);
}

int bring_back(TestProcess &client, uint64_t name, uint32_t side, const TestLink &link) {
    return client.channel.ask(Op::adopt_link, wire::Adopt{name, side, {}}, {link.fd.get()}).header.status;
}

struct Fetched {
    uint64_t id;
    UniqueFd link;
};
/// All that the server is handed from this place of its listener on.
std::vector<Fetched> fetch(TestProcess &server, uint32_t listener, uint32_t from = 0) {
    std::vector<Fetched> all;
    while (from != UINT32_MAX) {
        Answer a = server.channel.ask(Op::links, wire::Links{listener, from});
        const auto &reply = a.as<wire::LinksReply>();
        REQUIRE(a.header.status == 0);
        REQUIRE(a.fds.size() == reply.count);
        for (uint32_t i = 0; i < reply.count; ++i) {
            all.push_back({reply.link[i].link_id, std::move(a.fds[i])});
        }
        from = reply.count != 0 ? reply.next : UINT32_MAX;
    }
    return all;
}

} // namespace

TEST_CASE("a link that is brought back under the number of one to come hides nobody's connection") {
    Pair pair;
    TestProcess forger(pair.monitor);
    pair.connect(); // from here on the next numbers are known
    std::vector<std::unique_ptr<TestLink>> forged;
    const uint64_t next = pair.link + 1;
    constexpr unsigned kForged = 20;
    for (unsigned i = 0; i < kForged; ++i) {
        forged.push_back(forged_link());
        request(*forged.back(), pair.socket);
        REQUIRE(bring_back(forger, next + i + kForged, 0, *forged.back()) == 0);
    }
    std::set<uint64_t> known;
    for (const Fetched &each : fetch(pair.server, pair.listener)) {
        known.insert(each.id);
    }
    REQUIRE(known.size() == kForged + 1);

    for (unsigned i = 0; i < 2 * kForged; ++i) {
        const UniqueFd honest = pair.connect();
        CHECK(known.count(pair.link) == 0);
        bool is_handed = false;
        for (const Fetched &each : fetch(pair.server, pair.listener)) {
            is_handed = is_handed || (each.id == pair.link &&
                                      monitor::file_id(each.link.get()) == monitor::file_id(honest.get()));
            known.insert(each.id);
        }
        CHECK(is_handed);
    }
}

TEST_CASE("a listener has a link once, and one link under an id") {
    monitor::Listener listener(5, {}, nullptr);
    const auto one = monitor::Link::create(77, 5, 40000), same = monitor::Link::create(77, 5, 40000);
    CHECK(listener.add(*one, 0));
    CHECK_FALSE(listener.add(*one, 0));
    CHECK_FALSE(listener.add(*same, 0));
    listener.remove(*one);
    CHECK(listener.add(*same, 0));
}

TEST_CASE("a link that is brought back has no place in a listener of its bringer's choice") {
    Pair pair;
    const auto link = forged_link();
    request(*link, pair.socket);
    const uint32_t listener = pair.listener;
    for (const uint32_t side : {0u, 1u}) {
        const wire::Adopt body{77, side, {listener, 0, 0}};
        CHECK(pair.server.channel.ask(Op::adopt_link, body, {link->fd.get()}).header.status == -EINVAL);
    }
    CHECK(fetch(pair.server, pair.listener).empty());
}

TEST_CASE("an acceptor that is the client of a link, too, gets it under the name that it has for it") {
    Pair pair;
    TestProcess &both = pair.server;
    Answer made = both.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
    const uint64_t name = made.as<wire::ConnectReply>().link_id;
    const TestLink link(std::move(made.fds.at(0)));
    request(link, pair.socket);
    both.segment.open(1, name, kSlot, 0);
    pair.monitor.stop(SIGKILL);
    pair.monitor.start();
    both.hello(pair.monitor);
    REQUIRE(bring_back(both, name, 0, link) == 0);
    const Acceptors acceptors(pair);
    const std::vector<Fetched> got = fetch(both, pair.listener);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == name);
    CHECK(monitor::file_id(got[0].link.get()) == monitor::file_id(link.fd.get()));
    CHECK(link.view.slot(kSlot).side[1].control.flags == 0);
}

TEST_CASE(
    "a client does not bring its link back as the server's while the listener's acceptors are to come") {
    Pair pair;
    const TestLink link(pair.connect());
    CHECK(bring_back(pair.client, pair.link, 1, link) == -EPERM);
    CHECK(bring_back(pair.server, pair.link, 1, link) == 0); // it has the listener
    const std::vector<Fetched> got = fetch(pair.server, pair.listener);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == pair.link);
}

TEST_CASE("links that are brought back wait for a server in no greater number than new ones") {
    if (!is_root()) {
        SKIP_TEST("needs root to become another user");
    }
    Pair pair;
    constexpr int kMost = 64; // as in the table of docs/security.md
    const bool as_server_too = GENERATE(false, true);
    const Stranger other(
        pair.monitor, kOne,
        {[&](TestProcess &p) -> int64_t {
             std::vector<std::unique_ptr<TestLink>> made;
             int status = 0;
             for (uint64_t i = 1; i <= kMost + 6 && status == 0; ++i) {
                 made.push_back(forged_link());
                 request(*made.back(), pair.socket);
                 status = bring_back(p, i, 0, *made.back());
                 if (as_server_too && status == 0) {
                     status = bring_back(p, i, 1, *made.back());
                 }
             }
             return status;
         },
         [&](TestProcess &p) -> int64_t {
             return p.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.cause;
         }});
    REQUIRE(other.does(0) == 0);
    CHECK(other.does(1) == static_cast<int64_t>(Cause::server_full));
    if (!as_server_too) {
        CHECK(fetch(pair.server, pair.listener).size() == kMost);
    }
}
