// What an exec hands on, as the table says that the next program brings; the table is a client's.
#include "libsd/layout/exec_table.hpp"
#include "tests/unit/monitor_pair.hpp"

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

struct TestTable {
    UniqueFd fd;
    Mapping map;
    ExecTable &table;

    TestTable(uint32_t segments, uint32_t links, uint32_t files, size_t surplus = 0)
        : fd(monitor::make_memfd("test-table", ExecTable::size_for(segments, links, files) + surplus)),
          map(fd.get(), ExecTable::size_for(segments, links, files)),
          table(*reinterpret_cast<ExecTable *>(map.base())) {
        monitor::seal(fd.get(), F_SEAL_SHRINK);
        table.magic = kExecMagic;
        table.version = kLayoutVersion;
        table.bytes = ExecTable::size_for(segments, links, files);
        table.segments = segments;
        table.links = links;
        table.room = table.files = files;
    }
    int take_over(TestProcess &process) {
        const wire::Image body{kLayoutVersion, static_cast<uint32_t>(getpid())};
        return process.channel.ask(Op::image, body, {fd.get(), process.socket.get()}).header.status;
    }
};

uint32_t state(TestProcess &process, unsigned ofd) { return process.segment.view.ofd(ofd).state; }

constexpr auto kOpen = static_cast<uint32_t>(OfdState::open);

} // namespace

TEST_CASE("what the next program took over stays, and the rest ends") {
    Pair pair;
    TestLink link(pair.connect());
    const uint64_t kept = pair.link;
    TestLink other(pair.connect());
    for (const unsigned ofd : {1u, 2u, 1000u, 200'000u}) {
        pair.client.segment.open(ofd, kept, ofd % kLinkSlots, 0);
    }
    // More records than are read at a time.
    TestTable table(1, 1, 2000, size_t{1} << 40);
    table.table.link()[0] = {-1, 0, kept};
    for (const auto &[file, ofd] : {std::pair(0u, 1u), std::pair(600u, 1000u), std::pair(1999u, 200'000u)}) {
        table.table.file()[file].kind = static_cast<uint8_t>(FileKind::stream);
        table.table.file()[file].handoff.ofd_index = ofd;
    }
    REQUIRE(table.take_over(pair.client) == 0);
    REQUIRE(eventually([&] { return state(pair.client, 2) == static_cast<uint32_t>(OfdState::free); }));
    for (const unsigned ofd : {1u, 1000u, 200'000u}) {
        REQUIRE(state(pair.client, ofd) == kOpen);
    }
    REQUIRE(eventually([&] { return other.view.header().side[0].flags == kLinkClientDead; }));
    REQUIRE(link.view.header().side[0].flags == 0);
    REQUIRE(pair.client.channel.ask(Op::drop_link, wire::LinkRef{kept, 0, 0}).header.status == 0);
}

TEST_CASE("a table that says more than a process can have is refused") {
    Pair pair;
    pair.client.segment.open(1, 1, 1, 0);
    for (const auto &[segments, links, files] :
         {std::array<uint32_t, 3>{kMaxSegments + 1, 0, 0}, {0, 4097, 0}, {0, 0, kOfds + 1}}) {
        REQUIRE(TestTable(segments, links, files).take_over(pair.client) == -EINVAL);
    }
    TestTable lies(1, 1, 1);
    lies.table.room = lies.table.files = kOfds; // of which it has one
    lies.table.bytes = ExecTable::size_for(1, 1, kOfds);
    REQUIRE(lies.take_over(pair.client) == -EINVAL);
    REQUIRE(state(pair.client, 1) == kOpen);
    REQUIRE(TestTable(kMaxSegments, 4096, 10).take_over(pair.client) == 0);
}
