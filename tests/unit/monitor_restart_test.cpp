// A monitor that comes back, and deaths that left no record of what they hit.
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <sys/un.h>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

UniqueFd bell() { return UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

/// A process that lives until the object goes, and does nothing. Links name it as a holder.
struct Sleeper {
    pid_t pid = fork();
    Sleeper() {
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                pause();
            }
        }
    }
    ~Sleeper() { stop(); }
    void stop() {
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
            pid = 0;
        }
    }
};

uint64_t start_time(pid_t pid) {
    FILE *stat = fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
    unsigned long long start = 0;
    const int n = fscanf(
        stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %llu",
        &start);
    fclose(stat);
    return n == 1 ? start : 0;
}

void hold(LinkView view, unsigned side, unsigned entry, pid_t pid) {
    view.header().holder[side][entry].start_time = start_time(pid);
    view.header().holder[side][entry].pid = static_cast<uint32_t>(pid);
}

/// A link with one accepted connection in slot 4, whose monitor has been killed and replaced.
struct Restarted {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess server{monitor}, client{monitor};
    uint64_t id = 0;
    std::unique_ptr<TestLink> link;
    UniqueFd client_bell = bell();
    uint32_t client_bell_id = 0;

    Restarted() {
        const auto listener = listen();
        Answer a = client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
        id = a.as<wire::ConnectReply>().link_id;
        link = std::make_unique<TestLink>(std::move(a.fds.at(0)));
        server.channel.ask(Op::links, wire::Links{listener, 0});
        client.segment.open(1, id, 4, 0);
        server.segment.open(1, id, 4, 1);
        link->view.slot(4).identity.state = static_cast<uint32_t>(SlotState::accepted);
        client_bell_id =
            client.channel.ask(Op::bell, wire::Bell{id, 0, 0}, {client_bell.get()}).as<wire::BellReply>().id;
    }
    uint32_t listen() {
        return server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    }
    void restart() {
        monitor.stop(SIGKILL);
        monitor.start();
    }
    Answer adopt(TestProcess &who, unsigned side) {
        return who.channel.ask(Op::adopt_link, wire::Adopt{id, side, {}}, {link->fd.get()});
    }
    uint32_t flags(unsigned side) { return link->view.slot(4).side[side].control.flags; }
};

} // namespace

TEST_CASE("after a restart both sides bring a link back and all works as before") {
    Restarted r;
    r.restart();
    r.client.hello(r.monitor);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    r.server.hello(r.monitor);
    REQUIRE(r.adopt(r.server, 1).header.status == 0);
    r.listen();
    REQUIRE(r.flags(0) == 0);
    REQUIRE(r.flags(1) == 0);

    const auto generation = r.link->view.header().bell_generation[0][r.client_bell_id].load();
    const Answer kept =
        r.client.channel.ask(Op::bell, wire::Bell{r.id, 0, r.client_bell_id}, {r.client_bell.get()});
    REQUIRE(kept.as<wire::BellReply>().id == r.client_bell_id);
    REQUIRE(kept.as<wire::BellReply>().generation == generation);
    REQUIRE(r.server.channel.ask(Op::peer_bell, wire::BellRef{r.id, 0, r.client_bell_id}).fds.size() == 1);

    r.link->view.slot(4).side[0].control.rx_arm = uint64_t{1} << r.client_bell_id;
    r.link->view.header().side[0].sleep_mask = uint64_t{1} << r.client_bell_id;
    r.server.channel.close();
    REQUIRE(rang(r.client_bell.get()));
    REQUIRE(r.flags(1) == (kFlagDead | kFlagClosed));
}

TEST_CASE("a side that died while no monitor ran is found dead") {
    Restarted r;
    Sleeper sleeper;
    hold(r.link->view, 1, 0, sleeper.pid); // the server is another process
    r.monitor.stop(SIGKILL);
    sleeper.stop();
    r.monitor.start();
    r.client.hello(r.monitor);
    REQUIRE(r.flags(1) == 0);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    REQUIRE(r.flags(1) == (kFlagDead | kFlagClosed));
    REQUIRE((r.link->view.header().side[1].flags & kLinkServerDead) != 0);
}

