// Where the larger rings of a link lie: pieces of the sides' arenas, mapped as they are used.
#include "libsd/control/client.hpp"
#include "libsd/transport/arena_claims.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/ring_shrink.hpp"
#include "tests/unit/stream_pair.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <vector>

using namespace sd;
using test::StreamPair;
using test::test_link;

namespace {

uint64_t opened_by(const LinkMap &l) { return l.view.header().side[l.side].arena_open.load(); }
uint64_t used_by(const LinkMap &l) { return l.view.header().side[l.side].arena_used.load(); }

/// Sends from end `from` until the socket takes no more; bytes.
size_t fill(StreamPair &p, int from, size_t piece = 65536) {
    const std::vector<char> data(piece, 'x');
    size_t sum = 0;
    for (long r; (r = vfs::send(p.fd[from], p.file(from), data.data(), data.size(), MSG_DONTWAIT)) > 0;)
        sum += static_cast<size_t>(r);
    return sum;
}

size_t drain(StreamPair &p, int at) {
    std::vector<char> data(65536);
    size_t sum = 0;
    for (long r; (r = vfs::recv(p.fd[at], p.file(at), data.data(), data.size(), MSG_DONTWAIT)) > 0;)
        sum += static_cast<size_t>(r);
    return sum;
}

uint8_t *inline_ring(StreamPair &p, unsigned sender) {
    return test_link(0)->view.slot(p.file(0)->slot).ring[sender];
}

} // namespace

TEST_CASE("a connection grows into the arena, and the next one over the same slot finds the same pieces") {
    uint64_t used = 0;
    for (int again = 0; again < 2; ++again) {
        StreamPair p;
        const size_t sent = fill(p, 0);
        REQUIRE(sent > kRingSize[2]);
        REQUIRE(drain(p, 1) == sent);
        if (again == 0)
            used = used_by(*test_link(0));
        REQUIRE(used_by(*test_link(0)) == used);
    }
}

TEST_CASE("no two rings of a side overlap, and none leaves its part of the arena") {
    auto &open = test_link(1)->view.header().side[1].arena_open;
    const uint64_t before = open;
    narrow_arena(*test_link(1)); // as in a process whose address space is limited
    const uint64_t narrow = opened_by(*test_link(1));
    REQUIRE(narrow >= kNarrowArena);
    REQUIRE(narrow < kArenaBytes);
    std::vector<std::unique_ptr<StreamPair>> pairs;
    std::set<std::pair<uint64_t, uint64_t>> taken;
    for (int i = 0; i < 60; ++i) {
        pairs.push_back(std::make_unique<StreamPair>());
        const size_t sent = fill(*pairs.back(), 0);
        REQUIRE(sent > kInlineRing);
        REQUIRE(drain(*pairs.back(), 1) == sent);
        const uint32_t slot = pairs.back()->file(0)->slot;
        for (unsigned cls = 1; cls < kRingClasses; ++cls)
            if (const uint32_t units = test_link(0)->view.piece(slot, 0, cls).load()) {
                const uint64_t at = (uint64_t{units} - 1) * kPieceUnit;
                REQUIRE(at % kRingSize[cls] == 0);
                taken.insert({at, at + kRingSize[cls]});
            }
    }
    uint64_t end = 0;
    for (const auto &[from, to] : taken) {
        REQUIRE(from >= end);
        end = to;
    }
    REQUIRE(end <= used_by(*test_link(0)));
    // The receiver has mapped ahead, or the later ones would have stayed small.
    REQUIRE(opened_by(*test_link(1)) > narrow);
    REQUIRE(opened_by(*test_link(1)) >= end);
    open = before;
}

