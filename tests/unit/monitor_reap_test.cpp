// The monitor's parts on hand-made memory: closing what a dead process held, doorbells, the directory.
#include "monitor/records/directory.hpp"
#include "monitor/records/listener.hpp"
#include "monitor/records/segment.hpp"
#include "tests/unit/monitor_client.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sys/stat.h>

using namespace sd;
using namespace sd::monitor;
using sd::test::TestSegment;

namespace {

constexpr uint32_t kDeath = kFlagDead | kFlagClosed;

struct Fixture {
    std::unique_ptr<Link> link = Link::create(77, 5, 40000);
    TestSegment memory;
    std::shared_ptr<Segment> segment = Segment::open(UniqueFd(dup(memory.fd.get())));

    Slot &slot(uint32_t i) { return link->view(0).slot(i); }
    uint32_t flags(uint32_t i, unsigned side) { return slot(i).side[side].control.flags; }
    uint32_t state(uint32_t ofd) { return memory.view.ofd(ofd).state; }
    void reap(unsigned proc) {
        Segment::Reaping at = segment->reap({nullptr, proc});
        while (!advance(at, 1000)) {
        }
    }
    bool advance(Segment::Reaping &at, unsigned records) {
        return segment->advance(
            at, [this](uint64_t id, unsigned) { return id == 77 ? link.get() : nullptr; }, records);
    }
    std::shared_ptr<BellFd> bell() {
        auto made = std::make_shared<BellFd>();
        made->fd.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        made->id = *eventfd_id(made->fd.get());
        return made;
    }
};

uint64_t count(const BellFd &bell) {
    uint64_t n = 0;
    return read(bell.fd.get(), &n, sizeof n) == sizeof n ? n : 0;
}

} // namespace

