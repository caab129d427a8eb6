// How many links lead to one server process, and what becomes of one that it cannot map.
#include "tests/support/skip.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

/// Another monitor, with these limits.
void restart(Pair &pair, const char *limits) {
    const std::string file = pair.monitor.directory + "/monitor.toml";
    FILE *config = fopen(file.c_str(), "w");
    fprintf(config, "[limits]\n%s", limits);
    fclose(config);
    pair.restart_monitor({"--config", file});
}

/// A monitor that lets four links lead to a server.
struct Four : Pair {
    Four() { restart(*this, "links_per_server = 4\n"); }
    Answer connect_one() {
        return client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
    }
};

bool is_full(const Answer &a) {
    return a.header.status == -EMFILE && a.header.cause == static_cast<uint16_t>(Cause::server_full);
}

/// A child that is another user, makes as many links as it gets, and keeps them.
struct Stranger {
    pid_t pid;
    int links = -1;
    int own = 0; ///< of these, those of which it was told that the server is of its domain
    Stranger(Four &four, uid_t uid) {
        int result[2];
        REQUIRE(pipe(result) == 0);
        pid = in_child([&] {
            static TestProcess process;
            static Channel channel(four.monitor); // whose way nobody else may go
            if (syscall(SYS_setresgid, uid, uid, uid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0) {
                _exit(1);
            }
            process.segment.view.proc(0).pid = static_cast<uint32_t>(getpid());
            const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
            int made[2] = {};
            if (channel.ask(Op::hello, body, {process.segment.fd.get(), process.socket.get()}).header.status !=
                0) {
                _exit(1);
            }
            Answer a;
            while ((a = channel.ask(Op::connect, wire::Connect{four.listener, wire::kLoopbackAddresses}))
                       .header.status == 0) {
                ++made[0];
                made[1] += static_cast<int>(a.as<wire::ConnectReply>().is_own);
            }
            made[0] = is_full(a) ? made[0] : -2;
            [[maybe_unused]] const ssize_t n = write(result[1], made, sizeof made);
        });
        int made[2] = {};
        REQUIRE(read(result[0], made, sizeof made) == sizeof made);
        links = made[0];
        own = made[1];
        close(result[0]);
        close(result[1]);
    }
    ~Stranger() { kill_child(pid); }
};

} // namespace

TEST_CASE("a server has a bounded number of links, over all of its listeners") {
    Four four;
    TestListener second;
    const auto other =
        four.server.channel.ask(Op::listen, wire::Listen{16, 0}, {second.fd.get()}).as<wire::ListenReply>().listener_id;
    uint64_t link = 0;
    for (int i = 0; i < 4; ++i) {
        const Answer a = four.client.channel.ask(
            Op::connect, wire::Connect{i % 2 == 0 ? four.listener : other, wire::kLoopbackAddresses});
        REQUIRE(a.header.status == 0);
        link = a.as<wire::ConnectReply>().link_id;
    }
    REQUIRE(is_full(four.connect_one()));
    REQUIRE(four.client.channel.ask(Op::drop_link, wire::LinkRef{link, 0, 0}).header.status == 0);
    REQUIRE(four.connect_one().header.status == 0);
    REQUIRE(is_full(four.connect_one()));
}

TEST_CASE("one user leaves links of a server to the others") {
    if (geteuid() != 0) {
        return;
    }
    Four four;
    const Stranger first(four, 65533);
    REQUIRE(first.links == 2); // as many as it leaves
    const Stranger second(four, 65534);
    REQUIRE(second.links == 1);
    REQUIRE(four.connect_one().header.status == 0);
    REQUIRE(is_full(four.connect_one()));
}

TEST_CASE("both are told who has the other side of a link: their own domain, or a stranger") {
    if (geteuid() != 0) {
        return;
    }
    Four four;
    const Stranger stranger(four, 65533);
    REQUIRE(stranger.links == 2);
    CHECK(stranger.own == 0);
    const Answer own = four.connect_one();
    REQUIRE(own.header.status == 0);
    CHECK(own.as<wire::ConnectReply>().is_own == 1);
    const Answer all = four.server.channel.ask(Op::links, wire::Links{four.listener, 0});
    REQUIRE(all.as<wire::LinksReply>().count == 3);
    for (uint32_t i = 0; i < 3; ++i) {
        const auto &link = all.as<wire::LinksReply>().link[i];
        CHECK(link.is_own == (link.link_id == own.as<wire::ConnectReply>().link_id ? 1 : 0));
    }
}

