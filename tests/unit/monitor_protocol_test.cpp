// What a client may not do: each mistake ends its channel, or is answered with an error, and nobody else
// notices.
#include "monitor/service/packet.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <catch2/catch.hpp>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

wire::Header header(Op op, uint16_t length = 0, uint32_t fds = 0) {
    wire::Header h{};
    h.magic = wire::kMagic;
    h.version = wire::kVersion;
    h.op = static_cast<uint16_t>(op);
    h.sequence = 77;
    h.length = length;
    h.fds = fds;
    return h;
}

/// Sends the packet; the channel must then be closed, after an answer with that status or none (0).
void expect_closed(const MonitorProcess &monitor, const void *packet, size_t length, int status,
                   std::vector<int> fds = {}) {
    Channel channel(monitor);
    REQUIRE(channel.raw(packet, length, fds));
    Answer a = channel.answer();
    if (status != 0) {
        REQUIRE_FALSE(a.closed);
        REQUIRE(a.header.status == status);
        a = channel.answer();
    }
    REQUIRE(a.closed);
}

} // namespace

TEST_CASE("an operation that the monitor does not know is refused, and the channel stays") {
    MonitorProcess monitor;
    Channel channel(monitor);
    wire::Header unknown = header(static_cast<Op>(999));
    REQUIRE(channel.raw(&unknown, sizeof unknown));
    REQUIRE(channel.answer().header.status == -ENOSYS);
    unknown.sequence = wire::kNoAnswer;
    REQUIRE(channel.raw(&unknown, sizeof unknown));
    const wire::Header known = header(Op::presence);
    REQUIRE(channel.raw(&known, sizeof known));
    const Answer answer = channel.answer();
    REQUIRE(answer.header.op == static_cast<uint16_t>(Op::presence));
    REQUIRE(answer.header.status == 0);
}

TEST_CASE("malformed packets close the channel") {
    MonitorProcess monitor;
    UniqueFd null(open("/dev/null", O_RDONLY));
    wire::Header h = header(Op::presence);

    SECTION("wrong magic") {
        h.magic = 0x12345678;
        expect_closed(monitor, &h, sizeof h, -EPROTO);
    }
    SECTION("another version") {
        h.version = wire::kVersion + 1;
        Channel channel(monitor);
        channel.raw(&h, sizeof h);
        const Answer a = channel.answer();
        REQUIRE(a.header.status == -EPROTO);
        REQUIRE(a.header.cause == static_cast<uint16_t>(Cause::monitor_version));
        REQUIRE(a.header.version == wire::kVersion);
        REQUIRE(channel.answer().closed);
    }
    SECTION("too short") { expect_closed(monitor, &h, sizeof h - 1, -EPROTO); }
    SECTION("length that is not the packet's") {
        h.length = 8;
        expect_closed(monitor, &h, sizeof h, -EPROTO);
    }
    SECTION("too long") {
        std::vector<char> big(sizeof h + wire::kMaxBody + 4000);
        memcpy(big.data(), &h, sizeof h);
        expect_closed(monitor, big.data(), big.size(), -EPROTO);
    }
    SECTION("descriptors that were not announced") {
        expect_closed(monitor, &h, sizeof h, -EPROTO, {null.get()});
    }
    SECTION("announced descriptors that are missing") {
        h.fds = 1;
        expect_closed(monitor, &h, sizeof h, -EPROTO);
    }
    SECTION("more descriptors than any operation takes") {
        h.fds = 12;
        expect_closed(monitor, &h, sizeof h, -EPROTO, std::vector<int>(12, null.get()));
    }
    SECTION("body of the wrong length for the operation") {
        const wire::Header hello = header(Op::hello);
        expect_closed(monitor, &hello, sizeof hello, -EPROTO);
    }
    SECTION("operation before hello") {
        struct {
            wire::Header h = header(Op::unlisten, sizeof(wire::ListenerRef));
            wire::ListenerRef body{1, 0};
        } packet;
        expect_closed(monitor, &packet, sizeof packet, -EPROTO);
    }
    SECTION("child on a channel that was not made by fork") {
        struct {
            wire::Header h = header(Op::child, sizeof(wire::Child));
            wire::Child body{1, 0};
        } packet;
        expect_closed(monitor, &packet, sizeof packet, -EPROTO);
    }
    // The log names the process, and the monitor goes on.
    REQUIRE_THAT(monitor.log(), Catch::Contains("process " + std::to_string(getpid())));
    REQUIRE(Channel(monitor).ask(Op::presence).header.status == 0);
}

