// Descriptors that are not what they should be: a file whose file system answers nothing, and a socket that
// lingers.
#include "tests/support/skip.hpp"
#include "tests/unit/held_socket.hpp"
#include "tests/unit/stranger.hpp"

#include <linux/filter.h>
#include <linux/fuse.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>

using namespace sd;
using namespace sd::test;
using wire::Op;

namespace {

/// A file system of one file that can be opened, and answers nothing after that.
class SilentFile {
  public:
    SilentFile() {
        char name[] = "/tmp/sd-silent-XXXXXX";
        if (mkdtemp(name) == nullptr) {
            return;
        }
        directory_ = name;
        device_ = UniqueFd(open("/dev/fuse", O_RDWR | O_CLOEXEC));
        char options[128];
        snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device_.get());
        if (!device_ || mount("silent", name, "fuse", 0, options) != 0) {
            return;
        }
        mounted_ = true;
        server_ = std::thread([device = device_.get()] { serve(device); });
        file_ = UniqueFd(open((directory_ + "/file").c_str(), O_RDWR | O_CLOEXEC));
    }
    ~SilentFile() {
        if (mounted_) {
            // Whoever waits for an answer gets an error, the server too
            umount2(directory_.c_str(), MNT_FORCE);
            server_.join();
        }
        file_.reset();
        if (mounted_) {
            umount2(directory_.c_str(), MNT_DETACH);
        }
        rmdir(directory_.c_str());
    }
    SilentFile(const SilentFile &) = delete;
    SilentFile &operator=(const SilentFile &) = delete;
    int fd() const { return file_.get(); }

  private:
    template <typename T> static void answer(int device, uint64_t to, const T &body, size_t length = sizeof(T)) {
        struct {
            fuse_out_header header;
            T body;
        } packet{{static_cast<uint32_t>(sizeof(fuse_out_header) + length), 0, to}, body};
        [[maybe_unused]] const ssize_t n = write(device, &packet, sizeof(fuse_out_header) + length);
    }
    static void serve(int device) {
        alignas(8) char buffer[1 << 17];
        while (read(device, buffer, sizeof buffer) > 0) {
            const auto &in = *reinterpret_cast<const fuse_in_header *>(buffer);
            if (in.opcode == FUSE_INIT) {
                fuse_init_out out{};
                out.major = FUSE_KERNEL_VERSION;
                out.minor = 31;
                out.max_write = 4096;
                answer(device, in.unique, out);
            } else if (in.opcode == FUSE_LOOKUP) {
                fuse_entry_out out{};
                out.nodeid = 2;
                out.attr.ino = 2;
                out.attr.mode = S_IFREG | 0666;
                out.attr.nlink = 1;
                out.entry_valid = 1000;
                answer(device, in.unique, out);
            } else if (in.opcode == FUSE_OPEN) {
                fuse_open_out out{};
                out.fh = 1;
                answer(device, in.unique, out);
            }
        }
    }

    std::string directory_;
    UniqueFd device_, file_;
    std::thread server_;
    bool mounted_ = false;
};

/// Whether the monitor answers somebody else within a few seconds.
bool answers(const MonitorProcess &monitor) {
    Channel other(monitor);
    const timeval patience{5, 0};
    setsockopt(other.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const Answer a = other.ask(Op::presence);
    return !a.closed && a.header.status == 0;
}

} // namespace

