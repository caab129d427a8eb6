// Who has the monitor hold how much, and what is refused; a request whose descriptors found no room is not
// the client's fault.
#include "libsd/layout/link_layout.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/records/accounts.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <grp.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace sd;
using namespace sd::monitor;
using namespace sd::test;

namespace {
constexpr ResourceLimits kFew{3, 2, 2, 2, 2, 2}, kNone{};
}

TEST_CASE("a user has no more than its limit, and gets back what ends") {
    Accounts accounts(kFew, kNone, 100, true);
    std::string over;
    const Payer user = accounts.payer(1000, "/");
    Charge first = accounts.charge(user, Resource::links, 1, &over),
           second = accounts.charge(user, Resource::links, 1, &over);
    REQUIRE(first);
    REQUIRE(second);
    REQUIRE_FALSE(accounts.charge(user, Resource::links, 1, &over));
    REQUIRE_THAT(over, Catch::Contains("user 1000") && Catch::Contains("links"));
    REQUIRE(accounts.charge(accounts.payer(1001, "/"), Resource::links, 1, &over));
    REQUIRE(accounts.charge(accounts.payer(0, "/"), Resource::links, 1, &over));
    first = Charge();
    REQUIRE(accounts.charge(accounts.payer(1000, "/"), Resource::links, 1, &over));
    second = std::move(first);
    REQUIRE(user.user->count[static_cast<unsigned>(Resource::links)] == 0);
    REQUIRE(user.user->descriptors == 0);
}

TEST_CASE("what children have of their parents' links is bounded for each user and group") {
    Accounts accounts(kNone, kNone, 100, true);
    const Payer user = accounts.payer(1000, "/a"), other = accounts.payer(1001, "/a"),
                third = accounts.payer(1001, "/b");
    Copies most(user, Copies::kMost - 10);
    CHECK(Copies::has_room(user, 10));
    CHECK_FALSE(Copies::has_room(user, 11));
    CHECK_FALSE(Copies::has_room(other, 11)); // of the same group
    CHECK(Copies::has_room(third, Copies::kMost));
    Copies few(other, 5);
    CHECK_FALSE(Copies::has_room(user, 6));
    most = std::move(few);
    few = Copies();
    CHECK(Copies::has_room(user, Copies::kMost - 5));
    CHECK_FALSE(Copies::has_room(user, Copies::kMost - 4));
}

TEST_CASE("the roots of two containers, and many users of one, pay for their control group") {
    Accounts accounts(kNone, kFew, 100, true);
    std::string over;
    std::vector<Charge> held;
    for (const uid_t uid : {0u, 100000u}) {
        held.push_back(accounts.charge(accounts.payer(uid, "/docker/a"), Resource::bells, 1, &over));
        REQUIRE(held.back());
    }
    REQUIRE_FALSE(accounts.charge(accounts.payer(100001, "/docker/a"), Resource::bells, 1, &over));
    REQUIRE_FALSE(accounts.charge(accounts.payer(0, "/docker/a"), Resource::bells, 1, &over));
    REQUIRE(accounts.charge(accounts.payer(0, "/docker/b"), Resource::bells, 1, &over));
}

