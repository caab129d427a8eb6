// Which pages of a memory file have memory, found without the lock that a client may keep.
#include "monitor/kernel/shared_memory.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/held_call.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <set>
#include <sys/stat.h>

using namespace sd;
using namespace sd::monitor;
using namespace sd::test;
using wire::Op;

namespace {

constexpr size_t kPages = 5000;

using Find = std::function<bool(int fd, size_t first, size_t last, const PagesFound &found)>;

struct Way {
    const char *name;
    Find find;
};
const Way kWays[] = {
    {"the one that is taken",
     [](int fd, size_t first, size_t last, const PagesFound &found) {
         find_pages(fd, first, last, found);
         return true;
     }},
    {"counted", find_counted_pages},
    {"resident", find_resident_pages},
    {"read", find_pages_that_say_something},
};

void write_page(int fd, size_t page) {
    REQUIRE(pwrite(fd, "x", 1, static_cast<off_t>(page * kFilePage + 1000)) == 1);
}

/// All that it finds, each once and in order.
std::set<size_t> all(const Find &find, int fd, size_t first, size_t last) {
    std::set<size_t> pages;
    size_t next = first;
    REQUIRE(find(fd, first, last, [&](size_t from, size_t to) {
        REQUIRE(from >= next);
        REQUIRE(from < to);
        REQUIRE(to <= last);
        for (next = from; next < to; ++next) {
            pages.insert(next);
        }
        return true;
    }));
    return pages;
}

/// In a write() to the file until it goes.
struct HeldFile : HeldCall {
    HeldFile(int fd, size_t at)
        : HeldCall([fd, at](void *page) {
              [[maybe_unused]] const ssize_t n = pwrite(fd, page, 8, static_cast<off_t>(at));
          }) {}
};

bool answers(const MonitorProcess &monitor) {
    Channel other(monitor);
    const timeval patience{5, 0};
    setsockopt(other.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const Answer a = other.ask(Op::presence);
    return !a.closed && a.header.status == 0;
}

} // namespace

TEST_CASE("each way finds the same pages, and fills no hole") {
    const UniqueFd file = make_memfd("pages", kPages * kFilePage);
    std::set<size_t> written;
    const auto write_one = [&](size_t page) {
        write_page(file.get(), page);
        written.insert(page);
    };
    SECTION("none") {}
    SECTION("the first and the last") {
        write_one(0);
        write_one(kPages - 1);
    }
    SECTION("here and there") {
        for (size_t page = 3; page < kPages; page += 1 + page / 7) {
            write_one(page);
        }
    }
    SECTION("each second one") {
        for (size_t page = 0; page < kPages; page += 2) {
            write_one(page);
        }
    }
    SECTION("long runs") {
        for (size_t page = 100; page < kPages; ++page) {
            if (page % 1000 < 700) {
                write_one(page);
            }
        }
    }
    SECTION("all") {
        for (size_t page = 0; page < kPages; ++page) {
            write_one(page);
        }
    }
    struct stat before, after;
    fstat(file.get(), &before);
    for (const Way &way : kWays) {
        INFO(way.name);
        if (!way.find(file.get(), 0, 1, [](size_t, size_t) { return true; })) {
            continue; // not on this kernel
        }
        CHECK(all(way.find, file.get(), 0, kPages) == written);
        const std::set<size_t> some(written.lower_bound(77), written.lower_bound(4321));
        CHECK(all(way.find, file.get(), 77, 4321) == some);
        CHECK(all(way.find, file.get(), 77, 77).empty());
        // Who has had enough is told of no more.
        size_t told = 0;
        CHECK(way.find(file.get(), 77, 4321, [&](size_t first, size_t) {
            CHECK(first == *some.begin());
            ++told;
            return false;
        }));
        CHECK(told == (some.empty() ? 0 : 1));
        const size_t from = 77 * kFilePage + 5, to = 4321 * kFilePage - 5;
        CHECK(next_data(file.get(), from, to) == (some.empty() ? to : std::max(from, *some.begin() * kFilePage)));
    }
    fstat(file.get(), &after);
    CHECK(after.st_blocks == before.st_blocks);
}

TEST_CASE("extents are as exact as what was asked for") {
    const UniqueFd file = make_memfd("pages", 100 * kFilePage);
    for (const size_t page : {3, 4, 5, 9}) {
        write_page(file.get(), page);
    }
    const DataExtents extents(file.get(), 4 * kFilePage + 8, 9 * kFilePage + 16);
    REQUIRE(extents.ranges().size() == 2);
    CHECK(extents.ranges()[0].from == 4 * kFilePage + 8);
    CHECK(extents.ranges()[0].to == 6 * kFilePage);
    CHECK(extents.ranges()[1].from == 9 * kFilePage);
    CHECK(extents.ranges()[1].to == 9 * kFilePage + 16);
}

TEST_CASE("memory whose lock somebody keeps does not stop the monitor") {
    Pair pair;
    const UniqueFd link = pair.connect();
    const Mapping map(link.get(), kLinkMapped);
    LinkView view;
    view.base = map.base();
    view.slot(70).identity.state = static_cast<uint32_t>(SlotState::syn);
    pair.client.segment.open(5, pair.link, 70, 0);
    const auto is_over = [&] {
        return pair.client.segment.view.ofd(5).state == static_cast<uint32_t>(OfdState::free) &&
               (view.slot(70).side[0].control.flags & kFlagDead) != 0;
    };
    SECTION("a segment's, at the end of its process") {
        const HeldFile held(pair.client.segment.fd.get(), kSegmentBytes - kFilePage);
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        pair.client.channel.close();
        CHECK(answers(pair.monitor));
        CHECK(eventually(is_over)); // and what it held ends all the same
    }
    SECTION("a link's, at the end of its client") {
        const HeldFile held(link.get(), kLinkBytes - kFilePage);
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        pair.client.channel.close();
        CHECK(answers(pair.monitor));
        CHECK(eventually(is_over));
    }
    SECTION("a link's, at the end of its listener") {
        const HeldFile held(link.get(), kLinkBytes - kFilePage);
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        pair.server.channel.close();
        CHECK(answers(pair.monitor));
        CHECK(eventually(
            [&] { return view.slot(70).identity.state == static_cast<uint32_t>(SlotState::refused); }));
    }
    SECTION("a segment's, when the status is asked for") {
        const HeldFile held(pair.client.segment.fd.get(), kSegmentBytes - kFilePage);
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        const timeval patience{5, 0};
        setsockopt(pair.server.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        const Answer a = pair.server.channel.ask(Op::status);
        CHECK_FALSE(a.closed);
        CHECK(a.header.status == 0);
    }
    SECTION("a segment's, when it comes") {
        TestSegment another;
        const HeldFile held(another.fd.get(), kSegmentBytes - kFilePage);
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        const timeval patience{5, 0};
        setsockopt(pair.client.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        const wire::Segment body{1, 0, 7};
        const Answer a = pair.client.channel.ask(Op::segment, body, {another.fd.get()});
        CHECK_FALSE(a.closed);
        CHECK(a.header.status == 0);
    }
}