TEST_CASE("a side that has not come back yet is watched by its pid") {
    Restarted r;
    Sleeper sleeper;
    hold(r.link->view, 1, 0, sleeper.pid);
    r.restart();
    r.client.hello(r.monitor);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    REQUIRE(r.flags(1) == 0);
    sleeper.stop();
    REQUIRE(eventually([&] { return r.flags(1) == (kFlagDead | kFlagClosed); }));
}

TEST_CASE("who waits for a side that closes in order and ends without having come back is woken") {
    Restarted r;
    Sleeper sleeper;
    hold(r.link->view, 1, 0, sleeper.pid);
    r.restart();
    r.client.hello(r.monitor);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    r.client.channel.ask(Op::bell, wire::Bell{r.id, 0, r.client_bell_id}, {r.client_bell.get()});
    r.link->view.header().side[0].sleep_mask = uint64_t{1} << r.client_bell_id;
    // It has taken the arms, and found no monitor to ask for the bell.
    r.link->view.slot(4).side[0].control.rx_arm = 0;
    r.link->view.slot(4).side[1].control.flags = kFlagWriteShut | kFlagClosed | kFlagReleased;
    sleeper.stop();
    REQUIRE(rang(r.client_bell.get()));
}

TEST_CASE("of several processes on a side one died while no monitor ran: only its connections end") {
    Restarted r;
    Sleeper sleeper;
    hold(r.link->view, 1, 5, sleeper.pid);
    Slot &lost = r.link->view.slot(6); // accepted by the one that dies; its segment goes with it
    lost.identity.state = static_cast<uint32_t>(SlotState::accepted);
    r.client.segment.open(2, r.id, 6, 0);
    r.monitor.stop(SIGKILL);
    sleeper.stop();
    r.monitor.start();
    r.server.hello(r.monitor);
    REQUIRE(r.adopt(r.server, 1).header.status == 0);
    r.client.hello(r.monitor);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    REQUIRE(eventually([&] { return (lost.side[1].control.flags & kFlagDead) != 0; }));
    REQUIRE(r.flags(1) == 0);
    REQUIRE(r.flags(0) == 0);
    REQUIRE(lost.side[0].control.flags == 0);
}

TEST_CASE("a request that nobody has accepted outlives the monitor") {
    for (const bool server_first : {true, false}) {
        MonitorProcess monitor;
        TestListener socket;
        TestProcess server(monitor), client(monitor);
        const auto listen = [&] {
            return server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()})
                .as<wire::ListenReply>()
                .listener_id;
        };
        Answer a = client.channel.ask(Op::connect, wire::Connect{listen(), wire::kLoopbackAddresses});
        const uint64_t id = a.as<wire::ConnectReply>().link_id;
        const TestLink link(std::move(a.fds.at(0)));
        Slot &slot = link.view.slot(4);
        client.segment.open(1, id, 4, 0);
        slot.identity.server = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, socket.port, AF_INET};
        slot.identity.state = static_cast<uint32_t>(SlotState::syn);
        link.view.syn(0) = 5;
        monitor.stop(SIGKILL);
        monitor.start();
        uint32_t listener = 0;
        const auto come_back = [&](bool is_server) {
            if (is_server) {
                server.hello(monitor);
                listener = listen();
            } else {
                client.hello(monitor);
                REQUIRE(client.channel.ask(Op::adopt_link, wire::Adopt{id, 0, {}}, {link.fd.get()}).header.status ==
                        0);
            }
        };
        come_back(server_first);
        REQUIRE(slot.side[1].control.flags == 0);
        come_back(!server_first);
        REQUIRE(slot.side[1].control.flags == 0);
        REQUIRE(server.channel.ask(Op::links, wire::Links{listener, 0}).as<wire::LinksReply>().count == 1);
    }
}