TEST_CASE("a file whose file system does not answer does not stop the monitor") {
    MonitorProcess monitor; // before the file: a program that is started closes its copy of that
    SilentFile file;
    if (file.fd() < 0) {
        SKIP_TEST("no file system in user space can be mounted here");
    }
    TestProcess process(monitor);
    const timeval patience{5, 0};
    setsockopt(process.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SECTION("as a listener") {
        REQUIRE(process.channel.ask(Op::listen, wire::Listen{16, 0}, {file.fd()}).header.status == -EINVAL);
    }
    SECTION("as memory") {
        REQUIRE(process.channel.ask(Op::segment, wire::Segment{0, 0, 0}, {file.fd()}).header.status == -EINVAL);
    }
    SECTION("as what the kernel's socket is connected to") {
        const UniqueFd tcp(socket(AF_INET, SOCK_STREAM, 0));
        wire::Pass pass{};
        REQUIRE(process.channel.ask(Op::pass, pass, {tcp.get(), file.fd()}).header.status == -EINVAL);
    }
    SECTION("in a request that takes none") {
        REQUIRE(process.channel.ask(Op::presence, "", 0, {file.fd()}).header.status == -EPROTO);
    }
    CHECK(answers(monitor));
}

namespace {

/// A connected socket that has more to send than its peer takes, and is told to linger for that.
class Lingering {
  public:
    Lingering() {
        UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int small = 4096;
        setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr *>(&address), length) == 0);
        REQUIRE(listen(listener.get(), 1) == 0);
        getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &length);
        REQUIRE(connect(socket_.get(), reinterpret_cast<sockaddr *>(&address), length) == 0);
        accepted_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const std::string much(1 << 16, 'x');
        while (send(socket_.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
        }
        const linger long_time{1, 30};
        REQUIRE(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) == 0);
    }
    int fd() const { return socket_.get(); }
    /// What was sent with a message is the only one then.
    void close() { socket_.reset(); }

  private:
    UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, accepted_;
};

/// A packet as Channel::ask() sends it, and no waiting for the answer.
template <typename T> void send_request(Channel &channel, Op op, const T &body, const std::vector<int> &fds) {
    wire::Packet packet{};
    packet.header = {wire::kMagic,
                     wire::kVersion,
                     static_cast<uint16_t>(op),
                     1,
                     0,
                     0,
                     sizeof body,
                     static_cast<uint32_t>(fds.size())};
    memcpy(packet.body, &body, sizeof body);
    REQUIRE(channel.raw(&packet, sizeof packet.header + sizeof body, fds));
}

} // namespace

TEST_CASE("a socket that lingers does not stop the monitor") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    Lingering socket;
    const timeval patience{5, 0};
    setsockopt(process.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    // Ours is closed before the monitor's, which is then the last.
    const auto refuses = [&](Op op, const auto &body) {
        kill(monitor.pid, SIGSTOP);
        send_request(process.channel, op, body, {socket.fd()});
        socket.close();
        kill(monitor.pid, SIGCONT);
        const Answer a = process.channel.answer();
        CHECK(!a.closed);
        CHECK(a.header.status < 0);
    };
    SECTION("as a listener") { refuses(Op::listen, wire::Listen{16, 0}); }
    SECTION("as a segment") { refuses(Op::segment, wire::Segment{1, 0, 7}); }
    SECTION("as a link") { refuses(Op::adopt_link, wire::Adopt{5, 0, {}}); }
    CHECK(answers(monitor));
}

