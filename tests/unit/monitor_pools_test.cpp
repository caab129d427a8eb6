// Pools of connections at the monitor: who is told of one, and how it ends.
#include "libsd/layout/pool_layout.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <sys/mman.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

UniqueFd memory(size_t bytes, int seals) {
    UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return fd;
}

struct PoolMemory {
    UniqueFd bytes{memory(65536, kPoolSeals)}, ledger{memory(sizeof(PoolLedger), kLedgerSeals)};
};

Answer offer(TestProcess &process, uint64_t link, uint32_t side, uint32_t slot, const PoolMemory &m,
             uint64_t name = 0) {
    return process.channel.ask(Op::pool, wire::Pool{link, side, slot, name}, {m.bytes.get(), m.ledger.get()});
}
Answer fetch(TestProcess &process, uint64_t link, uint32_t side, uint64_t name) {
    return process.channel.ask(Op::peer_pool, wire::PoolRef{link, side, 0, name});
}

} // namespace

TEST_CASE("a pool is given to the other side of its link, and to nobody else") {
    Pair pair;
    pair.connect();
    pair.server_attach();
    const PoolMemory m;
    const Answer made = offer(pair.client, pair.link, 0, 5, m);
    REQUIRE(made.header.status == 0);
    const uint64_t name = made.as<wire::PoolReply>().pool;
    const Answer got = fetch(pair.server, pair.link, 0, name);
    REQUIRE(got.header.status == 0);
    REQUIRE(got.fds.size() == 2);
    CHECK(monitor::file_id(got.fds[0].get()) == monitor::file_id(m.bytes.get()));
    CHECK(monitor::file_id(got.fds[1].get()) == monitor::file_id(m.ledger.get()));

    CHECK(fetch(pair.client, pair.link, 0, name).header.status == -ENOENT);
    CHECK(fetch(pair.server, pair.link, 1, name).header.status == -ENOENT);
    CHECK(fetch(pair.server, pair.link, 0, name + 1).header.status == -ENOENT);
    CHECK(fetch(pair.server, pair.link + 1, 0, name).header.status == -ENOENT);
    TestProcess stranger(pair.monitor);
    CHECK(fetch(stranger, pair.link, 0, name).header.status == -ENOENT);
}

TEST_CASE("a forked child is what its parent is, whoever asked about it before it came") {
    Pair pair;
    pair.connect();
    pair.server_attach();
    const PoolMemory m;
    const uint64_t name = offer(pair.client, pair.link, 0, 5, m).as<wire::PoolReply>().pool;
    Answer forked = pair.server.channel.ask(Op::fork, wire::Fork{});
    REQUIRE(forked.header.status == 0);
    Channel inherited(std::move(forked.fds.at(0)));
    // Who may ring is asked of everybody on the other side, the announced child included.
    const UniqueFd waiter = bell();
    REQUIRE(pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {waiter.get()}).header.status == 0);
    const pid_t child = in_child([&] {
        const wire::Child body{static_cast<uint32_t>(getpid()), 0};
        if (inherited.ask(Op::child, body).header.status != 0 ||
            inherited.ask(Op::peer_pool, wire::PoolRef{pair.link, 0, 0, name}).header.status != 0) {
            _exit(1);
        }
    });
    kill_child(child);
}

TEST_CASE("a pool that its owner's peers could be hurt by is refused") {
    Pair pair;
    pair.connect();
    const PoolMemory good;
    PoolMemory writable, growing, small, wrong;
    writable.bytes = memory(65536, kLedgerSeals);
    growing.bytes = memory(65536, kPoolSeals & ~F_SEAL_GROW);
    small.ledger = memory(4096, kLedgerSeals);
    wrong.bytes = bell();
    for (const PoolMemory *bad : {&writable, &growing, &small, &wrong}) {
        CHECK(offer(pair.client, pair.link, 0, 5, *bad).header.status == -EINVAL);
    }
    CHECK(offer(pair.client, pair.link, 1, 5, good).header.status == -ENOENT); // not its side
    CHECK(offer(pair.client, pair.link, 0, kLinkSlots, good).header.status == -ENOENT);
}

TEST_CASE("a pool ends when one of both sides says so, or its connection has ended") {
    Pair pair;
    const UniqueFd memfd = pair.connect();
    pair.server_attach();
    const Mapping map(memfd.get(), kLinkMapped);
    const LinkView view{map.base()};
    const PoolMemory m;
    const uint64_t first = offer(pair.client, pair.link, 0, 5, m).as<wire::PoolReply>().pool;
    REQUIRE(pair.server.channel.ask(Op::end_pool, wire::PoolRef{pair.link, 0, 0, first}).header.status == 0);
    CHECK(fetch(pair.server, pair.link, 0, first).header.status == -ENOENT);

    const uint64_t second = offer(pair.client, pair.link, 0, 5, m).as<wire::PoolReply>().pool;
    CHECK(second != first);
    for (auto &side : view.slot(5).side) {
        side.control.flags = kFlagReleased;
    }
    const uint64_t third = offer(pair.client, pair.link, 0, 6, m).as<wire::PoolReply>().pool;
    CHECK(fetch(pair.server, pair.link, 0, second).header.status == -ENOENT);
    CHECK(fetch(pair.server, pair.link, 0, third).header.status == 0);
    view.slot(6).identity.arrival = 77; // another connection
    offer(pair.client, pair.link, 0, 7, m);
    CHECK(fetch(pair.server, pair.link, 0, third).header.status == -ENOENT);
}

TEST_CASE("a pool is brought back to another monitor under its name") {
    Pair pair;
    pair.connect();
    pair.server_attach();
    const PoolMemory m;
    CHECK(offer(pair.client, pair.link, 0, 5, m, 4711).as<wire::PoolReply>().pool == 4711);
    CHECK(fetch(pair.server, pair.link, 0, 4711).header.status == 0);
    CHECK(offer(pair.client, pair.link, 0, 6, m, 4711).header.status == -EEXIST);
}
