// Pools of connections at the monitor: who is told of one, and how it ends.
#include "libsd/layout/pool_layout.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/stranger.hpp"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

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

constexpr uint32_t kSlot = 70;

struct Offered {
    uint64_t link = 0, name = 0;
};
/// A new connection's client, and the pool that it names to the other side.
Offered connect_and_offer(TestProcess &process, uint32_t listener) {
    const PoolMemory m;
    const Answer made = process.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
    const uint64_t link = made.as<wire::ConnectReply>().link_id;
    return {link, offer(process, link, 0, kSlot, m).as<wire::PoolReply>().pool};
}

/// A server's end goes to somebody without libsd, and this test plays the sd-bridge that carries it, as a
/// service manager starts it.
class Carried {
  public:
    Carried() {
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, path_.c_str());
        REQUIRE(bind(bridges_.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
        REQUIRE(listen(bridges_.get(), 8) == 0);
        pair.restart_monitor({"--bridge-socket", path_});
    }
    ~Carried() { unlink(path_.c_str()); }
    Carried(const Carried &) = delete;
    Carried &operator=(const Carried &) = delete;

    /// Status of the bridge's request for the pool; descriptors that came with it.
    std::pair<int, size_t> bridge_asks_for(const Offered &pool) {
        REQUIRE(pair.server.channel.ask(Op::links, wire::Links{pair.listener, 0}).header.status == 0);
        const KernelConnection passed(TestListener{});
        pair.server.segment.open(5, pool.link, kSlot, 1);
        wire::Pass body{};
        body.handoff.link_id = pool.link;
        body.handoff.ofd_index = 5;
        body.handoff.slot = kSlot;
        body.handoff.side = 1;
        body.start = static_cast<uint32_t>(wire::BridgeStart::at_once);
        REQUIRE(pair.server.channel.ask(Op::pass, body, {passed.client.get(), passed.server.get()}).header.status ==
                0);
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        const UniqueFd result(ends[0]);
        const pid_t child = in_child([&] { be_bridge(pool, ends[1]); });
        close(ends[1]);
        std::pair<int, size_t> got{};
        const ssize_t n = read(result.get(), &got, sizeof got);
        kill_child(child);
        REQUIRE(n == sizeof got);
        return got;
    }

    Pair pair;

  private:
    /// Gives up what it was started with, claims the connection, and asks.
    void be_bridge(const Offered &pool, int result) {
        Channel channel(UniqueFd(accept4(bridges_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
        channel.answer(); // who it is to become
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        const __user_cap_data_struct none[2]{};
        syscall(SYS_capset, &header, none);
        channel.raw("", 1);
        const Answer order = channel.answer();
        TestProcess bridge(pair.monitor);
        if (order.fds.size() != 2 ||
            bridge.channel.ask(Op::claim, "", 0, {order.fds[0].get()}).header.status != 0) {
            _exit(1);
        }
        const Answer a = fetch(bridge, pool.link, 0, pool.name);
        const std::pair<int, size_t> got{a.header.status, a.fds.size()};
        [[maybe_unused]] ssize_t n = write(result, &got, sizeof got);
    }

    std::string path_{pair.monitor.directory + "/bridges.sock"};
    UniqueFd bridges_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
};

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

TEST_CASE("a bridge reads the pools of its own domain, though it has fewer rights") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root, whose capabilities a bridge does not have");
    }
    Carried carried;
    const Offered pool = connect_and_offer(carried.pair.client, carried.pair.listener);
    CHECK(carried.bridge_asks_for(pool) == std::pair<int, size_t>(0, 2));
}

TEST_CASE("a bridge is not shown the pools of another domain's processes") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root to become another user");
    }
    Carried carried;
    chmod(carried.pair.monitor.directory.c_str(), 0755);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const UniqueFd told(ends[0]), tell(ends[1]);
    const pid_t stranger = in_child([&] {
        if (setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(1);
        }
        auto *client = new TestProcess(carried.pair.monitor); // for as long as the process lives
        const Offered pool = connect_and_offer(*client, carried.pair.listener);
        [[maybe_unused]] ssize_t n = write(tell.get(), &pool, sizeof pool);
    });
    Offered pool;
    REQUIRE(read(told.get(), &pool, sizeof pool) == sizeof pool);
    REQUIRE(pool.name != 0);
    CHECK(carried.bridge_asks_for(pool) == std::pair<int, size_t>(-EXDEV, 0));
    kill_child(stranger);
}

TEST_CASE("a pool is not shown to a process that may not look into its owner, though both are of one user") {
    if (!is_root()) {
        SKIP_TEST("needs root to become other users");
    }
    MonitorProcess monitor;
    const TestListener socket;
    struct Said {
        uint32_t listener;
        uint64_t link, pool;
    };
    auto *const said = static_cast<Said *>(
        mmap(nullptr, sizeof(Said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(said != MAP_FAILED);
    const auto listens = [&](TestProcess &p) -> int64_t {
        const Answer a = p.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
        said->listener = a.as<wire::ListenReply>().listener_id;
        return a.header.status;
    };
    const auto offers = [&](TestProcess &p) -> int64_t {
        const Answer given = p.channel.ask(Op::links, wire::Links{said->listener, 0});
        if (given.header.status != 0 || given.as<wire::LinksReply>().count != 1) {
            // Any number but 0; this one says more.
            return given.header.status - 1000 * static_cast<int64_t>(given.fds.size() + 1);
        }
        const Answer a = offer(p, said->link, 1, kSlot, PoolMemory());
        said->pool = a.as<wire::PoolReply>().pool;
        return a.header.status;
    };
    const auto connects = [&](TestProcess &p) -> int64_t {
        const Answer a = p.channel.ask(Op::connect, wire::Connect{said->listener, wire::kLoopbackAddresses});
        said->link = a.as<wire::ConnectReply>().link_id;
        return a.header.status;
    };
    const auto asks = [&](TestProcess &p) -> int64_t {
        const Answer a = fetch(p, said->link, 1, said->pool);
        return a.fds.empty() ? a.header.status : static_cast<int64_t>(a.fds.size());
    };
    const bool owner_is_open = GENERATE(true, false), other_is_open = GENERATE(true, false);
    const Stranger owner(monitor, kOne, {listens, offers}, owner_is_open);
    const Stranger other(monitor, kOne, {connects, asks}, other_is_open);
    REQUIRE(owner.does(0) == 0);
    REQUIRE(other.does(0) == 0);
    REQUIRE(owner.does(1) == 0);
    CHECK(other.does(1) == (owner_is_open && other_is_open ? 2 : -EXDEV));
    munmap(said, sizeof(Said));
}
