// A receiver leaves the ring whose program has not read what is there: each byte comes once, in order,
// whoever is killed when.
#include "tests/unit/path_pair.hpp"

#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include <cstring>
#include <random>
#include <string>

using namespace sd;
using namespace sd::test;

namespace {

std::string bytes_of(size_t n, unsigned from = 0) {
    std::string bytes(n, 0);
    for (size_t i = 0; i < n; ++i)
        bytes[i] = static_cast<char>('a' + (from + i) % 23);
    return bytes;
}

/// As a process does that has only the socket.
std::string read_socket(int fd, size_t want) {
    std::string got;
    REQUIRE(soon([&] {
        char room[5000];
        const long r = sys::call(SYS_recvfrom, fd, sys::arg(room), sizeof room, MSG_DONTWAIT, 0, 0);
        if (r > 0)
            got.append(room, static_cast<size_t>(r));
        return got.size() >= want;
    }));
    return got;
}

std::string receive(const PathPair &p, unsigned me, size_t want) {
    std::string got;
    REQUIRE(soon([&] {
        char room[700];
        const long r = p.recv(me, room, sizeof room);
        if (r > 0)
            got.append(room, static_cast<size_t>(r));
        return got.size() >= want;
    }));
    return got;
}

void send(const PathPair &p, unsigned me, const std::string &bytes) {
    REQUIRE(p.send(me, bytes.data(), bytes.size()) == static_cast<long>(bytes.size()));
}

/// Side 1 has sent `unread` over the ring, and side 0, which has stopped, has read none of it.
struct Stopped {
    PathPair p{kWantRing};
    File *receiver, *sender;
    explicit Stopped(const std::string &unread) {
        settle(p);
        receiver = p.file(0);
        sender = p.file(1);
        send(p, 1, unread);
        const Claim rx(receiver->seg, receiver->ofd->rx.token, receiver->rx_token_id(), Claim::patient);
        REQUIRE(stop_reading(*receiver));
        REQUIRE(is_reading_stopped(*receiver->ofd));
    }
    std::atomic<uint64_t> &back() const { return receiver->mine->credit.back; }
    /// As a sender that is killed then: it has claimed, and written so much of what lies in the ring.
    void claim(const std::string &given) const {
        tcp_info info{};
        socklen_t n = sizeof info;
        REQUIRE(sys::getsockopt(p.fd[0], IPPROTO_TCP, TCP_INFO, &info, &n) == 0);
        auto &offer = sender->mine->credit.path.offer;
        offer.store(info.tcpi_bytes_received << 32 | static_cast<uint32_t>(offer.load()));
        back().store((back().load() & ~uint64_t{3}) | static_cast<uint64_t>(BackState::claimed));
        if (given.size())
            REQUIRE(sys::call(SYS_sendto, p.fd[1], sys::arg(given.data()), static_cast<long>(given.size()), 0,
                              0, 0) == static_cast<long>(given.size()));
        REQUIRE(soon([&] {
            int waiting = 0;
            return sys::ioctl(p.fd[0], SIOCINQ, &waiting) == 0 && waiting == static_cast<int>(given.size());
        }));
    }
    void call_home() const { receiver->mine->control.flags.fetch_or(kFlagHome); }
};

} // namespace

