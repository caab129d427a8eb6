// Two processes that stand for two hosts, each with its own side of a link, over the fake verbs: what one
// puts into its ring, the other finds in its own.
#include "tests/rdma/host_process.hpp"
#include <catch2/catch.hpp>
#include <vector>

using namespace sd;
using sd::test::HostProcess;
using sd::test::TwoHosts;

namespace {

/// Bytes that depend on who sends, on which connection, and how many there were before.
struct Bytes {
    uint32_t state;
    explicit Bytes(unsigned side, uint32_t slot) : state(slot * 2654435761u + side * 40503u + 17) {}
    uint8_t next() {
        state = state * 1664525 + 1013904223;
        return static_cast<uint8_t>(state >> 24);
    }
};

struct Connection {
    uint32_t slot;
    TxState tx{};
    RxState rx{};
    Bytes out, in;
    uint64_t sent = 0, received = 0;
    Connection(unsigned side, uint32_t s) : slot(s), out(side, s), in(1 - side, s) {}
};

/// A larger ring, if this one is full and there is one.
bool grow(HostProcess &h, Connection &c) {
    for (unsigned cls = c.tx.cls + 1; cls <= 3; ++cls)
        if (ring::may_grow(c.tx) && h.link->transport->settle(*h.link, c.slot, cls))
            return ring::change_class(c.tx, h.sending(c.slot), cls);
    return false;
}

/// Sends up to `n` bytes as one record, as many as there is room for. False: none.
bool send_some(HostProcess &h, Connection &c, uint64_t n) {
    HOST_REQUIRE(ring::refresh_credit(c.tx, h.theirs(c.slot).credit.consumed));
    if (ring::room(c.tx) < 8 + ring::pad8(n)) {
        if (grow(h, c))
            h.tell(c.slot);
        const uint64_t room = ring::room(c.tx) & ~uint64_t{7};
        n = room < 16 ? 0 : n < room - 8 ? n : room - 8;
    }
    if (n == 0)
        return false;
    std::vector<uint8_t> piece(n);
    for (uint8_t &b : piece)
        b = c.out.next();
    HOST_REQUIRE(ring::put(c.tx, h.sending(c.slot), piece.data(), static_cast<uint32_t>(n)) == 0);
    c.sent += n;
    h.tell(c.slot);
    return true;
}

/// As one record, in a ring that has room, and tells nobody.
void put(const HostProcess &h, Connection &c, uint32_t n) {
    std::vector<uint8_t> piece(n);
    for (uint8_t &b : piece)
        b = c.out.next();
    HOST_REQUIRE(ring::put(c.tx, h.sending(c.slot), piece.data(), n) == 0);
    c.sent += n;
}

bool receive_some(HostProcess &h, Connection &c) {
    ring::Record r{};
    auto &consumed = h.mine(c.slot).credit.consumed;
    const int found = ring::next_record(c.rx, h.receiving(c.slot), consumed, &r);
    HOST_REQUIRE(found == 0 || found == 1);
    if (found == 0)
        return false;
    std::vector<uint8_t> piece(r.length);
    const long n = ring::take(c.rx, h.receiving(c.slot), r, piece.data(), piece.size());
    HOST_REQUIRE(n > 0);
    for (long i = 0; i < n; ++i)
        if (const uint8_t wanted = c.in.next(); piece[static_cast<size_t>(i)] != wanted) {
            fprintf(stderr, "connection %u: byte %lu is wrong\n", c.slot, c.received + static_cast<uint64_t>(i));
            _exit(1);
        }
    c.received += static_cast<uint64_t>(n);
    consumed.store(ring::read_up_to(c.rx), std::memory_order_release);
    h.tell(c.slot);
    return true;
}

/// Both ways on each connection until all has come, by a program that looks around in turn.
void stream(HostProcess &h, unsigned side, uint32_t connections, uint64_t bytes, uint32_t seed) {
    std::vector<Connection> all;
    for (uint32_t i = 0; i < connections; ++i)
        all.emplace_back(side, i * 61 + 3);
    uint64_t left = 2 * connections; // what has to be sent, and what has to come
    while (left > 0) {
        bool any = false;
        for (Connection &c : all) {
            seed = seed * 1664525 + 1013904223;
            const uint64_t size = seed >> 30 == 0 ? seed % 60000 : seed >> 30 == 1 ? seed % 2000 : seed % 64;
            if (c.sent < bytes) {
                any = send_some(h, c, std::min(bytes - c.sent, size + 1)) || any;
                HOST_REQUIRE(c.sent <= bytes);
                left -= c.sent == bytes;
            }
            if (c.received < bytes && receive_some(h, c)) {
                any = true;
                HOST_REQUIRE(c.received <= bytes);
                left -= c.received == bytes;
            }
        }
        if (!any && h.plugin->progress(h.device) == 0)
            sched_yield();
        HOST_REQUIRE(h.plugin->state(h.peer) == rdma::PeerState::open);
    }
    h.meet_and_serve(); // the other one still needs credit
}

void end(HostProcess &h) {
    h.plugin->end(h.peer);
    h.plugin->detach(h.remote);
    h.plugin->drop(h.peer);
    h.plugin->close(h.device);
}

} // namespace