TEST_CASE("what only the dead process held is closed, for both sides of links") {
    Fixture f;
    REQUIRE(f.segment);
    f.memory.open(1, 77, 10, 0);
    f.memory.open(70, 77, 11, 1);
    f.memory.open(100'000, 77, 12, 0);
    f.memory.open(3, 78, 13, 0);         // a link it is not attached to
    f.memory.open(4, 77, kLinkSlots, 0); // beyond the table
    f.memory.open(5, 77, 15, 2);
    f.slot(16).side[0].control.flags = kFlagReleased;
    f.memory.open(6, 77, 16, 0); // given up: the slot may be another connection's
    f.memory.view.ofd(9).state = static_cast<uint32_t>(OfdState::closing); // died while it closed
    f.memory.view.ofd(9).link_id = 77;
    f.memory.view.ofd(9).slot = 19;
    f.reap(0);
    REQUIRE(f.flags(10, 0) == kDeath);
    REQUIRE(f.flags(10, 1) == 0);
    REQUIRE(f.flags(11, 1) == kDeath);
    REQUIRE(f.flags(12, 0) == kDeath);
    REQUIRE(f.flags(13, 0) == 0);
    REQUIRE(f.flags(15, 0) == 0);
    REQUIRE(f.flags(16, 0) == kFlagReleased);
    REQUIRE(f.flags(19, 0) == kDeath);
    for (unsigned ofd : {1, 70, 100'000, 3, 4, 5, 6, 9}) {
        REQUIRE(f.state(ofd) == static_cast<uint32_t>(OfdState::free));
    }
    REQUIRE(f.memory.view.proc(0).state == 0);
}

TEST_CASE("what others hold stays open, but everybody on it is woken") {
    Fixture f;
    f.segment->members.push_back({nullptr, 1});
    f.memory.view.proc(1).state = 1;
    f.memory.open(1, 77, 10, 0, 0);
    f.memory.open(1, 77, 10, 0, 1);
    f.memory.open(2, 77, 11, 0, 0);
    // The peer is not armed: the dead process may have swapped that out on its way to ringing.
    auto bell = f.bell(), own = f.bell(), awake = f.bell();
    REQUIRE(f.link->give_bell(1, 0, bell, nullptr) > 0);
    REQUIRE(f.link->give_bell(0, 0, own, nullptr) > 0);
    const int late = f.link->give_bell(1, 0, awake, nullptr);
    REQUIRE(late > 0);
    for (unsigned side : {0, 1})
        f.link->header(side).side[side].sleep_mask = uint64_t{1} << kFirstDoorbell;
    f.reap(0);
    REQUIRE(count(*own) == 1);
    REQUIRE(count(*awake) == 0);
    REQUIRE((f.link->view(0).ready_word(1, static_cast<unsigned>(late), 0) & uint64_t{1} << 10) != 0);
    REQUIRE(f.flags(10, 0) == 0);
    REQUIRE(f.state(1) == static_cast<uint32_t>(OfdState::open));
    REQUIRE(f.memory.view.proc(0).held[0] == 0);
    REQUIRE(f.memory.view.proc(1).held[0] == 2);
    REQUIRE(f.flags(11, 0) == kDeath);
    REQUIRE(f.state(2) == static_cast<uint32_t>(OfdState::free));
    REQUIRE(count(*bell) == 2); // for what others hold, and for what nobody does
    f.segment->members.clear();
    f.reap(1);
    REQUIRE(f.flags(10, 0) == kDeath);
}

TEST_CASE("threads of the dead give up their records; their marks show where they died") {
    Fixture f;
    for (unsigned i : {1, 2}) {
        f.memory.view.thread(i).state = i; // of process i - 1
        f.memory.view.thread(i).busy[0] = 4096;
    }
    f.segment->members.push_back({nullptr, 1});
    f.reap(0);
    REQUIRE(f.memory.view.thread(1).state == 0);
    REQUIRE(f.memory.view.thread(1).busy[0] == 4096);
    REQUIRE(f.memory.view.header().deaths == 1);
    REQUIRE(f.memory.view.thread(2).state == 2);
    REQUIRE(f.memory.view.thread(2).busy[0] == 4096);
}

TEST_CASE("marking wakes who is armed, and writes only to who sleeps") {
    Fixture f;
    auto asleep = f.bell(), awake = f.bell(), unarmed = f.bell();
    const int a = f.link->give_bell(1, 0, asleep, nullptr), b = f.link->give_bell(1, 0, awake, nullptr),
              c = f.link->give_bell(1, 0, unarmed, nullptr);
    REQUIRE(a > 0);
    REQUIRE(b > a);
    REQUIRE(c > b);
    f.slot(4095).side[1].control.rx_arm = uint64_t{1} << a | 1;                 // 0 is no doorbell
    f.slot(4095).side[1].control.tx_arm = uint64_t{1} << b | uint64_t{1} << 63; // nor is 63
    f.slot(4095).side[0].control.rx_arm = uint64_t{1} << c;                     // the dead side's own
    f.link->header(1).side[1].sleep_mask = uint64_t{1} << a | uint64_t{1} << c | 1;
    mark_and_ring(*f.link, 4095, 0, kFlagClosed);
    REQUIRE(f.flags(4095, 0) == kFlagClosed);
    REQUIRE(f.slot(4095).side[1].control.rx_arm == 0);
    REQUIRE(f.slot(4095).side[1].control.tx_arm == 0);
    REQUIRE(f.slot(4095).side[0].control.rx_arm == uint64_t{1} << c);
    for (const int id : {a, b}) {
        REQUIRE(f.link->view(0).ready_summary(1, static_cast<unsigned>(id)) == uint64_t{1} << 63);
        REQUIRE(f.link->view(0).ready_word(1, static_cast<unsigned>(id), 63) == uint64_t{1} << 63);
    }
    REQUIRE(f.link->view(0).ready_summary(1, static_cast<unsigned>(c)) == 0);
    REQUIRE(count(*asleep) == 1);
    REQUIRE(count(*awake) == 0);
    REQUIRE(count(*unarmed) == 0);
}

TEST_CASE("an id goes to its next owner clean") {
    Fixture f;
    auto first = f.bell(), second = f.bell();
    const auto id = static_cast<unsigned>(f.link->give_bell(0, 7, first, nullptr));
    REQUIRE(id == 7);
    f.link->header(0).side[0].sleep_mask = uint64_t{1} << id;
    f.link->view(0).ready_summary(0, id) = 1;
    f.link->view(0).ready_word(0, id, 0) = 5;
    const auto generation = f.link->header(0).bell_generation[0][id].load();
    REQUIRE(f.link->give_bell(0, id, second, nullptr) == -EBUSY);
    REQUIRE(f.link->take_bell(0, id, nullptr));
    REQUIRE_FALSE(f.link->take_bell(0, id, nullptr));
    REQUIRE(f.link->header(0).side[0].sleep_mask == 0);
    int given = 0;
    for (unsigned i = kFirstDoorbell; i <= kLastDoorbell && given != static_cast<int>(id); ++i) {
        given = f.link->give_bell(0, 0, second, nullptr);
    }
    REQUIRE(given == static_cast<int>(id));
    REQUIRE(f.link->header(0).bell_generation[0][id] == generation + 1);
    REQUIRE(f.link->view(0).ready_summary(0, id) == 0);
    REQUIRE(f.link->view(0).ready_word(0, id, 0) == 0);
    for (const unsigned bad : {63u, 64u, 4000u}) {
        REQUIRE(f.link->give_bell(0, bad, first, nullptr) == -EINVAL);
    }
}

TEST_CASE("ringing never blocks and never fails on a full counter") {
    Fixture f;
    auto bell = f.bell();
    ring(*bell);
    ring(*bell);
    REQUIRE(count(*bell) == 2);
    fcntl(bell->fd.get(), F_SETFL, O_RDWR); // blocking
    const uint64_t full = UINT64_MAX - 1;
    REQUIRE(write(bell->fd.get(), &full, sizeof full) == sizeof full);
    ring(*bell);
    ring(*bell);
    REQUIRE(count(*bell) >= full);
}

TEST_CASE("eventfds are told from everything else") {
    UniqueFd a(eventfd(0, 0)), b(eventfd(0, 0)), copy(dup(a.get())), pipe_like(memfd_create("eventfd", 0));
    REQUIRE(eventfd_id(a.get()));
    REQUIRE(eventfd_id(a.get()) == eventfd_id(copy.get()));
    REQUIRE(eventfd_id(a.get()) != eventfd_id(b.get()));
    REQUIRE_FALSE(eventfd_id(pipe_like.get()));
    REQUIRE_FALSE(eventfd_id(-1));
}

TEST_CASE("holes are skipped, and looking at a table does not fill it") {
    TestSegment memory;
    memory.open(150'000, 77, 1, 0);
    auto segment = Segment::open(UniqueFd(dup(memory.fd.get())));
    struct stat before, after;
    fstat(memory.fd.get(), &before);
    segment->members.push_back({nullptr, 0});
    REQUIRE(segment->open_ofds().size() == 1);
    REQUIRE(segment->held_ends().size() == 1);
    segment->members.clear();
    fstat(memory.fd.get(), &after);
    REQUIRE(after.st_blocks == before.st_blocks);
    DataExtents extents(memory.fd.get(), 0, kSegmentBytes);
    REQUIRE(extents.contains(kSegOfdOffset + 150'000 * sizeof(Ofd), 8));
    REQUIRE_FALSE(extents.contains(kSegOfdOffset + 50'000 * sizeof(Ofd), 8));
}

TEST_CASE("links of a listener get ports far apart, in the kernel's range") {
    std::vector<uint32_t> bases;
    for (uint32_t place = 0; place < 5; ++place) {
        bases.push_back(port_base(place, 7));
        REQUIRE(bases.back() > 0);
        REQUIRE(bases.back() + kLinkSlots <= 65536);
    }
    std::sort(bases.begin(), bases.end());
    for (size_t i = 1; i < bases.size(); ++i) {
        REQUIRE(bases[i] - bases[i - 1] > 1000);
    }
}

TEST_CASE("a directory takes as many listeners as it has entries, and finds none that has gone") {
    DirectoryFile file(1);
    void *p = mmap(nullptr, sizeof(Directory), PROT_READ, MAP_SHARED, file.fd(), 0);
    REQUIRE(p != MAP_FAILED);
    const auto *directory = static_cast<const Directory *>(p);
    std::vector<int> places;
    ListenAddress address;
    for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
        address.port = static_cast<uint16_t>(1000 + i % 1500);
        places.push_back(file.insert(i + 1, address, 7, 1, 0));
        REQUIRE(places.back() >= 0);
    }
    REQUIRE(file.insert(9999, address, 7, 1, 0) == -1);
    REQUIRE(test::find_entry(directory, 1499) != nullptr);
    for (const int place : places) {
        file.remove(place);
    }
    REQUIRE(test::find_entry(directory, 1499) == nullptr);
    address.port = 4321;
    (void)file.insert(5, address, 7, 1, 0);
    REQUIRE(test::find_entry(directory, 4321) != nullptr);
    unsigned used = 0;
    for (const DirectoryEntry &entry : directory->entry) {
        used += entry.used;
    }
    REQUIRE(used < 10); // chains are shortened again
    munmap(p, sizeof(Directory));
}