TEST_CASE("unread bytes come by the socket, whatever they lie in") {
    const auto sizes =
        GENERATE(as<std::vector<size_t>>{}, std::vector<size_t>{6}, std::vector<size_t>{1, 2, 3, 400},
                 std::vector<size_t>{100, 3000, 5, 20000}, std::vector<size_t>{30000, 70000, 1});
    const size_t read_before = GENERATE(size_t{0}, size_t{1}, size_t{350});
    INFO(sizes.size() << " messages from " << sizes[0] << " on, of which are read " << read_before);
    PathPair p(kWantRing);
    settle(p);
    for (unsigned round = 0; round < 3; ++round) { // so that rings are gone round in
        send(p, 1, bytes_of(220));
        CHECK(receive(p, 0, 220) == bytes_of(220));
    }
    std::string all;
    for (const size_t n : sizes) {
        send(p, 1, bytes_of(n, static_cast<unsigned>(all.size())));
        all += bytes_of(n, static_cast<unsigned>(all.size()));
    }
    if (read_before < all.size() && read_before > 0) {
        std::string got(read_before, 0);
        REQUIRE(p.recv(0, got.data(), got.size(), MSG_WAITALL) == static_cast<long>(read_before));
        CHECK(got == all.substr(0, read_before));
        all = all.substr(read_before);
    }
    REQUIRE(come_home(*p.file(0)));
    CHECK(!sends_in_ring(*p.file(1)->ofd));
    CHECK(read_socket(p.fd[0], all.size()) == all);
    send(p, 1, "behind");
    CHECK(read_socket(p.fd[0], 6) == "behind");
    CHECK(p.file(0)->mine->credit.back.load() == 0);
    REQUIRE(sys::call(SYS_sendto, p.fd[0], sys::arg("back"), 4, 0, 0, 0) == 4);
    CHECK(receive(p, 1, 4) == "back");
}

TEST_CASE("what is unread in the socket before the ring comes before what is given back") {
    const std::string in_ring = GENERATE(std::string(), std::string("ring"), bytes_of(5000));
    PathPair p(kWantRing);
    char room[4];
    send(p, 1, "read");
    send(p, 1, "unread");
    REQUIRE(soon([&] { return p.unread(0) == 10; }));
    REQUIRE(p.recv(0, room, sizeof room) == 4); // and agrees to the ring
    REQUIRE(p.send(1, in_ring.data(), in_ring.size()) == static_cast<long>(in_ring.size()));
    REQUIRE(sends_in_ring(*p.file(1)->ofd));
    REQUIRE(!receives_in_ring(*p.file(0)->ofd));
    const bool comes_home = GENERATE(true, false);
    if (!comes_home) { // taken back
        {
            const File &f = *p.file(0);
            const Claim rx(f.seg, f.ofd->rx.token, f.rx_token_id(), Claim::patient);
            REQUIRE(stop_reading(*p.file(0)));
        }
        CHECK(p.unread(0) == static_cast<int>(6 + in_ring.size()));
        CHECK(receive(p, 0, 6 + in_ring.size()) == "unread" + in_ring);
        return;
    }
    REQUIRE(come_home(*p.file(0)));
    CHECK(!sends_in_ring(*p.file(1)->ofd));
    send(p, 1, "behind");
    CHECK(read_socket(p.fd[0], 12 + in_ring.size()) == "unread" + in_ring + "behind");
}

TEST_CASE("the end comes behind what is given back") {
    PathPair p(kWantRing);
    settle(p);
    send(p, 1, "the last");
    REQUIRE(vfs::shutdown(p.fd[1], SHUT_WR) == 0);
    REQUIRE(come_home(*p.file(0)));
    CHECK(read_socket(p.fd[0], 8) == "the last");
    char byte;
    REQUIRE(soon([&] { return sys::call(SYS_recvfrom, p.fd[0], sys::arg(&byte), 1, MSG_DONTWAIT, 0, 0) == 0; }));
    REQUIRE(sys::call(SYS_sendto, p.fd[0], sys::arg("back"), 4, 0, 0, 0) == 4);
    CHECK(receive(p, 1, 4) == "back");
}

TEST_CASE("who reads takes a stop back, and nothing is given then") {
    const Stopped s("unread bytes");
    CHECK((s.p.events(0) & EPOLLIN) != 0);
    CHECK(s.p.unread(0) == 12);
    CHECK(receive(s.p, 0, 12) == "unread bytes");
    CHECK(s.back().load() == 0);
    s.call_home();
    send(s.p, 1, "more");
    CHECK(receive(s.p, 0, 4) == "more");
}

TEST_CASE("a receiver that was killed as it stopped has not") {
    const Stopped s("unread bytes");
    s.back().store(0);
    CHECK(receive(s.p, 0, 12) == "unread bytes");
    CHECK(!is_reading_stopped(*s.receiver->ofd));
}