TEST_CASE("requests on a link that its server cannot map are refused, and no more links are made") {
    Pair pair;
    TestLink first(pair.connect());
    pair.server_attach();
    TestLink link(pair.connect());
    const uint64_t lost = pair.link;
    REQUIRE(pair.server.channel.ask(Op::links, wire::Links{pair.listener, 1}).as<wire::LinksReply>().count == 1);
    syn(link.view, 9);
    UniqueFd mine = bell();
    pair.client_waits(link.view, 9, mine.get());
    REQUIRE(pair.server.channel.ask(Op::no_room, wire::LinkRef{lost, 0, 0}).header.status == -ENOENT);
    REQUIRE(pair.server.channel.ask(Op::no_room, wire::LinkRef{lost, 1, 0}).header.status == 0);
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(9).identity.state == static_cast<uint32_t>(SlotState::refused));
    REQUIRE((link.view.header().side[1].flags & kLinkListenerClosed) != 0);
    REQUIRE((first.view.header().side[1].flags & kLinkListenerClosed) == 0);
    REQUIRE(is_full(pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses})));
    REQUIRE(pair.server.channel.ask(Op::no_room, wire::LinkRef{lost, 1, 0}).header.status == -ENOENT);

    // Until it has let go of another one.
    const uint64_t kept = first.view.header().link_id;
    REQUIRE(pair.server.channel.ask(Op::drop_link, wire::LinkRef{kept, 1, 0}).header.status == 0);
    REQUIRE(
        pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status ==
        0);
}

TEST_CASE("a link that one acceptor cannot map is another one's") {
    Pair pair;
    TestProcess second(pair.monitor);
    REQUIRE(second.channel.ask(Op::listen, wire::Listen{16, 0}, {pair.socket.fd.get()}).header.status == 0);
    TestLink link(pair.connect());
    pair.server_attach();
    syn(link.view, 9);
    REQUIRE(pair.server.channel.ask(Op::no_room, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    REQUIRE(link.view.slot(9).identity.state == static_cast<uint32_t>(SlotState::syn));
    REQUIRE(
        pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses}).header.status ==
        0);
    REQUIRE(second.channel.ask(Op::links, wire::Links{pair.listener, 0}).as<wire::LinksReply>().count == 2);
    REQUIRE(second.channel.ask(Op::no_room, wire::LinkRef{pair.link, 1, 0}).header.status == 0);
    REQUIRE(link.view.slot(9).identity.state == static_cast<uint32_t>(SlotState::refused));
}

TEST_CASE("a listener has places for so many links, and the client of one more uses the kernel") {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < kListenerLinks + 256) {
        SKIP_TEST("the monitor needs a descriptor for each link");
    }
    Pair pair;
    restart(pair, "links_per_server = 10000\nlinks_per_client = 10000\n");
    const auto connect = [&] {
        return pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses});
    };
    for (unsigned i = 0; i < kListenerLinks; ++i) {
        REQUIRE(connect().header.status == 0);
    }
    const Answer refused = connect();
    REQUIRE(refused.header.status == -ENOSPC);
    REQUIRE(refused.header.cause == static_cast<uint16_t>(Cause::no_slot));
}

TEST_CASE("of links that nobody has at the other side only some are looked into") {
    constexpr unsigned kDead = 80;
    Pair pair;
    for (unsigned i = 0; i < kDead; ++i) {
        REQUIRE(pair.client.channel.ask(Op::connect, wire::Connect{pair.listener, wire::kLoopbackAddresses})
                    .header.status == 0);
    }
    const auto ask_for_all = [&] {
        unsigned got = 0;
        for (uint32_t from = 0; from != UINT32_MAX;) {
            const Answer a = pair.server.channel.ask(Op::links, wire::Links{pair.listener, from});
            REQUIRE(a.header.status == 0);
            got += a.as<wire::LinksReply>().count;
            from = a.as<wire::LinksReply>().next;
        }
        return got;
    };
    REQUIRE(ask_for_all() == kDead);
    pair.client.channel.close();
    // Nothing will come from them, but nobody searches them all for one request.
    CHECK(eventually([&] {
        const Answer a = pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0});
        return a.as<wire::LinksReply>().count == wire::kMaxFds && a.as<wire::LinksReply>().link[0].place == 64;
    }));
}