TEST_CASE("whoever takes all that is to be had leaves as much for others") {
    if (geteuid() != 0) {
        return; // one user's monitor
    }
    Accounts accounts(kNone, kNone, 1000, true);
    std::string over;
    std::vector<Charge> held;
    const auto take_all = [&](uid_t uid) {
        unsigned n = 0;
        for (;; ++n) {
            held.push_back(accounts.charge(accounts.payer(uid, "/"), Resource::clients, 0, &over));
            if (!held.back()) {
                return n;
            }
        }
    };
    REQUIRE(take_all(1000) == 500);
    REQUIRE(take_all(1001) == 250);
    REQUIRE(take_all(1002) == 125);
    REQUIRE(accounts.charge(accounts.payer(0, "/"), Resource::clients, 0, &over));
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

namespace {

/// A monitor that other users may speak to, with four channels for each.
struct FourClients : MonitorProcess {
    FourClients() {
        const std::string file = directory + "/monitor.toml";
        FILE *config = fopen(file.c_str(), "w");
        fputs("[limits]\nclients_per_user = 4\n", config);
        fclose(config);
        stop(SIGTERM);
        chmod(directory.c_str(), 0755);
        start({"--config", file});
    }
};

} // namespace

TEST_CASE("channels that say nothing make way for their user's others") {
    if (geteuid() != 0) {
        return;
    }
    FourClients monitor;
    const pid_t child = fork();
    if (child == 0) {
        if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) {
            _exit(1);
        }
        Channel kept(monitor), speaks(monitor);
        wire::Header stay{};
        stay.magic = wire::kMagic;
        stay.version = wire::kVersion;
        stay.op = static_cast<uint16_t>(wire::Op::stay);
        if (!kept.raw(&stay, sizeof stay) || speaks.ask(wire::Op::presence).header.status != 0) {
            _exit(2);
        }
        std::vector<Channel> silent;
        for (int i = 0; i < 6; ++i) {
            silent.emplace_back(monitor);
        }
        try {
            const TestProcess process(monitor);
            const TestProcess second(monitor); // the last silent one goes
            for (Channel &each : silent) {
                if (!each.answer().closed) {
                    _exit(3);
                }
            }
            if (kept.ask(wire::Op::presence).header.status != 0 ||
                !Channel(monitor).ask(wire::Op::presence).closed) {
                _exit(4); // or one that has said something made way
            }
        } catch (const std::exception &) {
            _exit(5);
        }
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
}

TEST_CASE("channels that lie in a queue are their asker's until they are closed there") {
    if (geteuid() != 0) {
        SKIP_TEST("only root can become another user");
    }
    FourClients monitor;
    const pid_t child = fork();
    if (child == 0) {
        if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) {
            _exit(1);
        }
        Channel asker(monitor);
        int ends[2];
        if (asker.ask(wire::Op::presence).header.status != 0 ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
            _exit(2);
        }
        Channel queue{UniqueFd(ends[0])};
        const UniqueFd there(ends[1]);
        const auto enter = [&] { // how many of 8 get a channel; none of them is taken out of the queue before
            for (int i = 0; i < 8; ++i) {
                if (asker.ask(wire::Op::enter, "", 0, {there.get()}).header.status != 0) {
                    _exit(3);
                }
            }
            std::vector<UniqueFd> made;
            for (int i = 0; i < 8; ++i) {
                for (UniqueFd &fd : queue.answer().fds) {
                    made.push_back(std::move(fd));
                }
            }
            return made;
        };
        if (enter().size() != 3) {
            _exit(4);
        }
        // Those were closed, which the monitor hears sooner or later.
        bool again = false;
        if (!eventually([&] { return again = again || enter().size() == 3; })) {
            _exit(5);
        }
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
}

namespace {

/// A link that says of itself that these processes have it.
UniqueFd link_naming(const std::vector<pid_t> &holders) {
    UniqueFd fd = make_memfd("link", kLinkBytes);
    seal(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    const Mapping map(fd.get(), kLinkMapped);
    LinkView view;
    view.base = map.base();
    view.header().version = kLayoutVersion;
    view.header().slots = kLinkSlots;
    view.header().magic = kLinkMagic;
    for (size_t i = 0; i < holders.size() && i < kLinkHolders; ++i) {
        view.header().holder[1][i].start_time = start_time(holders[i]);
        view.header().holder[1][i].pid = static_cast<uint32_t>(holders[i]);
    }
    return fd;
}

} // namespace

namespace {

/// A monitor with few doorbells for each user, processes that do nothing, and one of another user that does
/// what it is told and lives on.
struct Namer {
    MonitorProcess monitor;
    std::vector<pid_t> others;
    pid_t child = -1;

    template <typename Fn> explicit Namer(Fn fn) {
        const std::string file = monitor.directory + "/monitor.toml";
        FILE *config = fopen(file.c_str(), "w");
        fputs("[limits]\nbells_per_user = 2\n", config);
        fclose(config);
        monitor.stop(SIGTERM);
        chmod(monitor.directory.c_str(), 0755);
        monitor.start({"--config", file});
        for (int i = 0; i < 10; ++i) {
            others.push_back(fork());
            if (others.back() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) {
                    pause();
                }
            }
        }
        child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) {
                _exit(1);
            }
            fn(monitor, others);
            for (;;) {
                pause();
            }
        }
    }
    ~Namer() {
        others.push_back(child);
        for (const pid_t each : others) {
            kill(each, SIGKILL);
            waitpid(each, nullptr, 0);
        }
    }
    Namer(const Namer &) = delete;
    Namer &operator=(const Namer &) = delete;

    /// Processes that the monitor watches.
    unsigned watched() const {
        unsigned n = 0;
        for (const std::string &path : descriptor_paths(monitor.pid)) {
            n += path.find("pidfd") != std::string::npos;
        }
        return n;
    }
};

} // namespace