TEST_CASE("hello is refused for memory that could be pulled away or is something else") {
    MonitorProcess monitor;
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    const auto hello = [&](int segment, int in_namespace, uint32_t layout = kLayoutVersion, uint32_t proc = 0) {
        Channel channel(monitor);
        return channel.ask(Op::hello, wire::Hello{layout, 1, proc, 0}, {segment, in_namespace});
    };
    TestSegment good;
    REQUIRE(hello(good.fd.get(), socket.get()).header.status == 0);
    TestSegment unsealed(0);
    REQUIRE(hello(unsealed.fd.get(), socket.get()).header.status == -EINVAL);
    UniqueFd small = monitor::make_memfd("small", 4096);
    monitor::seal(small.get(), F_SEAL_SHRINK);
    REQUIRE(hello(small.get(), socket.get()).header.status == -EINVAL);
    UniqueFd empty = monitor::make_memfd("empty", kSegmentBytes);
    monitor::seal(empty.get(), F_SEAL_SHRINK);
    REQUIRE(hello(empty.get(), socket.get()).header.status == -EINVAL);
    UniqueFd null(open("/dev/null", O_RDONLY));
    REQUIRE(hello(null.get(), socket.get()).header.status == -EINVAL);
    REQUIRE(hello(good.fd.get(), null.get()).header.status == -EINVAL);
    REQUIRE(hello(good.fd.get(), socket.get(), kLayoutVersion, kSegProcs).header.status == -EINVAL);
    const Answer other = hello(good.fd.get(), socket.get(), kLayoutVersion + 1);
    REQUIRE(other.header.status == -EPROTONOSUPPORT);
    REQUIRE(other.header.cause == static_cast<uint16_t>(Cause::monitor_version));
}

TEST_CASE("ids of others mean nothing") {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server(monitor), client(monitor), stranger(monitor);
    const auto listener =
        server.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    const auto link = client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses})
                          .as<wire::ConnectReply>()
                          .link_id;
    UniqueFd bell(eventfd(0, EFD_NONBLOCK));
    REQUIRE(stranger.channel.ask(Op::unlisten, wire::ListenerRef{listener, 0}).header.status == -ENOENT);
    REQUIRE(stranger.channel.ask(Op::accept_bell, wire::ListenerRef{listener, 0}, {bell.get()}).header.status ==
            -ENOENT);
    REQUIRE(stranger.channel.ask(Op::drop_link, wire::LinkRef{link, 0, 0}).header.status == -ENOENT);
    REQUIRE(stranger.channel.ask(Op::bell, wire::Bell{link, 0, 0}, {bell.get()}).header.status == -ENOENT);
    REQUIRE(client.channel.ask(Op::bell, wire::Bell{link, 1, 0}, {bell.get()}).header.status == -ENOENT);
    REQUIRE(client.channel.ask(Op::bell, wire::Bell{link, 9, 0}, {bell.get()}).header.status == -ENOENT);
    REQUIRE(client.channel.ask(Op::unbell, wire::BellRef{link, 0, 4000}).header.status == -ENOENT);
    REQUIRE(stranger.channel.ask(Op::peer_bell, wire::BellRef{link, 0, 1}).header.status == -ENOENT);
}

TEST_CASE("a segment full of lies harms nobody else") {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server(monitor), client(monitor);
    const auto listener =
        server.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    Answer a = client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
    const auto id = a.as<wire::ConnectReply>().link_id;
    TestLink link(std::move(a.fds.at(0)));
    {
        TestProcess liar(monitor);
        liar.segment.open(1, id, 5, 0);          // somebody else's connection
        liar.segment.open(2, id, 0xffffffff, 1); // no slot at all
        liar.segment.open(3, id, 5, 200);        // no side
        liar.segment.view.header().ofd_high = 0xffffffff;
        for (unsigned w = 0; w < kOfds / 64; ++w) {
            liar.segment.view.proc(0).held[w] = ~uint64_t{0};
        }
        liar.channel.close();
        REQUIRE(eventually([&] { return liar.segment.view.proc(0).held[kOfds / 64 - 1] == 0; }));
        REQUIRE(eventually([&] { return liar.segment.view.ofd(3).state == 0; }));
    }
    REQUIRE(link.view.slot(5).side[0].control.flags == 0);
    REQUIRE(link.view.slot(5).side[1].control.flags == 0);
    REQUIRE(client.channel.ask(Op::drop_link, wire::LinkRef{id, 0, 0}).header.status == 0);
}

