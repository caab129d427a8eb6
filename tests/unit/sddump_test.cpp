// sddump: the blocks that it writes, the packets that it makes of records, and what libsd copies into its
// ring. tests/e2e/captured runs the program itself, and has tshark read what it writes.
#include "libsd/vfs/streams/capture.hpp"
#include "monitor/sddump/ring.hpp"
#include "monitor/sdstat/snapshot.hpp"
#include "tests/unit/stream_pair.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace sd;
using namespace sd::dump;
using namespace sd::test;
using monitor::UniqueFd;

namespace {

uint32_t word_at(const std::string &s, size_t at) {
    uint32_t v;
    REQUIRE(at + sizeof v <= s.size());
    memcpy(&v, s.data() + at, sizeof v);
    return v;
}

struct Block {
    uint32_t type;
    std::string body;
};

/// The blocks; each says its length twice.
std::vector<Block> blocks_of(const std::string &file) {
    std::vector<Block> result;
    for (size_t at = 0; at < file.size();) {
        const uint32_t length = word_at(file, at + 4);
        REQUIRE(length % 4 == 0);
        REQUIRE(length >= 12);
        REQUIRE(word_at(file, at + length - 4) == length);
        result.push_back({word_at(file, at), file.substr(at + 8, length - 12)});
        at += length;
    }
    return result;
}

/// The packets in it, without what the format puts around them.
std::vector<std::string> packets_of(const std::string &file) {
    std::vector<std::string> result;
    for (const Block &b : blocks_of(file))
        if (b.type == 6)
            result.push_back(b.body.substr(20, word_at(b.body, 12)));
    return result;
}

uint32_t net32(const std::string &s, size_t at) { return ntohl(word_at(s, at)); }
uint32_t net16(const std::string &s, size_t at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(s[at])) << 8 | static_cast<uint8_t>(s[at + 1]);
}

/// 0xffff, where a checksum over it is right.
uint32_t folded(const std::string &s, uint32_t start = 0) {
    for (size_t i = 0; i < s.size(); ++i)
        start += static_cast<uint32_t>(static_cast<uint8_t>(s[i])) << (i % 2 == 0 ? 8 : 0);
    while (start >> 16 != 0)
        start = (start & 0xffff) + (start >> 16);
    return start;
}

Captured record(CaptureKind kind, bool received, uint64_t position, std::string_view payload = {}) {
    Captured c;
    c.kind = kind;
    c.received = received;
    c.position = position;
    c.payload = payload;
    c.length = static_cast<uint32_t>(payload.size());
    for (SlotAddress *a : {&c.client, &c.server}) {
        set_loopback(a->ip, false);
        a->family = AF_INET;
    }
    c.client.port = 41000;
    c.server.port = 80;
    return c;
}

/// A capture of the test's own process, as sddump makes it of another.
struct OwnCapture {
    explicit OwnCapture(const Choice &choice, uint32_t bytes = 1U << 20, uint32_t snap = UINT32_MAX)
        : ring(SegmentMap(UniqueFd(dup(segments[0].fd))), segments[0].proc, bytes, snap),
          marked(ring.start(choice)) {}
    struct Taken {
        Captured record;
        std::string payload;
    };
    std::vector<Taken> read() {
        std::vector<Taken> all;
        (void)ring.read([](uint64_t c) { return c; },
                        [&](const Captured &c) {
                            return all.push_back({c, std::string(c.payload)}), true;
                        });
        return all;
    }
    Ring ring;
    unsigned marked;
};

Choice end_of(const StreamPair &p, unsigned side) {
    Choice c;
    c.link = static_cast<uint32_t>(p.file(static_cast<int>(side))->ofd->link_id);
    c.slot = p.file(static_cast<int>(side))->ofd->slot;
    c.side = side;
    return c;
}

long send_on(int fd, const std::string &s, int flags = 0) {
    return vfs::send(fd, file_of(fd), s.data(), s.size(), flags);
}
std::string receive(int fd, size_t most, int flags = 0) {
    std::string s(most, '\0');
    const long n = vfs::recv(fd, file_of(fd), s.data(), most, flags | MSG_DONTWAIT);
    s.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return s;
}

} // namespace