TEST_CASE("a sender that was killed with a part given back: the next one gives back the rest") {
    const std::string all = bytes_of(300) + bytes_of(4000, 300);
    const size_t part = GENERATE(size_t{0}, size_t{1}, size_t{299}, size_t{300}, size_t{2000}, size_t{4300});
    INFO(part);
    const Stopped s(all);
    s.claim(all.substr(0, part));
    CHECK(s.p.unread(0) == static_cast<int>(all.size()));
    s.call_home();
    send(s.p, 1, "new");
    CHECK(receive(s.p, 0, all.size() + 3) == all + "new");
    CHECK(!sends_in_ring(*s.sender->ofd));
    CHECK(s.back().load() == 0);
}

TEST_CASE("a sender that was killed with a part given back, and nobody goes on") {
    const std::string all = bytes_of(300) + bytes_of(4000, 300);
    const size_t part = GENERATE(size_t{0}, size_t{1}, size_t{299}, size_t{300}, size_t{2000}, size_t{4300});
    INFO(part);
    const Stopped s(all);
    s.claim(all.substr(0, part));
    REQUIRE(sys::call(SYS_shutdown, s.p.fd[1], SHUT_WR) == 0); // as its kernel does
    s.sender->mine->control.flags.fetch_or(kFlagDead | kFlagClosed);
    CHECK(receive(s.p, 0, all.size()) == all);
    char byte;
    REQUIRE(soon([&] { return s.p.recv(0, &byte, 1) == 0; }));
}

TEST_CASE("the socket had no room for all: the rest is read in the ring, and what follows") {
    const std::string all = bytes_of(300) + bytes_of(4000, 300);
    const size_t part = GENERATE(size_t{0}, size_t{1}, size_t{299}, size_t{300}, size_t{2000});
    INFO(part);
    const Stopped s(all);
    s.claim(all.substr(0, part));
    RxState to = s.receiver->ofd->rx.s;
    REQUIRE(ring::walk_over(to, s.receiver->rx_place, part) == part);
    s.back().store(pack_given(ring::at(to))); // as give_back() does
    s.call_home();
    send(s.p, 1, "put behind it");
    CHECK(sends_in_ring(*s.sender->ofd)); // the ring is not left as long as that is not passed
    CHECK((s.p.events(0) & EPOLLIN) != 0);
    CHECK(s.p.unread(0) == static_cast<int>(all.size()) + 13);
    CHECK(receive(s.p, 0, all.size() + 13) == all + "put behind it");
    CHECK(s.p.unread(0) == 0);
    send(s.p, 1, "and over the socket");
    CHECK(!sends_in_ring(*s.sender->ofd));
    CHECK(receive(s.p, 0, 19) == "and over the socket");
}

TEST_CASE("what has come by the socket does not make a close a reset") {
    const Stopped s("unread bytes");
    s.claim("unread bytes");
    RxState to = s.receiver->ofd->rx.s;
    REQUIRE(ring::walk_over(to, s.receiver->rx_place, 12) == 12);
    s.back().store(pack_given(ring::at(to)));
    char room[100];
    REQUIRE(s.p.recv(0, room, sizeof room) == 12);
    vfs::close(s.p.fd[0]);
    REQUIRE(soon([&] { return s.p.recv(1, room, sizeof room) == 0; }));
}

TEST_CASE("what a hostile receiver says of where it stands leads nowhere") {
    std::minstd_rand random(7);
    for (unsigned i = 0; i < 200; ++i) {
        const Stopped s(bytes_of(1 + random() % 3000));
        const uint64_t noise = uint64_t{random()} << 33 ^ uint64_t { random() } << 11 ^ random();
        s.back().store(i % 4 ? s.back().load() ^ (uint64_t{1} << random() % 64) : noise);
        if (i % 3 == 0)
            s.receiver->mine->credit.consumed.store(s.receiver->mine->credit.consumed.load() + random() % 64);
        s.call_home();
        for (unsigned n = 0; n < 3; ++n) {
            const long r = s.p.send(1, "still alive", 11);
            CHECK((r == 11 || r == -EAGAIN || r == -EPIPE || r == -ECONNRESET));
        }
        s.back().store(0);
    }
}
