// Who has the monitor hold how much, and what is refused; a request whose descriptors found no room is not
// the client's fault.
#include "monitor/records/accounts.hpp"
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <sys/resource.h>

using namespace sd;
using namespace sd::monitor;
using namespace sd::test;

namespace {
constexpr HoldingLimits kFew{3, 2, 2, 2, 2, 2}, kNone{};
}

TEST_CASE("a user has no more than its limit, and gets back what ends") {
    Accounts accounts(kFew, kNone, 100);
    std::string over;
    const Payer user = accounts.payer(1000, "/");
    Charge first = accounts.charge(user, Holding::links, 1, &over),
           second = accounts.charge(user, Holding::links, 1, &over);
    REQUIRE(first);
    REQUIRE(second);
    REQUIRE_FALSE(accounts.charge(user, Holding::links, 1, &over));
    REQUIRE_THAT(over, Catch::Contains("user 1000") && Catch::Contains("links"));
    REQUIRE(accounts.charge(accounts.payer(1001, "/"), Holding::links, 1, &over));
    REQUIRE(accounts.charge(accounts.payer(0, "/"), Holding::links, 1, &over));
    first = Charge();
    REQUIRE(accounts.charge(accounts.payer(1000, "/"), Holding::links, 1, &over));
    second = std::move(first);
    REQUIRE(user.user->count[static_cast<unsigned>(Holding::links)] == 0);
    REQUIRE(user.user->descriptors == 0);
}

TEST_CASE("the roots of two containers, and many users of one, pay for their control group") {
    Accounts accounts(kNone, kFew, 100);
    std::string over;
    std::vector<Charge> held;
    for (const uid_t uid : {0u, 100000u}) {
        held.push_back(accounts.charge(accounts.payer(uid, "/docker/a"), Holding::bells, 1, &over));
        REQUIRE(held.back());
    }
    REQUIRE_FALSE(accounts.charge(accounts.payer(100001, "/docker/a"), Holding::bells, 1, &over));
    REQUIRE_FALSE(accounts.charge(accounts.payer(0, "/docker/a"), Holding::bells, 1, &over));
    REQUIRE(accounts.charge(accounts.payer(0, "/docker/b"), Holding::bells, 1, &over));
}

TEST_CASE("whoever takes all that is to be had leaves as much for others") {
    if (geteuid() != 0) {
        return; // one user's monitor
    }
    Accounts accounts(kNone, kNone, 1000);
    std::string over;
    std::vector<Charge> held;
    const auto take_all = [&](uid_t uid) {
        unsigned n = 0;
        for (;; ++n) {
            held.push_back(accounts.charge(accounts.payer(uid, "/"), Holding::clients, 0, &over));
            if (!held.back()) {
                return n;
            }
        }
    };
    REQUIRE(take_all(1000) == 500);
    REQUIRE(take_all(1001) == 250);
    REQUIRE(take_all(1002) == 125);
    REQUIRE(accounts.charge(accounts.payer(0, "/"), Holding::clients, 0, &over));
}

TEST_CASE("the part of a control group's path that names a container") {
    REQUIRE(group_part("/") == "/");
    REQUIRE(group_part("/docker/0123") == "/docker/0123");
    REQUIRE(group_part("/docker/0123/x/y") == "/docker/0123/x");
    REQUIRE(group_part("/system.slice/a.service/sub/sub") == "/system.slice/a.service");
    REQUIRE(group_part("/user.slice/user-1.slice/session-2.scope/x") == "/user.slice/user-1.slice");
    REQUIRE(group_of(getpid(), -1) == "?");
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    REQUIRE(group_of(getpid(), pidfd.get()) != "?");
}

TEST_CASE("a request whose descriptors the monitor has no room for is refused, and the channel stays") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    Channel other(monitor);
    REQUIRE(other.ask(wire::Op::presence).header.status == 0);
    rlimit few{};
    REQUIRE(prlimit(monitor.pid, RLIMIT_NOFILE, nullptr, &few) == 0);
    few.rlim_cur = 3; // below what it has open: nothing more
    REQUIRE(prlimit(monitor.pid, RLIMIT_NOFILE, &few, nullptr) == 0);
    TestListener listener;
    const Answer refused = process.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {listener.fd.get()});
    REQUIRE_FALSE(refused.closed);
    REQUIRE(refused.header.status == -EMFILE);
    REQUIRE(refused.header.cause == static_cast<uint16_t>(Cause::limit));
    few.rlim_cur = few.rlim_max;
    REQUIRE(prlimit(monitor.pid, RLIMIT_NOFILE, &few, nullptr) == 0);
    REQUIRE(process.channel.ask(wire::Op::listen, wire::Listen{16, 0}, {listener.fd.get()}).header.status == 0);
}