TEST_CASE("bytes of many connections reach another host's rings, both ways") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        stream(h, side, 40, 300'000, 7 + side);
        rdma::Counts c{};
        h.plugin->counts(h.peer, &c);
        HOST_REQUIRE(c.bytes >= 40 * 300'000 && c.records > 40);
        HOST_REQUIRE(c.posts <= c.messages && c.waits > 0);
        HOST_REQUIRE(c.registered_bytes == 2 * rdma::kUsualLimits.mailbox_bytes);
        end(h);
        h.meet();
    }));
}

TEST_CASE("the same while completions are late, out of order between queue pairs, and bytes show early") {
    TwoHosts hosts("late=200,reorder=300,early=300,rnr=100");
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        stream(h, side, 8, 60'000, 99 + side);
        end(h);
    }));
}

TEST_CASE("a stream one way does not run out of credit") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 0);
        const uint64_t bytes = 3'000'000;
        while (side == 0 ? c.sent < bytes : c.received < bytes)
            if (!(side == 0 ? send_some(h, c, std::min<uint64_t>(100, bytes - c.sent)) : receive_some(h, c)))
                h.plugin->progress(h.device);
        h.meet_and_serve();
        rdma::Counts n{};
        h.plugin->counts(h.peer, &n);
        if (side == 1)
            HOST_REQUIRE(n.received >= bytes / kRingSize[3]);
        end(h);
    }));
}

TEST_CASE("flags and urgent marks of a side arrive, after the bytes that precede them") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 5);
        if (side == 0) {
            HOST_REQUIRE(send_some(h, c, 1000) && c.sent > 0);
            h.mine(5).control.oob.store(uint64_t{8} << 9 | 1);
            h.mine(5).control.ended_at.store(77);
            h.mine(5).control.flags.fetch_or(kFlagWriteShut);
            h.tell(5);
            h.exchange(c.sent);
            h.meet_and_serve();
        } else {
            while (!(h.theirs(5).control.flags.load() & kFlagWriteShut))
                h.plugin->progress(h.device);
            HOST_REQUIRE(h.theirs(5).control.ended_at.load() == 77);
            HOST_REQUIRE(h.theirs(5).control.oob.load() == (uint64_t{8} << 9 | 1));
            const uint64_t sent = h.exchange(uint64_t{0});
            while (receive_some(h, c)) {
            }
            HOST_REQUIRE(c.received == sent && sent > 0);
            HOST_REQUIRE(h.data_wakes > 0);
            h.meet_and_serve();
        }
        end(h);
    }));
}

TEST_CASE("an end comes with the last byte, where not all goes out at once") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection before(side, 5), ending(side, 6);
        if (side == 0) {
            for (Connection *c : {&before, &ending})
                HOST_REQUIRE(h.link->transport->settle(*h.link, c->slot, 3) &&
                             ring::change_class(c->tx, h.sending(c->slot), 3));
            for (int i = 0; i < 4; ++i) { // of a mailbox of 256 KiB
                put(h, before, 50'000);
                h.tell(before.slot);
            }
            for (int i = 0; i < 3; ++i)
                put(h, ending, 30'000);
            h.mine(ending.slot).control.flags.fetch_or(kFlagWriteShut);
            h.tell(ending.slot);
            h.meet();
            h.meet_and_serve();
        } else {
            h.meet();
            while (!(h.theirs(ending.slot).control.flags.load() & kFlagWriteShut))
                h.plugin->progress(h.device);
            while (receive_some(h, ending)) {
            }
            HOST_REQUIRE(ending.received == 90'000);
            h.meet_and_serve();
        }
        end(h);
    }));
}

