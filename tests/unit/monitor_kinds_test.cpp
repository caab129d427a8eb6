// Descriptors that are not what they should be: a file whose file system answers nothing, and a socket that
// lingers.
#include "tests/support/skip.hpp"
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <linux/fuse.h>
#include <netinet/tcp.h>
#include <sys/mount.h>
#include <sys/stat.h>
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

TEST_CASE("a socket that lingers does not stop the monitor") {
    MonitorProcess monitor;
    TestProcess process(monitor);
    // Its peer never reads, so that what it has to send does not become less.
    UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4096;
    setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr *>(&address), length) == 0);
    REQUIRE(listen(listener.get(), 1) == 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &length);
    REQUIRE(connect(sender.get(), reinterpret_cast<sockaddr *>(&address), length) == 0);
    const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string much(1 << 16, 'x');
    while (send(sender.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    const linger long_time{1, 30};
    REQUIRE(setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) == 0);
    // Ours is closed before the monitor's, which is then the last.
    kill(monitor.pid, SIGSTOP);
    const wire::Listen body{16, 0};
    wire::Packet packet{};
    packet.header = {
        wire::kMagic, wire::kVersion, static_cast<uint16_t>(Op::listen), 1, 0, 0, sizeof body, 1};
    memcpy(packet.body, &body, sizeof body);
    REQUIRE(process.channel.raw(&packet, sizeof packet.header + sizeof body, {sender.get()}));
    sender.reset();
    kill(monitor.pid, SIGCONT);
    const timeval patience{5, 0};
    setsockopt(process.channel.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    CHECK(process.channel.answer().header.status == -EINVAL);
    CHECK(answers(monitor));
}