TEST_CASE("processes that a returning segment names are looked after") {
    Restarted r;
    Sleeper alive, dead;
    const auto record = [&](unsigned index, pid_t pid) {
        r.client.segment.view.proc(index).pid = static_cast<uint32_t>(pid);
        r.client.segment.view.proc(index).state = 1;
    };
    record(3, alive.pid); // 1 is for parcels, which are nobody's
    record(2, dead.pid);
    r.link->view.slot(7).identity.state = r.link->view.slot(8).identity.state =
        static_cast<uint32_t>(SlotState::accepted);
    r.client.segment.open(7, r.id, 7, 0, 3);
    r.client.segment.open(8, r.id, 8, 0, 2);
    r.monitor.stop(SIGKILL);
    dead.stop();
    r.monitor.start();
    r.client.hello(r.monitor);
    REQUIRE(r.adopt(r.client, 0).header.status == 0);
    REQUIRE(r.client.segment.view.proc(2).held[0] == 0);
    REQUIRE(r.client.segment.view.ofd(8).state == 0);
    REQUIRE(r.client.segment.view.proc(3).held[0] != 0);
    REQUIRE(r.link->view.slot(7).side[0].control.flags == 0);
    alive.stop();
    REQUIRE(eventually([&] { return (r.link->view.slot(7).side[0].control.flags & kFlagDead) != 0; }));
    REQUIRE(eventually([&] { return r.client.segment.view.proc(3).held[0] == 0; }));
    REQUIRE(r.flags(0) == 0);
}

/// What a process forked from here is told when it shows the new monitor the segment of its parent.
int32_t shown_by_child(const MonitorProcess &monitor, const TestSegment &shared, uint64_t owner, bool changed) {
    int answer[2];
    REQUIRE(pipe(answer) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        int32_t status = 1;
        TestProcess child(monitor);
        if (!changed || (setgid(65534) == 0 && setuid(65534) == 0)) {
            const wire::Segment body{2, 0, owner};
            status = child.channel.ask(Op::segment, body, {shared.fd.get()}).header.status;
        }
        [[maybe_unused]] const ssize_t n = write(answer[1], &status, sizeof status);
        _exit(0);
    }
    int32_t status = 1;
    close(answer[1]);
    const ssize_t n = read(answer[0], &status, sizeof status);
    close(answer[0]);
    waitpid(pid, nullptr, 0);
    REQUIRE(n == sizeof status);
    return status;
}

TEST_CASE("after a restart a family shares its segment again, whoever comes first") {
    MonitorProcess monitor;
    TestProcess parent(monitor);
    const uint64_t owner = parent.id;
    monitor.stop(SIGKILL);
    monitor.start();
    parent.hello(monitor);
    REQUIRE(shown_by_child(monitor, parent.segment, owner, false) == 0);
    REQUIRE(shown_by_child(monitor, parent.segment, owner, false) == 0);
}

TEST_CASE("after a restart a family shares its segment again while its parent forks") {
    MonitorProcess monitor;
    TestProcess parent(monitor);
    const uint64_t owner = parent.id;
    monitor.stop(SIGKILL);
    monitor.start();
    parent.hello(monitor);
    wire::Fork body{};
    body.segments = 1;
    body.child_in[0] = {parent.id, 1, 0};
    const Answer forked = parent.channel.ask(Op::fork, body); // the child does not come yet
    REQUIRE(forked.header.status == 0);
    REQUIRE(shown_by_child(monitor, parent.segment, owner, false) == 0);
}