TEST_CASE("a sleeper on the completion channel is woken by what comes after it has armed and looked") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 1);
        for (int i = 0; i < 300; ++i) { // in turn
            if (side == 0)
                HOST_REQUIRE(send_some(h, c, 8));
            while (!receive_some(h, c)) {
                h.plugin->arm(h.device);
                h.plugin->progress(h.device);
                if (receive_some(h, c))
                    break;
                pollfd p = {h.plugin->event_fd(h.device), POLLIN, 0};
                HOST_REQUIRE(poll(&p, 1, 20'000) == 1);
                h.plugin->take_events(h.device);
                h.plugin->progress(h.device);
            }
            if (side == 1)
                HOST_REQUIRE(send_some(h, c, 8));
        }
        h.meet_and_serve();
        end(h);
    }));
}

TEST_CASE("an event is raised for who has armed, and for nobody after it was taken") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 1);
        const auto is_raised = [&](int ms) {
            pollfd p = {h.plugin->event_fd(h.device), POLLIN, 0};
            return poll(&p, 1, ms) == 1;
        };
        for (int i = 0; i < 3; ++i) {
            if (side == 0) {
                h.meet(); // it is armed
                HOST_REQUIRE(send_some(h, c, 8));
                h.meet(); // it is not
                HOST_REQUIRE(send_some(h, c, 8));
                h.meet();
                continue;
            }
            h.plugin->arm(h.device);
            h.plugin->progress(h.device);
            h.meet();
            HOST_REQUIRE(is_raised(20'000));
            h.plugin->take_events(h.device);
            while (!receive_some(h, c))
                h.plugin->progress(h.device);
            h.meet();
            while (!receive_some(h, c))
                h.plugin->progress(h.device);
            HOST_REQUIRE(!is_raised(0));
            h.meet();
        }
        h.meet_and_serve();
        end(h);
    }));
}

TEST_CASE("what was consumed is told by itself after many looks in vain, or before a sleep") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 1);
        const auto messages = [&] {
            rdma::Counts n{};
            h.plugin->counts(h.peer, &n);
            return n.messages;
        };
        const auto take = [&] { // as a program that reads
            ring::Record r{};
            auto &consumed = h.mine(1).credit.consumed;
            while (ring::next_record(c.rx, h.receiving(1), consumed, &r) == 0)
                h.plugin->progress(h.device);
            HOST_REQUIRE(ring::skip(c.rx, r, 8) == 8);
            consumed.store(ring::read_up_to(c.rx), std::memory_order_release);
            notify(*h.link, 1, h.theirs(1).control.tx_arm);
        };
        enum What { looks, answer, sleep };
        for (const What what : {looks, answer, sleep, answer, looks}) {
            if (side == 0) {
                HOST_REQUIRE(send_some(h, c, 8));
                const uint64_t told = c.tx.tail;
                while (h.theirs(1).credit.consumed.load(std::memory_order_acquire) != told)
                    h.plugin->progress(h.device);
                h.meet();
                continue;
            }
            take();
            const uint64_t before = messages();
            for (uint32_t i = 0; what == looks && i + 1 < rdma::kLooksBeforeTelling; ++i)
                HOST_REQUIRE(h.plugin->progress(h.device) == 0);
            HOST_REQUIRE(messages() == before);
            if (what == answer) {
                h.mine(1).control.oob.fetch_add(1); // something that is sent
                h.tell(1);
            } else if (what == sleep) {
                h.plugin->arm(h.device);
            }
            h.plugin->progress(h.device);
            HOST_REQUIRE(messages() == before + 1);
            for (uint32_t i = 0; i < 2 * rdma::kLooksBeforeTelling; ++i)
                h.plugin->progress(h.device);
            HOST_REQUIRE(messages() == before + 1);
            h.meet();
        }
        h.meet_and_serve();
        end(h);
    }));
}