TEST_CASE("an eventfd that is full and blocks does not stop the monitor") {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server(monitor), client(monitor);
    const auto listener =
        server.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    UniqueFd bell(eventfd(0, 0));
    const uint64_t full = UINT64_MAX - 1;
    REQUIRE(write(bell.get(), &full, sizeof full) == sizeof full);
    REQUIRE(server.channel.ask(Op::accept_bell, wire::ListenerRef{listener, 0}, {bell.get()}).header.status == 0);
    REQUIRE(client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).header.status == 0);
    REQUIRE(Channel(monitor).ask(Op::presence).header.status == 0);
}

TEST_CASE("a client that takes no replies is not read from until it does, and the monitor goes on") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    wire::Header h = header(Op::status);
    h.sequence = 1;
    fcntl(process.channel.fd(), F_SETFL, O_NONBLOCK);
    int sent = 0;
    for (int full = 0; full < 20 && sent < 200'000;) {
        if (process.channel.raw(&h, sizeof h)) {
            ++sent;
            full = 0;
            continue;
        }
        REQUIRE(errno == EAGAIN); // and not dropped
        ++full;
        REQUIRE(Channel(monitor).ask(Op::presence).header.status == 0);
    }
    REQUIRE(sent < 200'000);
    fcntl(process.channel.fd(), F_SETFL, 0);
    for (int i = 0; i < sent; ++i) {
        const Answer a = process.channel.answer();
        REQUIRE_FALSE(a.closed);
        REQUIRE(a.fds.size() == 1);
    }
    REQUIRE(process.channel.ask(Op::status).header.status == 0);
}

TEST_CASE("a client that has not received its reply rings, and is stopped then") {
    Pair pair;
    const TestLink link(pair.connect());
    pair.server_attach();
    const UniqueFd doorbell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    const Answer a = pair.server.channel.ask(Op::bell, wire::Bell{pair.link, 1, 0}, {doorbell.get()});
    REQUIRE(a.header.status == 0);
    wire::Header h = header(Op::status);
    h.sequence = 1;
    REQUIRE(pair.client.channel.raw(&h, sizeof h)); // and nobody receives what is answered
    // More of them than are heard in one turn; each is heard although nothing comes after it.
    for (int times = 0; times < 20; ++times) {
        for (int i = 0; i < 10; ++i) {
            REQUIRE(pair.client.channel.tell(Op::ring, wire::BellRef{pair.link, 1, a.as<wire::BellReply>().id}));
        }
        uint64_t heard = 0;
        REQUIRE(eventually([&] {
            uint64_t n = 0;
            heard += read(doorbell.get(), &n, sizeof n) == sizeof n ? n : 0;
            return heard == 10;
        }));
    }
    REQUIRE_FALSE(pair.client.channel.answer().closed);
    REQUIRE(pair.client.channel.ask(Op::status).header.status == 0);
}

TEST_CASE("one reply, with the descriptors in it, waits to be received") {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const UniqueFd ours(ends[0]), theirs(ends[1]), memory(monitor::make_memfd("test", 4096));
    monitor::bound_replies(ours.get());
    monitor::Reply reply;
    reply.fds.assign(wire::kMaxFds, memory.get());
    int sent = 0;
    for (; monitor::takes_replies(ours.get()) && sent < 100; ++sent) {
        REQUIRE(monitor::send(ours.get(), wire::Header{}, reply));
    }
    REQUIRE(sent == 1);
    monitor::Request got;
    for (int i = 0; i < sent; ++i) {
        monitor::receive(theirs.get(), got);
    }
    REQUIRE(monitor::takes_replies(ours.get()));
}

TEST_CASE("limits are per client") {
    MonitorProcess monitor;
    const std::string file = monitor.directory + "/monitor.toml";
    FILE *config = fopen(file.c_str(), "w");
    fputs("[limits]\nlinks_per_client = 3\nbells_per_client = 2\nlisteners_per_client = 1\n", config);
    fclose(config);
    monitor.stop(SIGTERM);
    monitor.start({"--config", file});
    TestListener socket, second;
    TestProcess server(monitor), client(monitor), other(monitor);
    const auto listener =
        server.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    REQUIRE(server.channel.ask(Op::listen, wire::Listen{4, 0}, {socket.fd.get()}).header.status == 0);
    const Answer refused = server.channel.ask(Op::listen, wire::Listen{4, 0}, {second.fd.get()});
    REQUIRE(refused.header.status == -EMFILE);
    REQUIRE(refused.header.cause == static_cast<uint16_t>(Cause::limit));
    uint64_t link = 0;
    for (int i = 0; i < 3; ++i) {
        const Answer a = client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
        REQUIRE(a.header.status == 0);
        link = a.as<wire::ConnectReply>().link_id;
    }
    REQUIRE(client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).header.status ==
            -EMFILE);
    REQUIRE(other.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses}).header.status == 0);
    for (int i = 0; i < 3; ++i) {
        UniqueFd bell(eventfd(0, EFD_NONBLOCK));
        REQUIRE(client.channel.ask(Op::bell, wire::Bell{link, 0, 0}, {bell.get()}).header.status ==
                (i < 2 ? 0 : -EMFILE));
    }
}