TEST_CASE("after a restart a family shares its segment and link again when the first one back ends at once") {
    Restarted r;
    const uint64_t owner = r.server.id;
    r.restart();
    r.client.hello(r.monitor);
    REQUIRE(kill(r.monitor.pid, SIGSTOP) == 0);
    // Neither waits for an answer, so that the monitor finds all of this at once.
    const auto come_back = [&] {
        TestSegment own;
        Channel channel(r.monitor);
        channel.tell(Op::hello, wire::Hello{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0},
                     {own.fd.get(), r.socket.fd.get()});
        channel.tell(Op::segment, wire::Segment{2, 0, owner}, {r.server.segment.fd.get()});
        channel.tell(Op::adopt_link, wire::Adopt{r.id, 1, {}}, {r.link->fd.get()});
        return channel;
    };
    const pid_t first = fork();
    if (first == 0) {
        come_back();
        _exit(0);
    }
    siginfo_t ended;
    REQUIRE(waitid(P_PID, static_cast<id_t>(first), &ended, WEXITED | WNOWAIT) == 0);
    int answer[2];
    REQUIRE(pipe(answer) == 0);
    const pid_t second = fork();
    if (second == 0) {
        Channel channel = come_back();
        [[maybe_unused]] ssize_t n = write(answer[1], "s", 1);
        const Answer segment = channel.ask(Op::segment, wire::Segment{2, 0, owner}, {r.server.segment.fd.get()});
        const Answer link = channel.ask(Op::adopt_link, wire::Adopt{r.id, 1, {}}, {r.link->fd.get()});
        const bool has_both = segment.header.status == -EEXIST && link.header.status == 0;
        n = write(answer[1], has_both ? "y" : "n", 1);
        pause();
    }
    char said = 0;
    REQUIRE(read(answer[0], &said, 1) == 1);
    REQUIRE(kill(r.monitor.pid, SIGCONT) == 0);
    REQUIRE(read(answer[0], &said, 1) == 1);
    CHECK(said == 'y');
    kill(second, SIGKILL);
    waitpid(second, nullptr, 0);
    waitpid(first, nullptr, 0);
    close(answer[0]);
    close(answer[1]);
}

TEST_CASE("after a restart a child that has become another user is not shown the segment of its parent") {
    if (geteuid() != 0) {
        return; // cannot become anybody else
    }
    MonitorProcess monitor;
    TestProcess parent(monitor);
    const uint64_t owner = parent.id;
    monitor.stop(SIGKILL);
    monitor.start();
    parent.hello(monitor);
    REQUIRE(shown_by_child(monitor, parent.segment, owner, true) == -EPERM);
}