TEST_CASE("a queue pair that ends ends for both, and can be made anew over the same links") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        stream(h, side, 2, 10'000, side);
        if (side == 0) {
            h.plugin->end(h.peer);
            HOST_REQUIRE(h.plugin->state(h.peer) == rdma::PeerState::ended);
            h.meet();
        } else {
            h.meet();
            Connection c(side, 900);
            // It finds out when it sends.
            while (h.plugin->state(h.peer) == rdma::PeerState::open) {
                h.mine(900).credit.consumed.fetch_add(8);
                h.tell(900);
                h.plugin->progress(h.device);
            }
            h.plugin->end(h.peer);
        }
        h.plugin->detach(h.remote);
        h.plugin->drop(h.peer);
        h.connect();
        for (uint32_t i = 0; i < 2; ++i)
            reset_slot(h.link->view.slot(i * 61 + 3), 1u - side);
        h.attach(0);
        stream(h, side, 2, 10'000, side);
        end(h);
    }));
}

TEST_CASE("a peer that was killed is noticed by who sends to it") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        stream(h, side, 1, 5000, side);
        if (side == 1)
            raise(SIGKILL);
        char byte;
        HOST_REQUIRE(recv(other, &byte, 1, 0) == 0);
        // What is sent in the first ms the fake takes as sent before it died, and that may use up all credit.
        usleep(5000);
        while (h.plugin->state(h.peer) == rdma::PeerState::open) {
            h.mine(900).credit.consumed.fetch_add(8);
            h.tell(900);
            h.plugin->progress(h.device);
        }
        end(h);
    }));
}

TEST_CASE("what arrives before a queue pair is cut is what was sent, from its beginning") {
    TwoHosts hosts("late=50,cut=2000");
    CHECK(hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        Connection c(side, 7);
        // A side whose credit is used up posts nothing, and hears of the other's cut only when it does. In
        // earnest the monitors tell it; here who has ended says how much it has sent.
        const auto other_has_ended = [other] {
            char byte;
            return recv(other, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
        };
        for (uint64_t looks = 1; h.plugin->state(h.peer) == rdma::PeerState::open; ++looks) {
            send_some(h, c, 1 + c.sent % 300);
            receive_some(h, c);
            h.plugin->progress(h.device);
            if (looks % 10'000 == 0 && other_has_ended())
                break;
            HOST_REQUIRE(looks < 100'000'000);
        }
        h.plugin->end(h.peer);
        while (receive_some(h, c)) { // compares each byte
        }
        const uint64_t theirs = h.exchange(c.sent);
        HOST_REQUIRE(c.received <= theirs && c.sent > 0);
        h.plugin->detach(h.remote);
        h.plugin->drop(h.peer);
        h.plugin->close(h.device);
    }));
}

TEST_CASE("no more memory is registered than the limit says") {
    TwoHosts hosts;
    CHECK(hosts.run([](unsigned side, int other) {
        rdma::Limits two = rdma::kUsualLimits;
        two.registered_bytes = 4 * uint64_t{two.mailbox_bytes};
        HostProcess h(side, other, two);
        rdma::Hello hello{};
        rdma::Peer *second = nullptr, *third = nullptr;
        HOST_REQUIRE(h.plugin->peer(h.device, h.place, &hello, &second) == 0);
        HOST_REQUIRE(h.plugin->peer(h.device, h.place, &hello, &third) == -ENOMEM);
        h.plugin->end(second);
        h.plugin->drop(second);
        HOST_REQUIRE(h.plugin->peer(h.device, h.place, &hello, &third) == 0);
        h.plugin->end(third);
        h.plugin->drop(third);
        h.meet();
        end(h);
    }));
}