TEST_CASE("a channel can be had through somebody else's") {
    MonitorProcess monitor;
    Channel door(monitor);
    REQUIRE(door.ask(Op::presence).header.status == 0);
    const auto pair = [](int type) {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
        return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
    };
    auto [mine, theirs] = pair(SOCK_SEQPACKET);
    REQUIRE(door.ask(Op::enter, "", 0, {theirs.get()}).header.status == 0);
    theirs.reset();
    Channel answers(std::move(mine));
    Answer entered = answers.answer();
    REQUIRE(entered.header.status == 0);
    REQUIRE(entered.fds.size() == 1);
    REQUIRE(answers.answer().closed); // that was all there was to come

    // Now anybody else's way in may end.
    TestProcess process;
    process.channel = Channel(std::move(entered.fds[0]));
    const wire::Hello hello{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
    const auto greet = [&] {
        return process.channel.ask(Op::hello, hello, {process.segment.fd.get(), process.socket.get()});
    };
    REQUIRE(greet().as<wire::HelloReply>().client_id == entered.as<wire::ForkReply>().client_id);

    // What the answer could do harm at, or not be received by the caller alone.
    const auto stream = pair(SOCK_STREAM), datagrams = pair(SOCK_DGRAM);
    const UniqueFd tcp(socket(AF_INET, SOCK_STREAM, 0)), file(open("/dev/null", O_RDWR)),
        alone(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    for (const int fd : {stream.first.get(), datagrams.first.get(), tcp.get(), file.get(), alone.get(),
                         door.fd(), process.channel.fd()}) {
        REQUIRE(door.ask(Op::enter, "", 0, {fd}).header.status == -EINVAL);
    }
    const auto others = pair(SOCK_SEQPACKET);
    const pid_t child = fork();
    if (child == 0) { // it did not make the pair
        _exit(door.ask(Op::enter, "", 0, {others.first.get()}).header.status == -EINVAL ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(status == 0);

    // Nobody is there to receive it.
    auto [gone, left] = pair(SOCK_SEQPACKET);
    gone.reset();
    REQUIRE(door.ask(Op::enter, "", 0, {left.get()}).header.status == 0);
    REQUIRE(door.ask(Op::enter).header.status == -EPROTO);
    REQUIRE(door.answer().closed);
    // A process has a channel already.
    REQUIRE(greet().header.status == 0);
    const auto [more, again] = pair(SOCK_SEQPACKET);
    REQUIRE(process.channel.ask(Op::enter, "", 0, {again.get()}).header.status == -EPROTO);
}

TEST_CASE("many who ask for the status keep nobody else waiting") {
    MonitorProcess monitor;
    std::vector<Channel> many;
    for (int i = 0; i < 200; ++i) {
        many.emplace_back(monitor);
    }
    Channel other(monitor);
    REQUIRE(other.ask(Op::stay).header.status == 0);
    Channel last_before(monitor); // so that the monitor has looked at the other one and found nothing
    for (int i = 0; i < 3; ++i) {
        REQUIRE(last_before.ask(Op::status).fds.size() == 1);
    }
    REQUIRE(kill(monitor.pid, SIGSTOP) == 0); // so that all of them are there at the same moment
    const wire::Header asked = header(Op::status);
    for (Channel &each : many) {
        REQUIRE(each.raw(&asked, sizeof asked));
    }
    const wire::Header last = header(Op::presence);
    REQUIRE(other.raw(&last, sizeof last));
    REQUIRE(kill(monitor.pid, SIGCONT) == 0);
    REQUIRE(other.answer().header.status == 0);
    unsigned answered = 0;
    for (Channel &each : many) {
        pollfd p{each.fd(), POLLIN, 0};
        answered += poll(&p, 1, 0) == 1 ? 1 : 0;
    }
    CHECK(answered < many.size());
    for (Channel &each : many) {
        REQUIRE(each.answer().fds.size() == 1);
    }
}