TEST_CASE("what is no link is not adopted") {
    Restarted r;
    r.restart();
    r.client.hello(r.monitor);
    const auto adopt = [&](uint64_t id, uint32_t side, int fd) {
        return r.client.channel.ask(Op::adopt_link, wire::Adopt{id, side, {}}, {fd}).header.status;
    };
    UniqueFd null(open("/dev/null", O_RDONLY)), unsealed = monitor::make_memfd("u", kLinkBytes),
                                                empty = monitor::make_memfd("e", kLinkBytes);
    monitor::seal(empty.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    REQUIRE(adopt(r.id, 0, null.get()) == -EINVAL);
    REQUIRE(adopt(r.id, 0, unsealed.get()) == -EINVAL);
    REQUIRE(adopt(r.id, 0, empty.get()) == -EINVAL);
    REQUIRE(adopt(r.id, 2, r.link->fd.get()) == -EINVAL);
    REQUIRE(adopt(0, 0, r.link->fd.get()) == -EINVAL);
    REQUIRE(adopt(r.id, 0, r.link->fd.get()) == 0);
    REQUIRE(adopt(r.id, 1, r.link->fd.get()) == 0);           // both sides in one process
    REQUIRE(adopt(r.id + 1, 0, r.link->fd.get()) == -EEXIST); // one link under two names
}

TEST_CASE("an acceptor killed before it noted what it had taken") {
    MonitorProcess monitor;
    TestListener socket;
    TestProcess client(monitor), survivor(monitor), victim(monitor);
    uint32_t listener = 0;
    for (TestProcess *p : {&survivor, &victim}) {
        listener =
            p->channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    }
    Answer a = client.channel.ask(Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
    const auto id = a.as<wire::ConnectReply>().link_id;
    TestLink link(std::move(a.fds.at(0)));
    Answer s = survivor.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    Mapping map(s.fds.at(0).get(), sizeof(ListenerSegment));
    for (TestProcess *p : {&survivor, &victim}) {
        REQUIRE(p->channel.ask(Op::links, wire::Links{listener, 0}).as<wire::LinksReply>().count == 1);
    }
    const auto set = [&](uint32_t slot, SlotState state) {
        link.view.slot(slot).identity.state = static_cast<uint32_t>(state);
        client.segment.open(slot, id, slot, 0);
    };
    set(10, SlotState::accepted); // taken, but no Ofd made
    set(11, SlotState::syn);      // off the queue, but not taken
    set(12, SlotState::syn);      // still in the queue
    set(13, SlotState::accepted); // the survivor's
    link.view.syn(0) = 12;
    link.view.syn(1) = 13;
    reinterpret_cast<ListenerSegment *>(map.base())->link[0].syn_head = 1;
    survivor.segment.open(13, id, 13, 1);
    UniqueFd mine = bell();
    const auto b = client.channel.ask(Op::bell, wire::Bell{id, 0, 0}, {mine.get()}).as<wire::BellReply>().id;
    link.view.slot(10).side[0].control.rx_arm = uint64_t{1} << b;
    link.view.header().side[0].sleep_mask = uint64_t{1} << b;

    victim.channel.close();
    REQUIRE(rang(mine.get()));
    REQUIRE(link.view.slot(10).side[1].control.flags == (kFlagDead | kFlagClosed));
    REQUIRE(eventually(
        [&] { return link.view.slot(11).side[1].control.flags == (kFlagReset | kFlagClosed | kFlagDead); }));
    REQUIRE(link.view.slot(11).identity.state == static_cast<uint32_t>(SlotState::refused));
    REQUIRE(link.view.slot(12).side[1].control.flags == 0);
    REQUIRE(link.view.slot(12).identity.state == static_cast<uint32_t>(SlotState::syn));
    REQUIRE(link.view.slot(13).side[1].control.flags == 0);
}

namespace {

/// Keeps a descriptor for the monitor, as a service manager does.
struct Keeper {
    std::string path;
    UniqueFd socket{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)}, kept;

    explicit Keeper(const MonitorProcess &monitor) : path(monitor.directory + "/notify") {
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, path.c_str());
        REQUIRE(bind(socket.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
    }
    ~Keeper() { unlink(path.c_str()); }
    void in_child() const {
        setenv("NOTIFY_SOCKET", path.c_str(), 1);
        if (kept) {
            dup2(kept.get(), 3);
            setenv("LISTEN_FDS", "1", 1);
            setenv("LISTEN_FDNAMES", "listeners", 1);
            setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
        }
    }
    void start(MonitorProcess &monitor) {
        monitor.start({}, [this] { in_child(); });
        while (!kept) {
            char text[256];
            alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
            iovec io{text, sizeof text};
            msghdr message{};
            message.msg_iov = &io;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            REQUIRE(recvmsg(socket.get(), &message, 0) > 0);
            if (const cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
                int fd;
                memcpy(&fd, CMSG_DATA(c), sizeof fd);
                kept.reset(fd);
            }
        }
    }
    std::string text() const {
        std::string all(4096, '\0');
        const ssize_t n = pread(kept.get(), all.data(), all.size(), 0);
        all.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return all;
    }
};

} // namespace

TEST_CASE("a listener is listed after a restart before its program has come back") {
    MonitorProcess monitor;
    monitor.stop(SIGTERM);
    Keeper keeper(monitor);
    keeper.start(monitor);
    TestListener socket;
    TestProcess server(monitor), client(monitor);
    const auto listen = [&] {
        return server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).as<wire::ListenReply>().listener_id;
    };
    const uint32_t id = listen();
    const std::string port = "\"port\":" + std::to_string(socket.port) + ",";
    REQUIRE(eventually([&] { return keeper.text().find(port) != std::string::npos; }));

    SECTION("and its clients are led to it") {
        const int how = GENERATE(SIGTERM, SIGKILL);
        monitor.stop(how);
        keeper.start(monitor);
        client.hello(monitor);
        const auto *entry = find_entry(client.directory(), socket.port);
        REQUIRE(entry != nullptr);
        const uint32_t listed = entry->id.load();
        const Answer link =
            client.channel.ask(Op::connect, wire::Connect{entry->id.load(), wire::kLoopbackAddresses});
        REQUIRE(link.header.status == 0);
        server.hello(monitor);
        REQUIRE(listen() == listed);
        const Answer links = server.channel.ask(Op::links, wire::Links{listed, 0});
        REQUIRE(links.as<wire::LinksReply>().count == 1);
        REQUIRE(links.as<wire::LinksReply>().link[0].link_id == link.as<wire::ConnectReply>().link_id);
    }
    SECTION("and goes on waiting for them when it is long in coming, while new ones use the kernel") {
        monitor.stop(SIGKILL);
        setenv("SD_TEST_COME_BACK", "1500", 1); // the client below has to be quicker, on a busy machine too
        keeper.start(monitor);
        unsetenv("SD_TEST_COME_BACK");
        client.hello(monitor);
        const auto *entry = find_entry(client.directory(), socket.port);
        Answer made = client.channel.ask(Op::connect, wire::Connect{entry->id.load(), wire::kLoopbackAddresses});
        REQUIRE(made.header.status == 0);
        const TestLink link(std::move(made.fds.at(0)));
        link.view.slot(4).identity.state = static_cast<uint32_t>(SlotState::syn);
        link.view.syn(0) = 5;
        REQUIRE(eventually([&] { return find_entry(client.directory(), socket.port) == nullptr; }));
        REQUIRE(link.view.slot(4).side[1].control.flags == 0);
        server.hello(monitor);
        REQUIRE(server.channel.ask(Op::links, wire::Links{listen(), 0}).as<wire::LinksReply>().count == 1);
        REQUIRE(find_entry(client.directory(), socket.port) != nullptr);
        REQUIRE(link.view.slot(4).side[1].control.flags == 0);
    }
    SECTION("but not when its socket has gone") {
        monitor.stop(SIGKILL);
        socket.fd.reset();
        keeper.start(monitor);
        client.hello(monitor);
        REQUIRE(find_entry(client.directory(), socket.port) == nullptr);
    }
    SECTION("and not when it has closed it before") {
        server.channel.close();
        REQUIRE(eventually([&] { return keeper.text() == "[]"; }));
    }
    SECTION("and not when it was taken out of the list") {
        REQUIRE(server.channel.ask(Op::unlist, wire::ListenerRef{id, 0}).header.status == 0);
        REQUIRE(eventually([&] { return keeper.text() == "[]"; }));
    }
    SECTION("and not when the file holds anything else") {
        monitor.stop(SIGKILL);
        REQUIRE(ftruncate(keeper.kept.get(), 5) == 0);
        keeper.start(monitor);
        client.hello(monitor);
        REQUIRE(find_entry(client.directory(), socket.port) == nullptr);
    }
}

TEST_CASE("a listener of several processes is kept for one of those that still have it") {
    MonitorProcess monitor;
    monitor.stop(SIGTERM);
    Keeper keeper(monitor);
    keeper.start(monitor);
    TestListener socket;
    int registered[2];
    REQUIRE(pipe(registered) == 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        TestProcess own(monitor);
        const char ok = own.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()}).header.status == 0;
        [[maybe_unused]] const ssize_t n = write(registered[1], &ok, 1);
        for (;;) {
            pause();
        }
    }
    char ok = 0;
    REQUIRE(read(registered[0], &ok, 1) == 1);
    REQUIRE(ok == 1);
    TestProcess server(monitor);
    server.channel.ask(Op::listen, wire::Listen{16, 0}, {socket.fd.get()});
    const auto names = [&](pid_t pid) {
        return keeper.text().find("\"pid\":" + std::to_string(pid) + ",") != std::string::npos;
    };
    REQUIRE(eventually([&] { return names(child) || names(getpid()); }));
    const bool was_child = names(child);
    if (!was_child) {
        server.channel.close();
    } else {
        kill(child, SIGKILL);
    }
    CHECK(eventually([&] { return names(was_child ? getpid() : child); }));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(registered[0]);
    close(registered[1]);
}