TEST_CASE("pcapng: section, interface, packet, statistics") {
    Pcapng file("sddump 1", "socksdirect", "what", 96);
    file.packet(0x1122334455667788, Way::outbound, "abcde", 7, "why");
    file.statistics(1, 2, 3, 4);
    const auto blocks = blocks_of(file.take());
    REQUIRE(blocks.size() == 4);
    CHECK(blocks[0].type == 0x0a0d0d0a);
    CHECK(word_at(blocks[0].body, 0) == 0x1a2b3c4d);
    CHECK(blocks[1].type == 1);
    CHECK(word_at(blocks[1].body, 0) == 101);
    CHECK(word_at(blocks[1].body, 4) == 96);
    const Block &p = blocks[2];
    CHECK(p.type == 6);
    CHECK(word_at(p.body, 4) == 0x11223344);
    CHECK(word_at(p.body, 8) == 0x55667788);
    CHECK(word_at(p.body, 12) == 5);
    CHECK(word_at(p.body, 16) == 7);
    CHECK(p.body.substr(20, 8) == std::string("abcde\0\0\0", 8));
    CHECK(word_at(p.body, 28) == (4U << 16 | 2)); // flags
    CHECK(word_at(p.body, 32) == 2);
    CHECK(word_at(p.body, 36) == (3U << 16 | 1)); // comment
    CHECK(p.body.substr(40, 4) == std::string("why\0", 4));
    CHECK(word_at(p.body, 44) == 0);
    CHECK(blocks[3].type == 5);
    CHECK(file.take().empty());
}

TEST_CASE("packets: a connection from its first byte to its end") {
    Pcapng file("", "", "", 0);
    file.take();
    Packets packets(file);
    packets.add(record(CaptureKind::data, false, 0, "hello"));
    packets.add(record(CaptureKind::data, true, 0, "answer"));
    packets.add(record(CaptureKind::fin, false, 5));
    packets.add(record(CaptureKind::fin, false, 5)); // said twice, shown once
    packets.add(record(CaptureKind::data, true, 6, "more"));
    packets.add(record(CaptureKind::fin, true, 10));
    const auto all = packets_of(file.take());
    REQUIRE(all.size() == 3 + 5);
    struct Expected {
        uint32_t from, sequence, acknowledged, flags;
        std::string payload;
    };
    const Expected expected[] = {{41000, 0, 0, 0x02, ""},    {80, 0, 1, 0x12, ""},
                                 {41000, 1, 1, 0x10, ""},    {41000, 1, 1, 0x18, "hello"},
                                 {80, 1, 6, 0x18, "answer"}, {41000, 6, 7, 0x11, ""},
                                 {80, 7, 7, 0x18, "more"},   {80, 11, 7, 0x11, ""}};
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string &p = all[i];
        INFO(i);
        CHECK(p[0] == 0x45);
        CHECK(net16(p, 2) == p.size());
        CHECK(folded(p.substr(0, 20)) == 0xffff);
        const std::string tcp = p.substr(20);
        CHECK(folded(tcp, folded(p.substr(12, 8), 6 + static_cast<uint32_t>(tcp.size()))) == 0xffff);
        CHECK(net16(tcp, 0) == expected[i].from);
        CHECK(net32(tcp, 4) == expected[i].sequence);
        CHECK(net32(tcp, 8) == expected[i].acknowledged);
        CHECK((net16(tcp, 12) & 0x3f) == expected[i].flags);
        CHECK(tcp.substr(20) == expected[i].payload);
    }
}

TEST_CASE("packets: IPv6, a gap, a cut, a reset, a slot that is used again") {
    Pcapng file("", "", "", 0);
    file.take();
    Packets packets(file);
    Captured c = record(CaptureKind::data, false, 1000, "xyz");
    c.other = 70; // seen from the middle on
    for (SlotAddress *a : {&c.client, &c.server})
        set_loopback(a->ip, true);
    c.length = 100000;
    packets.add(c);
    c.kind = CaptureKind::reset;
    c.position = 101000;
    c.length = 0;
    c.payload = {};
    packets.add(c);
    Captured next = record(CaptureKind::born, false, 0);
    next.client.port = 41001;
    packets.add(next);
    const auto all = packets_of(file.take());
    REQUIRE(all.size() == 2 + 1 + 3);
    CHECK(all[0][0] == 0x60);
    CHECK(all[0].size() == 40 + 20 + 3);
    CHECK(net16(all[0], 4) == 20 + 61440);
    CHECK(net32(all[0], 40 + 4) == 1001);
    CHECK(net32(all[0], 40 + 8) == 71);
    CHECK(net32(all[1], 40 + 4) == 1001 + 61440);
    CHECK(all[1].size() == 60);
    CHECK(net32(all[2], 40 + 4) == 101001);
    CHECK((net16(all[2], 40 + 12) & 0x3f) == 0x14);
    CHECK(net16(all[3], 20) == 41001);
    CHECK((net16(all[3], 20 + 12) & 0x3f) == 2);
    CHECK(packets.count() == 6);
}