TEST_CASE("places are the addresses of all ports that are up, and queue pairs are made at those only") {
    TwoHosts fabric;
    setenv("SD_FAKE_VERBS_DEVICES", "2", 1);
    CHECK(fabric.run_one([] {
        const rdma::Plugin *plugin = HostProcess::load_plugin();
        rdma::Place place[8];
        const auto find = [&](rdma::Host *const *open, unsigned hosts) {
            return plugin->places(open, hosts, place, 8);
        };
        // Of RoCE v2: 10.88.DEVICE.1, and not the link's own.
        HOST_REQUIRE(plugin->places(nullptr, 0, place, 1) == 1 && find(nullptr, 0) == 2);
        const uint8_t first[] = {10, 88, 0, 1}, second[] = {10, 88, 1, 1};
        HOST_REQUIRE(std::string(place[0].device) == "fake0" && memcmp(place[0].address + 12, first, 4) == 0);
        HOST_REQUIRE(std::string(place[1].device) == "fake1" && memcmp(place[1].address + 12, second, 4) == 0);
        rdma::Host *host = nullptr, *none = nullptr;
        rdma::Hello hello{};
        rdma::Peer *peer = nullptr;
        const rdma::Place one = place[1];
        HOST_REQUIRE(plugin->open(rdma::kUsualLimits, one, &host) == 0);
        HOST_REQUIRE(plugin->peer(host, one, &hello, &peer) == 0);
        HOST_REQUIRE(memcmp(hello.address, one.address, sizeof hello.address) == 0);
        plugin->end(peer);
        plugin->drop(peer);

        HOST_REQUIRE(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL)); // the plugin has it for itself
        const auto &control = *fake_verbs::control();
        control.port(0, 1, 0);
        HOST_REQUIRE(find(&host, 1) == 1 && std::string(place[0].device) == "fake0");
        HOST_REQUIRE(plugin->peer(host, one, &hello, &peer) == -ENETDOWN);
        control.port(0, 1, 1);
        HOST_REQUIRE(find(&host, 1) == 2);
        control.full(0, 1, 1);
        HOST_REQUIRE(plugin->peer(host, one, &hello, &peer) == -ENOMEM);
        control.full(0, 1, 0);
        rdma::Place strange = one;
        strange.address[15] = 77;
        HOST_REQUIRE(plugin->peer(host, strange, &hello, &peer) == -ENETDOWN);

        control.device(0, 1, 0);
        HOST_REQUIRE(find(&host, 1) == 1 && plugin->open(rdma::kUsualLimits, one, &none) == -ENODEV);
        HOST_REQUIRE(plugin->peer(host, one, &hello, &peer) == -ENODEV);
        control.device(0, 1, 1); // another one for who opens it anew
        HOST_REQUIRE(find(&host, 1) == 2 && plugin->peer(host, one, &hello, &peer) == -ENODEV);
        HOST_REQUIRE(plugin->open(rdma::kUsualLimits, one, &none) == 0);
        HOST_REQUIRE(plugin->peer(none, one, &hello, &peer) == 0);
        plugin->end(peer);
        plugin->drop(peer);
        plugin->close(none);
        plugin->close(host);
        control.device(0, 0, 0);
        control.device(0, 1, 0);
        HOST_REQUIRE(find(nullptr, 0) == -ENODEV);
    }));
    unsetenv("SD_FAKE_VERBS_DEVICES");
}

TEST_CASE("two devices of a process count together what they register") {
    TwoHosts fabric;
    setenv("SD_FAKE_VERBS_DEVICES", "2", 1);
    CHECK(fabric.run_one([] {
        const rdma::Plugin *plugin = HostProcess::load_plugin();
        rdma::Place place[8];
        HOST_REQUIRE(plugin->places(nullptr, 0, place, 8) == 2);
        rdma::Limits two = rdma::kUsualLimits;
        two.registered_bytes = 4 * uint64_t{two.mailbox_bytes};
        std::atomic<uint64_t> registered{0};
        two.registered = &registered;
        rdma::Host *host[2];
        rdma::Peer *peer[3];
        rdma::Hello hello{};
        HOST_REQUIRE(plugin->open(two, place[0], &host[0]) == 0 && plugin->open(two, place[1], &host[1]) == 0);
        HOST_REQUIRE(plugin->peer(host[0], place[0], &hello, &peer[0]) == 0);
        HOST_REQUIRE(plugin->peer(host[1], place[1], &hello, &peer[1]) == 0);
        HOST_REQUIRE(registered == two.registered_bytes);
        HOST_REQUIRE(plugin->peer(host[0], place[0], &hello, &peer[2]) == -ENOMEM);
        plugin->end(peer[1]);
        plugin->drop(peer[1]);
        HOST_REQUIRE(plugin->peer(host[0], place[0], &hello, &peer[2]) == 0);
        for (rdma::Peer *p : {peer[0], peer[2]}) {
            plugin->end(p);
            plugin->drop(p);
        }
        HOST_REQUIRE(registered == 0);
        plugin->close(host[0]);
        plugin->close(host[1]);
    }));
    unsetenv("SD_FAKE_VERBS_DEVICES");
}