TEST_CASE("a sender takes nothing that its receiver has not opened, and does without") {
    StreamPair p;
    auto &open = test_link(1)->view.header().side[1].arena_open;
    const uint64_t before = open.exchange(0);
    const uint32_t slot = p.file(0)->slot;
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        test_link(0)->view.piece(slot, 0, cls) = 0;
    REQUIRE_FALSE(ring_to_be_had(*test_link(0), slot, 1));
    // In parts, as there is room; also what is small and would otherwise go in whole.
    std::string got;
    for (int i = 0; i < 200; ++i) {
        const std::string data(300, static_cast<char>('a' + i % 26));
        size_t done = 0;
        while (done < data.size()) {
            const long r = vfs::send(p.fd[0], p.file(0), data.data() + done, data.size() - done, MSG_DONTWAIT);
            char buffer[4096];
            const long n = vfs::recv(p.fd[1], p.file(1), buffer, sizeof buffer, MSG_DONTWAIT);
            REQUIRE((r > 0 || n > 0));
            done += r > 0 ? static_cast<size_t>(r) : 0;
            got.append(buffer, n > 0 ? static_cast<size_t>(n) : 0);
        }
    }
    char buffer[4096];
    for (long n; (n = vfs::recv(p.fd[1], p.file(1), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
        got.append(buffer, static_cast<size_t>(n));
    REQUIRE(got.size() == 200 * 300);
    for (size_t i = 0; i < got.size(); ++i)
        REQUIRE(got[i] == static_cast<char>('a' + i / 300 % 26));
    REQUIRE(p.file(0)->ofd->tx.s.cls == 0);
    open = before;
}

TEST_CASE("a full ring that cannot grow is not reported as writable") {
    StreamPair p;
    auto &open = test_link(1)->view.header().side[1].arena_open;
    const uint64_t before = open.exchange(0);
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        test_link(0)->view.piece(p.file(0)->slot, 0, cls) = 0;
    REQUIRE(fill(p, 0, 100) > 0);
    REQUIRE((stream_events(*p.file(0)) & EPOLLOUT) == 0);
    open = before;
    REQUIRE((stream_events(*p.file(0)) & EPOLLOUT) != 0);
}

TEST_CASE("a piece that no honest peer writes is no room to grow into") {
    StreamPair p;
    const uint32_t slot = p.file(0)->slot;
    auto &piece = test_link(1)->view.piece(slot, 0, 1);
    const uint32_t before = piece.exchange(static_cast<uint32_t>(kArenaBytes / kPieceUnit) + 1);
    REQUIRE_FALSE(ring_to_be_had(*test_link(0), slot, 1));
    // Who waits for POLLOUT must not be told of room that the next send does not find, or it waits in a loop.
    REQUIRE(fill(p, 0, 100) > 0);
    REQUIRE((stream_events(*p.file(0)) & EPOLLOUT) == 0);
    piece = before;
}

TEST_CASE("after a false 'consumed' a send finds the room that POLLOUT tells of") {
    StreamPair p;
    auto &open = test_link(1)->view.header().side[1].arena_open;
    const uint64_t before = open.exchange(0); // it cannot grow
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        test_link(0)->view.piece(p.file(0)->slot, 0, cls) = 0;
    REQUIRE(vfs::send(p.fd[0], p.file(0), "x", 1, MSG_DONTWAIT) == 1);
    p.file(0)->peer->credit.consumed = ~uint64_t{0};
    REQUIRE((stream_events(*p.file(0)) & EPOLLOUT) != 0);
    const std::string large(100000, 'y');
    REQUIRE(vfs::send(p.fd[0], p.file(0), large.data(), large.size(), MSG_DONTWAIT) > 0);
    p.file(0)->peer->credit.consumed = 0;
    open = before;
}

TEST_CASE("a table of pieces that the peer has spoilt leads nowhere else") {
    StreamPair p;
    const uint32_t slot = p.file(0)->slot;
    auto &piece = test_link(1)->view.piece(slot, 0, 2);
    for (const uint32_t lie : {2u, 0xffffffffu, static_cast<uint32_t>(kArenaBytes / kPieceUnit) + 1, 3u}) {
        piece = lie; // not at a multiple of its size, or outside
        long error = 0;
        REQUIRE(larger_ring(inline_ring(p, 0), 2, &error) == nullptr);
        REQUIRE(error == -EPROTO);
        REQUIRE_FALSE(provide_ring(*test_link(0), slot, 2));
    }
    piece = 0;
    long error = 0;
    REQUIRE(larger_ring(inline_ring(p, 0), 2, &error) == nullptr);
    REQUIRE(error == -EPROTO);
    REQUIRE(larger_ring(reinterpret_cast<const uint8_t *>(&error), 1, &error) == nullptr);
}

TEST_CASE("a sender whose ring the peer has taken out of the table goes on to a larger one") {
    StreamPair p;
    const std::vector<char> some(1000, 'x'), more(40'000, 'y');
    REQUIRE(vfs::send(p.fd[0], p.file(0), some.data(), some.size(), MSG_DONTWAIT) == 1000);
    REQUIRE(p.file(0)->ofd->tx.s.cls == 1);
    test_link(1)->view.piece(p.file(0)->slot, 0, 1) = 0;
    REQUIRE(vfs::send(p.fd[0], p.file(0), more.data(), more.size(), MSG_DONTWAIT) == 40'000);
    REQUIRE(p.file(0)->ofd->tx.s.cls > 1);
}

TEST_CASE("a ring that a peek has gone on from, and the peer has taken out of the table, leads nowhere") {
    StreamPair p;
    const std::vector<char> data(1000, 'x');
    const auto send_until = [&](uint32_t cls) {
        while (p.file(0)->ofd->tx.s.cls != cls)
            REQUIRE(vfs::send(p.fd[0], p.file(0), data.data(), data.size(), MSG_DONTWAIT) == 1000);
    };
    File &sender = *p.file(0), &receiver = *p.file(1);
    RxState &s = receiver.ofd->rx.s;
    auto &piece = test_link(0)->view.piece(receiver.slot, 0, 1);
    std::array<char, 1000> got{};
    send_until(1);
    SECTION("in a record of bytes") {
        send_until(2);
        while (s.cls == 0)
            REQUIRE(vfs::recv(p.fd[1], &receiver, got.data(), got.size(), MSG_DONTWAIT) == 1000);
        REQUIRE(vfs::recv(p.fd[1], &receiver, got.data(), 10, MSG_DONTWAIT) == 10);
        std::vector<char> all(kRingSize[0] + kRingSize[1] + kRingSize[2]);
        REQUIRE(vfs::recv(p.fd[1], &receiver, all.data(), all.size(), MSG_DONTWAIT | MSG_PEEK) > 0);
        REQUIRE(receiver.rx_place.known(1) == nullptr);
        const uint32_t before = piece.exchange(0);
        const long r = vfs::recv(p.fd[1], &receiver, got.data(), 10, MSG_DONTWAIT);
        piece = before;
        REQUIRE(r == -ECONNRESET);
    }
    SECTION("in a handle that is read in part") {
        ring::put_handle(sender.ofd->tx.s, sender.tx_place, {1, 1}, 100);
        ring::Record rec{};
        std::atomic<uint64_t> consumed{0};
        while (ring::next_record(s, receiver.rx_place, consumed, &rec) == 1)
            REQUIRE(ring::skip(s, rec, rec.length) == rec.length);
        REQUIRE(s.cls == 1);
        REQUIRE(rec.elsewhere);
        REQUIRE(ring::skip(s, rec, 10) == 10);
        REQUIRE(ring::next_record(s, receiver.rx_place, consumed, &rec) == ring::kHandleNext);
        send_until(2);
        REQUIRE(receiver.rx_place.settle(2) == 0); // as a peek has it
        const uint32_t before = piece.exchange(0);
        const int r = ring::next_record(s, receiver.rx_place, consumed, &rec);
        piece = before;
        REQUIRE(r == -EPROTO);
    }
}

TEST_CASE("a peer has no say in how much of a limited address space it takes") {
    StreamPair p;
    LinkMap &receiver = *test_link(1);
    auto &header = receiver.view.header();
    const uint64_t used = header.side[0].arena_used, open = header.side[1].arena_open;
    header.side[0].arena_used = kArenaBytes; // a lie
    narrow_arena(receiver);
    REQUIRE(opened_by(receiver) <= kMostNarrow);
    const uint64_t mapped = mapped_arena_bytes;
    REQUIRE(mapped <= 4 * kMostNarrow); // of two arenas, as two sides
    auto &piece = receiver.view.piece(p.file(0)->slot, 0, 1);
    piece = static_cast<uint32_t>((uint64_t{1} << 30) / kPieceUnit) + 1;
    long error = 0;
    REQUIRE(larger_ring(receiver.view.slot(p.file(0)->slot).ring[0], 1, &error) == nullptr);
    REQUIRE(error == -ENOMEM);
    piece = 0;
    REQUIRE(mapped_arena_bytes == mapped);
    header.side[0].arena_used = used;
    header.side[1].arena_open = open;
}

TEST_CASE("without address space a receiver says so, loses nothing, and goes on when there is some") {
    // The other side's process has written into a part that this one has not mapped and cannot map now.
    StreamPair p;
    LinkMap &sender = *test_link(0), &receiver = *test_link(1);
    receiver.narrow = false; // as it was before the tests above
    const uint32_t slot = p.file(0)->slot;
    unsigned part = 1;
    while (receiver.part[0][part].load())
        ++part;
    auto &used = sender.view.header().side[0].arena_used;
    const uint64_t used_before = used.exchange(kFirstArena << (part - 1));
    const uint64_t mapped_before = receiver.view.header().side[1].arena_open.exchange(kFirstArena << part);
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        sender.view.piece(slot, 0, cls) = 0;
    const size_t sent = fill(p, 0, 2000);
    REQUIRE(sent > kInlineRing);
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit none{1 << 20, before.rlim_max};
    char buffer[4096];
    size_t got = 0;
    long r;
    // No check in between: it would need memory itself.
    const long limited = sys::call(SYS_prlimit64, 0, RLIMIT_AS, sys::arg(&none), 0);
    while ((r = vfs::recv(p.fd[1], p.file(1), buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
        got += static_cast<size_t>(r);
    const uint32_t events = stream_events(*p.file(1));
    REQUIRE(sys::call(SYS_prlimit64, 0, RLIMIT_AS, sys::arg(&before), 0) == 0);
    REQUIRE(limited == 0);
    REQUIRE(r == -ENOMEM);
    REQUIRE((events & EPOLLIN) != 0); // so that a program that polls learns of it
    REQUIRE(got < sent);
    got += drain(p, 1);
    REQUIRE(got == sent);
    used = used_before;
    receiver.view.header().side[1].arena_open = mapped_before;
}

TEST_CASE("of a stranger's link little is mapped ahead, and no more than a bound of all such links") {
    long error = 0;
    LinkMap *l = map_link(test::make_link_memory(), 11, 1, 0, LinkPeer::stranger, &error);
    REQUIRE(l != nullptr);
    REQUIRE(opened_by(*l) == kNarrowArena); // the sender was told
    const auto ring_at = [&](uint64_t offset) {
        // Whatever the sender was told
        l->view.piece(5, 0, 1) = static_cast<uint32_t>(offset / kPieceUnit) + 1;
        error = 0;
        return larger_ring(l->view.slot(5).ring[0], 1, &error);
    };
    const uint32_t parts = mapped_arena_parts.exchange(kMostForeignParts); // as if others had so many
    CHECK(ring_at(kMostForeign / 4) == nullptr);
    CHECK(error == -ENOMEM);
    CHECK(ring_at(kNarrowArena / 2) != nullptr); // it is there already
    mapped_arena_parts = parts;
    CHECK(ring_at(kMostForeign / 4) != nullptr);
    CHECK(ring_at(kMostForeign - kRingSize[1]) != nullptr);
    CHECK(ring_at(kMostForeign) == nullptr);
    CHECK(error == -ENOMEM);
    l->users = 0; // the caller's
    unmap_link(l);
}

namespace {

/// While it lives, arenas may take that much more than they have.
struct LittleMemory {
    explicit LittleMemory(uint64_t more) { control::profile.arenas = 2 * (arena_claims + more); }
    ~LittleMemory() { control::profile.arenas = control::kArenasUnbounded; }
    LittleMemory(const LittleMemory &) = delete;
    LittleMemory &operator=(const LittleMemory &) = delete;
};

/// How many pages of the stranger's arena have memory.
size_t pages_of_arena(const LinkMap &l, unsigned side) {
    std::vector<unsigned char> there(kFirstArena / 4096);
    REQUIRE(mincore(l.view.base + kFirstArenas + side * kFirstArena, kFirstArena, there.data()) == 0);
    return static_cast<size_t>(std::count_if(there.begin(), there.end(), [](unsigned char p) { return p & 1; }));
}

} // namespace

TEST_CASE("a stranger who says that he has written what he has not makes the receiver take a bounded part of "
          "its memory") {
    const uint64_t before = arena_claims;
    LittleMemory little(2u << 20);
    long error = 0;
    LinkMap *l = map_link(test::make_link_memory(), 12, 1, 0, LinkPeer::stranger, &error);
    REQUIRE(l);
    REQUIRE(opened_by(*l) == kRingSize[2]);
    REQUIRE(arena_claims == before);
    // Each slot of his has a ring of 256 KiB, as he says, and a receiver reads all of each.
    unsigned had = 0;
    for (uint32_t slot = 0; slot < 64; ++slot) {
        l->view.piece(slot, 0, 3) = static_cast<uint32_t>(slot * kRingSize[3] / kPieceUnit) + 1;
        if (const uint8_t *ring = larger_ring(l->view.slot(slot).ring[0], 3, &error)) {
            ++had;
            for (uint32_t at = 0; at < kRingSize[3]; at += 4096)
                REQUIRE(*static_cast<const volatile uint8_t *>(ring + at) == 0);
        } else {
            REQUIRE(error == -ENOMEM);
        }
    }
    CHECK(had == 4); // as much is left for others
    CHECK(arena_claims == before + (1u << 20) - kLeastOpened);
    CHECK(opened_by(*l) <= 1u << 20);
    CHECK(pages_of_arena(*l, 0) == kFirstArena / 4096);
    l->users = 0;
    unmap_link(l);
    CHECK(arena_claims == before);
}

TEST_CASE("without memory for larger rings a connection has a small one") {
    StreamPair p;
    const uint32_t slot = p.file(0)->slot;
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        test_link(0)->view.piece(slot, 0, cls) = 0;
    {
        LittleMemory little(0);
        CHECK(ring_to_be_had(*test_link(0), slot, 1));
        CHECK_FALSE(ring_to_be_had(*test_link(0), slot, 2));
        const size_t sent = fill(p, 0);
        CHECK(sent >= kRingSize[1] / 2);
        CHECK(sent < kRingSize[2]);
        CHECK((stream_events(*p.file(0)) & EPOLLOUT) == 0);
        CHECK(drain(p, 1) == sent);
        CHECK_FALSE(provide_ring(*test_link(0), slot, 2));
    }
    CHECK(ring_to_be_had(*test_link(0), slot, 2));
    CHECK(fill(p, 0) > kRingSize[2]);
}

TEST_CASE("rings of a stranger's link are not given back: he may hold their file's lock") {
    StreamPair p;
    const size_t sent = fill(p, 0);
    REQUIRE(drain(p, 1) == sent);
    const auto &state = p.file(0)->ofd->tx.s;
    const uint32_t cls = state.cls;
    REQUIRE(cls != 0);
    test_link(0)->foreign = true;
    for (int i = 0; i < 3; ++i) {
        usleep(250'000);
        shrink_idle_rings();
    }
    CHECK(state.cls == cls);
    test_link(0)->foreign = false;
}

TEST_CASE("a link is mapped whatever its other side has written there before") {
    const int memfd = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(memfd >= 0);
    REQUIRE(sys::ftruncate(memfd, kLinkBytes) == 0);
    REQUIRE(sys::fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    const uint64_t rubbish[3] = {1, 2, 3}; // where magic, version and slots stand
    REQUIRE(sys::call(SYS_pwrite64, memfd, sys::arg(rubbish), sizeof rubbish, 0) == sizeof rubbish);
    long error = 0;
    LinkMap *l = map_link(memfd, 9, 1, 0, LinkPeer::own, &error);
    REQUIRE(l != nullptr);
    l->users = 0; // the caller's
    unmap_link(l);
}