TEST_CASE("a socket that lingers is no doorbell, and does not stop the monitor") {
    Pair pair;
    pair.connect();
    Lingering socket;
    const bool accepts = GENERATE(false, true);
    TestProcess &process = accepts ? pair.server : pair.client;
    const timeval patience{5, 0};
    setsockopt(process.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    kill(pair.monitor.pid, SIGSTOP);
    if (accepts) {
        send_request(process.channel, Op::accept_bell, wire::ListenerRef{pair.listener, 0}, {socket.fd()});
    } else {
        send_request(process.channel, Op::bell, wire::Bell{pair.link, 0, 0}, {socket.fd()});
    }
    socket.close();
    kill(pair.monitor.pid, SIGCONT);
    CHECK(process.channel.answer().header.status == -EINVAL);
    CHECK(answers(pair.monitor));
}

TEST_CASE("a kernel socket for all holders that lingers does not stop the monitor") {
    Pair pair;
    pair.connect();
    Lingering socket;
    UniqueFd ends[2];
    int pair_of[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_of) == 0);
    ends[0] = UniqueFd(pair_of[0]), ends[1] = UniqueFd(pair_of[1]);
    wire::Pass pass{};
    pass.handoff.link_id = pair.link;
    pass.handoff.ofd_index = 1; // which nobody has opened
    pass.start = static_cast<uint32_t>(wire::BridgeStart::for_all);
    const timeval patience{5, 0};
    setsockopt(pair.client.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    kill(pair.monitor.pid, SIGSTOP);
    send_request(pair.client.channel, Op::pass, pass, {socket.fd(), ends[0].get()});
    socket.close();
    kill(pair.monitor.pid, SIGCONT);
    CHECK(pair.client.channel.answer().header.status == -EINVAL);
    CHECK(answers(pair.monitor));
}

TEST_CASE("a socket that lingers in a queue that is thrown away does not stop the monitor") {
    SECTION("of a channel") {
        MonitorProcess monitor;
        TestProcess process(monitor);
        Lingering socket;
        kill(monitor.pid, SIGSTOP);
        REQUIRE(process.channel.raw("rubbish", 7)); // at which it closes the channel
        send_request(process.channel, Op::listen, wire::Listen{16, 0}, {socket.fd()});
        socket.close();
        kill(monitor.pid, SIGCONT);
        CHECK(answers(monitor));
    }
    SECTION("of a client that is turned away") {
        MonitorProcess monitor;
        Lingering socket;
        Channel other;
        const UniqueFd config(open((monitor.directory + "/monitor.toml").c_str(), O_WRONLY | O_CREAT, 0600));
        const std::string text = "[limits]\nclients = 1\n";
        REQUIRE(write(config.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
        monitor.stop(SIGTERM);
        monitor.start({"--config", monitor.directory + "/monitor.toml"});
        Channel first;
        REQUIRE(eventually([&] {
            first = Channel(monitor);
            return first.ask(Op::presence).header.status == 0;
        }));
        kill(monitor.pid, SIGSTOP);
        Channel second(monitor);
        send_request(second, Op::listen, wire::Listen{16, 0}, {socket.fd()});
        socket.close();
        second.close();
        kill(monitor.pid, SIGCONT);
        const timeval patience{5, 0};
        setsockopt(first.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        CHECK(first.ask(Op::log, wire::Log{}).header.status == 0);
    }
    SECTION("of a socket that was sent") {
        Pair pair;
        pair.connect();
        Lingering socket;
        int bell_pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, bell_pair) == 0);
        const UniqueFd mine(bell_pair[0]);
        UniqueFd theirs(bell_pair[1]);
        Channel to(UniqueFd(dup(mine.get())));
        REQUIRE(to.raw("x", 1, {socket.fd()}));
        socket.close();
        kill(pair.monitor.pid, SIGSTOP);
        send_request(pair.client.channel, Op::listen, wire::Listen{16, 0}, {theirs.get()});
        theirs.reset();
        kill(pair.monitor.pid, SIGCONT);
        CHECK(answers(pair.monitor));
    }
}

TEST_CASE("descriptors that the kernel closes slowly do not stop the monitor") {
    constexpr unsigned kInMessage = 253; // the most that go with one
    MonitorProcess monitor;
    // Each takes some milliseconds, whoever is the last to have it.
    std::vector<int> slow;
    for (unsigned i = 0; i < 2 * kInMessage; ++i) {
        slow.push_back(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0x0300)); // ETH_P_ALL
        if (slow.back() < 0) {
            SKIP_TEST("needs sockets for packets");
        }
    }
    const auto send_half = [&](int to, unsigned half) {
        char byte = 'x';
        iovec io{&byte, 1};
        alignas(cmsghdr) char control[CMSG_SPACE(kInMessage * sizeof(int))]{};
        msghdr m{};
        m.msg_iov = &io;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(kInMessage * sizeof(int));
        memcpy(CMSG_DATA(c), slow.data() + half * kInMessage, kInMessage * sizeof(int));
        REQUIRE(sendmsg(to, &m, MSG_NOSIGNAL) == 1);
    };
    kill(monitor.pid, SIGSTOP);
    Channel one(monitor), two(monitor);
    SECTION("with packets") {
        send_half(one.fd(), 0);
        send_half(two.fd(), 1);
    }
    SECTION("in the queue of a socket") {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        const UniqueFd mine(pair[0]), theirs(pair[1]);
        send_half(mine.get(), 0);
        send_half(mine.get(), 1);
        send_request(one, Op::enter, wire::Leave{}, {theirs.get()}); // which is not what it should be
    }
    SECTION("in the queue of a channel") {
        REQUIRE(one.raw("rubbish", 7)); // at which it is closed
        send_half(one.fd(), 0);
        send_half(one.fd(), 1);
    }
    for (const int fd : slow) { // the monitor has the others
        close(fd);
    }
    kill(monitor.pid, SIGCONT);
    CHECK(answers(monitor));
}

namespace {

UniqueFd connected_to(const TestListener &listener) {
    UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(listener.port);
    REQUIRE(connect(client.get(), reinterpret_cast<sockaddr *>(&name), sizeof name) == 0);
    return client;
}

} // namespace

TEST_CASE("a socket whose lock somebody keeps does not stop the monitor") {
    Pair pair;
    const timeval patience{5, 0};
    setsockopt(pair.client.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const TestListener listener;
    const UniqueFd client = connected_to(listener);
    const UniqueFd server(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    SECTION("as a listener") {
        {
            const HeldSocket held(listener.fd.get());
            if (!held.held()) {
                SKIP_TEST("needs the right to handle page faults of the kernel");
            }
            CHECK(pair.client.channel.ask(Op::listen, wire::Listen{16, 0}, {listener.fd.get()}).header.status ==
                  -EAGAIN);
            CHECK(answers(pair.monitor));
            // Nor is anything else of the same user looked at for some time.
            const TestListener other;
            CHECK(pair.client.channel.ask(Op::listen, wire::Listen{16, 0}, {other.fd.get()}).header.status ==
                  -EAGAIN);
        }
        REQUIRE(eventually([&] {
            return pair.client.channel.ask(Op::listen, wire::Listen{16, 0}, {listener.fd.get()}).header.status ==
                   0;
        }));
    }
    SECTION("as an end of a connection") {
        const HeldSocket held(client.get());
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        CHECK(pair.client.channel.ask(Op::offer, wire::Offer{0, 0}, {client.get()}).header.status == -EINVAL);
        CHECK(answers(pair.monitor));
    }
    SECTION("as what a passed socket is connected to") {
        pair.connect();
        pair.client.segment.open(5, pair.link, 70, 0);
        wire::Pass pass{};
        pass.handoff.link_id = pair.link;
        pass.handoff.ofd_index = 5;
        pass.handoff.slot = 70;
        REQUIRE(pair.client.channel.ask(Op::pass, pass, {client.get(), server.get()}).header.status == 0);
        const HeldSocket held(server.get());
        if (!held.held()) {
            SKIP_TEST("needs the right to handle page faults of the kernel");
        }
        REQUIRE(send(client.get(), "x", 1, MSG_NOSIGNAL) == 1); // at which the monitor looks
        CHECK(answers(pair.monitor));
    }
}

TEST_CASE("a socket whose lock somebody keeps, and that others go over to, does not stop the monitor") {
    if (!is_root()) {
        SKIP_TEST("needs root to become another user");
    }
    int64_t status = -ENOENT;
    // After 50 ms the monitor looks for what was passed by itself: nothing is there to be claimed then.
    for (int attempt = 0; status == -ENOENT && attempt < 20; ++attempt) {
        Pair pair;
        const TestListener listener;
        const UniqueFd client = connected_to(listener);
        const UniqueFd server(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const Stranger receiver(pair.monitor, kOne, {[&](TestProcess &p) {
                                    return p.channel.ask(Op::claim, "", 0, {client.get()}).header.status;
                                }});
        pair.connect();
        pair.client.segment.open(5, pair.link, 70, 0);
        Ofd &ofd = pair.client.segment.view.ofd(5);
        ofd.rx_shut = 1;
        wire::Pass pass{};
        pass.handoff.link_id = pair.link;
        pass.handoff.ofd_index = 5;
        pass.handoff.slot = 70;
        REQUIRE(pair.client.channel.ask(Op::pass, pass, {client.get(), server.get()}).header.status == 0);
        std::atomic<int64_t> claimed = 0;
        std::thread claims;
        {
            const HeldSocket held(client.get());
            if (!held.held()) {
                SKIP_TEST("needs the right to handle page faults of the kernel");
            }
            claims = std::thread([&] { claimed = receiver.does(0); });
            CHECK(eventually([&] { return claimed != 0; }));
            CHECK(answers(pair.monitor));
        }
        claims.join();
        status = claimed;
        if (status == -ENOENT) {
            continue;
        }
        CHECK((ofd.tx_block.load() & kTxMoved) == 0);
        char c;
        CHECK(eventually([&] { return recv(client.get(), &c, 1, MSG_DONTWAIT) == 0; })); // shut after all
    }
    CHECK(status == -EPERM);
}