TEST_CASE("packets: both ends in one process are one connection") {
    Pcapng file("", "", "", 0);
    file.take();
    Packets packets(file);
    for (unsigned side : {0U, 1U}) {
        Captured c = record(CaptureKind::born, false, 0);
        c.side = static_cast<uint8_t>(side);
        packets.add(c);
    }
    packets.add(record(CaptureKind::data, false, 0, "x"));
    Captured there = record(CaptureKind::data, true, 0, "x");
    there.side = 1;
    packets.add(there);
    CHECK(packets_of(file.take()).size() == 4);
}

TEST_CASE("a capture has what both ends of a connection say, and nothing is left of it") {
    StreamPair p;
    std::string sent, came, taken;
    {
        OwnCapture capture(end_of(p, 0));
        REQUIRE(capture.marked == 1);
        std::mt19937 random(4711);
        std::string out, in;
        for (unsigned i = 0; i < 2000; ++i) {
            std::string s(1 + random() % (i % 50 == 0 ? 100000 : 300), '\0');
            for (char &c : s)
                c = static_cast<char>(random());
            const int from = i % 3 == 0 ? 1 : 0;
            const long n = send_on(p.fd[from], s, MSG_DONTWAIT);
            REQUIRE(n > 0);
            (from == 0 ? sent : came) += s.substr(0, static_cast<size_t>(n));
            while (true) {
                const std::string got = receive(p.fd[1 - from], 1 + random() % 70000);
                if (got.empty())
                    break;
                taken += from == 1 ? got : std::string();
            }
            for (const auto &r : capture.read()) {
                CHECK(r.record.kind == CaptureKind::data);
                std::string &to = r.record.received ? in : out;
                REQUIRE(r.record.position == to.size());
                REQUIRE(r.record.length == r.payload.size());
                to += r.payload;
                REQUIRE(r.record.client.port == 41000);
                REQUIRE(r.record.server.port == 80);
            }
        }
        CHECK(out == sent);
        CHECK(in == taken);
        CHECK(taken == came);
        CHECK(capture.ring.dropped() == 0);
    }
    Ofd &o = *p.file(0)->ofd;
    CHECK(o.tx_block.load() == 0);
    CHECK(o.rcvlowat.load() == 1);
    CHECK(segments[0].view.header().capture.load() == 0);
}

TEST_CASE("what finds no room is counted, and never waited for; a snap length keeps the beginnings") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0), kCaptureMinRing);
    const std::string s(1000, 'x');
    for (int i = 0; i < 20; ++i) {
        REQUIRE(send_on(p.fd[0], s) == 1000);
        REQUIRE(receive(p.fd[1], 1000) == s);
    }
    const auto all = capture.read();
    CHECK(all.size() == 3); // of 96 + 1000 bytes each
    CHECK(capture.ring.dropped() == 17);
    CHECK(capture.ring.dropped_bytes() == 17000);
    REQUIRE(send_on(p.fd[0], s) == 1000);
    const auto more = capture.read();
    REQUIRE(more.size() == 1);
    CHECK(more[0].record.position == 20000);
}

TEST_CASE("a snap length keeps the beginnings") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0), kCaptureMinRing, 10);
    REQUIRE(send_on(p.fd[0], "0123456789abcdef") == 16);
    const auto all = capture.read();
    REQUIRE(all.size() == 1);
    CHECK(all[0].record.length == 16);
    CHECK(all[0].payload == "0123456789");
}