TEST_CASE("who brings a link back pays for waiting for those whom it names") {
    if (geteuid() != 0) {
        return;
    }
    const Namer namer([](const MonitorProcess &monitor, const std::vector<pid_t> &others) {
        static TestProcess process(monitor);
        const UniqueFd link = link_naming(others);
        process.channel.ask(wire::Op::adopt_link, wire::Adopt{7, 0, {}}, {link.get()});
    });
    REQUIRE(eventually([&] { return namer.watched() >= 3; })); // the child, and two of those it names
    usleep(20'000);
    CHECK(namer.watched() == 3);
}

TEST_CASE("who shows a segment pays for watching those whom it names") {
    if (geteuid() != 0) {
        return;
    }
    const Namer namer([](const MonitorProcess &monitor, const std::vector<pid_t> &others) {
        static TestProcess process;
        for (unsigned i = 0; i < others.size(); ++i) {
            process.segment.view.proc(i + 1).pid = static_cast<uint32_t>(others[i]);
            process.segment.view.proc(i + 1).state = 1;
        }
        process.segment.view.proc(0).pid = static_cast<uint32_t>(getpid());
        process.segment.view.header().proc_high = static_cast<uint32_t>(others.size()) + 1;
        process.hello(monitor);
    });
    REQUIRE(eventually([&] { return namer.watched() >= 3; }));
    usleep(20'000);
    CHECK(namer.watched() == 3);
}

TEST_CASE("a user with many channels does not keep others waiting until each has been heard") {
    if (geteuid() != 0) {
        SKIP_TEST("only root can become another user");
    }
    constexpr int kMany = 60;
    MonitorProcess monitor;
    chmod(monitor.directory.c_str(), 0711);
    TestProcess honest(monitor);
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char c;
        if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) {
            _exit(1);
        }
        std::vector<TestProcess> many(kMany); // each with a segment of its own
        for (TestProcess &each : many) {
            each.hello(monitor);
        }
        bool good = write(ends[1], "x", 1) == 1 && read(ends[1], &c, 1) == 1;
        wire::Packet packet{};
        packet.header = {
            wire::kMagic, wire::kVersion, static_cast<uint16_t>(wire::Op::status), 1, 0, 0, 0, 0};
        for (TestProcess &each : many) {
            good = each.channel.raw(&packet, sizeof packet.header) && good;
        }
        good = write(ends[1], "x", 1) == 1 && read(ends[1], &c, 1) == 1 && good;
        unsigned char heard = 0;
        for (TestProcess &each : many) {
            pollfd p{each.channel.fd(), POLLIN, 0};
            heard += poll(&p, 1, 0) == 1;
        }
        _exit(good && write(ends[1], &heard, 1) == 1 ? 0 : 1);
    }
    const UniqueFd channel(ends[0]);
    close(ends[1]);
    unsigned char heard = kMany;
    REQUIRE(read(channel.get(), &heard, 1) == 1);
    kill(monitor.pid, SIGSTOP); // what they ask is all there before anything is answered
    REQUIRE(write(channel.get(), "x", 1) == 1);
    REQUIRE(read(channel.get(), &heard, 1) == 1);
    wire::Packet packet{};
    packet.header = {
        wire::kMagic, wire::kVersion, static_cast<uint16_t>(wire::Op::log), 1, 0, 0, sizeof(wire::Log), 0};
    REQUIRE(honest.channel.raw(&packet, sizeof packet.header + sizeof(wire::Log)));
    kill(monitor.pid, SIGCONT);
    REQUIRE_FALSE(honest.channel.answer().closed);
    kill(monitor.pid, SIGSTOP);
    REQUIRE(write(channel.get(), "x", 1) == 1);
    REQUIRE(read(channel.get(), &heard, 1) == 1);
    kill(monitor.pid, SIGCONT);
    REQUIRE(heard < kMany);
    waitpid(pid, nullptr, 0);
}