TEST_CASE("SO_RCVLOWAT is the program's under a capture") {
    StreamPair p;
    int low = 5;
    socklen_t n = sizeof low;
    {
        OwnCapture capture(end_of(p, 0));
        low = 0;
        REQUIRE(get_option(p.fd[0], SOL_SOCKET, SO_RCVLOWAT, &low, &n) == 0);
        CHECK(low == 1);
        low = 5;
        REQUIRE(set_option(p.fd[0], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0);
        low = 0;
        REQUIRE(get_option(p.fd[0], SOL_SOCKET, SO_RCVLOWAT, &low, &n) == 0);
        CHECK(low == 5);
        REQUIRE(send_on(p.fd[1], "0123456789") == 10);
        CHECK(receive(p.fd[0], 10) == "0123456789");
        CHECK(capture.read().size() == 1);
    }
    CHECK(p.file(0)->ofd->rcvlowat.load() == 5);
}

TEST_CASE("cork, urgent data and the end are captured") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0));
    REQUIRE(send_on(p.fd[0], "ab", MSG_MORE) == 2);
    REQUIRE(send_on(p.fd[0], "cd") == 2);
    REQUIRE(send_on(p.fd[0], "u", MSG_OOB) == 1);
    REQUIRE(vfs::shutdown(p.fd[0], SHUT_WR) == 0);
    REQUIRE(vfs::shutdown(p.fd[1], SHUT_WR) == 0);
    CHECK(receive(p.fd[0], 10).empty()); // the end of the data
    const auto all = capture.read();
    REQUIRE(all.size() == 5);
    CHECK(all[0].payload == "ab");
    CHECK(all[1].payload == "cd");
    CHECK(all[2].payload == "u");
    CHECK(all[2].record.kind == CaptureKind::urgent);
    CHECK(all[3].record.kind == CaptureKind::fin);
    CHECK(all[3].record.position == 5);
    CHECK(!all[3].record.received);
    CHECK(all[4].record.kind == CaptureKind::fin);
    CHECK(all[4].record.received);
}

TEST_CASE("a close is FIN, or RST with SO_LINGER 0") {
    for (const bool resets : {false, true}) {
        StreamPair p;
        OwnCapture capture(end_of(p, 0));
        if (resets) {
            const linger at_once{1, 0};
            REQUIRE(set_option(p.fd[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
        }
        vfs::close(p.fd[0]);
        const auto all = capture.read();
        REQUIRE(all.size() == 1);
        CHECK(all[0].record.kind == (resets ? CaptureKind::reset : CaptureKind::fin));
    }
}

TEST_CASE("of a process new connections are captured, of a connection it alone") {
    StreamPair before;
    Choice all;
    all.all = true;
    {
        OwnCapture capture(all);
        CHECK(capture.marked == 2); // both ends are this process's
        StreamPair born;
        CHECK(is_captured(*born.file(0)->ofd));
        CHECK(is_receive_captured(*born.file(1)->ofd));
    }
    CHECK(before.file(0)->ofd->tx_block.load() == 0);
    OwnCapture capture(end_of(before, 1));
    StreamPair born;
    CHECK(!is_captured(*born.file(0)->ofd));
    CHECK(!is_captured(*before.file(0)->ofd));
    CHECK(is_captured(*before.file(1)->ofd));
}

TEST_CASE("the process ends a capture, and what is marked heals") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0));
    CHECK(capture.ring.ended() == CaptureEnd::none);
    end_capture(CaptureEnd::credentials);
    CHECK(capture.ring.ended() == CaptureEnd::credentials);
    REQUIRE(send_on(p.fd[0], "x") == 1);
    CHECK(capture.read().empty());
    CHECK(p.file(0)->ofd->tx_block.load() == 0);
    CHECK(p.file(0)->ofd->rcvlowat.load() == 1);
}

TEST_CASE("a reader that has gone is not written for for ever") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0), kCaptureMinRing);
    capture_area(segments[0].view).looked.store(0);
    const std::string s(1000, 'x');
    for (int i = 0; i < 10 && p.file(0)->ofd->tx_block.load() != 0; ++i) {
        REQUIRE(send_on(p.fd[0], s) == 1000);
        REQUIRE(receive(p.fd[1], 1000) == s);
    }
    CHECK(p.file(0)->ofd->tx_block.load() == 0);
    CHECK(capture.ring.ended() == CaptureEnd::abandoned);
}

TEST_CASE("one capture at a time; rubbish in the ring is noticed") {
    StreamPair p;
    OwnCapture capture(end_of(p, 0));
    CHECK_THROWS_AS(OwnCapture(end_of(p, 1)), sd::stat::Failure);
    REQUIRE(send_on(p.fd[0], "x") == 1);
    auto *written = reinterpret_cast<CaptureRecord *>(
        capture_ring(segments[0].view) + (capture_area(segments[0].view).head.load() & ((1U << 20) - 1)));
    written->kept = 1U << 30;
    CHECK_THROWS_AS(capture.read(), sd::stat::Failure);
}
