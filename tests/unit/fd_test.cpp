// Copying, closing and configuring descriptors of accelerated sockets.
#include "libsd/layout/exec_table.hpp"
#include "libsd/vfs/sharing/exec_resume.hpp"
#include "tests/unit/stream_pair.hpp"

#include "libsd/control/client.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include <linux/sockios.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/resource.h>

using namespace sd;
using namespace sd::test;

namespace {
int fresh_socket() {
    test_link(0);
    return static_cast<int>(vfs::socket(AF_INET, SOCK_STREAM, 0));
}
bool is_open(int fd) { return sys::fcntl(fd, F_GETFD) >= 0; }
} // namespace

TEST_CASE("a copy shares everything but FD_CLOEXEC and keeps the connection alive") {
    StreamPair p;
    const int copy = static_cast<int>(vfs::dup(p.fd[0], 0, true));
    CHECK(file_of(copy) == p.file(0));
    CHECK(sys::fcntl(copy, F_GETFD) == FD_CLOEXEC);
    CHECK(sys::fcntl(p.fd[0], F_GETFD) == 0);
    CHECK(vfs::fcntl(copy, F_SETFL, O_NONBLOCK) == 0);
    CHECK(vfs::fcntl(p.fd[0], F_GETFL, 0) == (O_RDWR | O_NONBLOCK));
    CHECK(vfs::close(p.fd[0]) == 0);
    CHECK(file_of(p.fd[0]) == nullptr);
    CHECK(vfs::send(copy, file_of(copy), "x", 1, 0) == 1);
    char byte = 0;
    CHECK(vfs::recv(p.fd[1], p.file(1), &byte, 1, 0) == 1);
    CHECK(vfs::close(copy) == 0);
    CHECK(vfs::recv(p.fd[1], p.file(1), &byte, 1, 0) == 0);
}

// The kernel's table reaches up to the highest descriptor, and every fork copies it.
TEST_CASE("the library's own descriptors stand above what select takes, but no higher, however many a "
          "program may have") {
    rlimit usual{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    rlimit most = usual;
    most.rlim_cur = most.rlim_max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &most) == 0);
    const long fd = hide_fd(static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0)));
    REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    CHECK(fd >= (most.rlim_cur < 2048 ? static_cast<long>(most.rlim_cur / 2) : 1024));
    CHECK(fd < 2048);
    CHECK(is_hidden(static_cast<int>(fd)));
    close_hidden(static_cast<int>(fd));
}

TEST_CASE("one placeholder's status flags are not another's") {
    const int a = fresh_socket(), b = fresh_socket();
    CHECK(vfs::fcntl(a, F_SETFL, O_NONBLOCK) == 0);
    CHECK(vfs::fcntl(a, F_GETFL, 0) == (O_RDWR | O_NONBLOCK));
    CHECK(vfs::fcntl(b, F_GETFL, 0) == O_RDWR);
    CHECK(vfs::fcntl(a, F_SETFL, O_DIRECT) == -EINVAL);
    int on = 1;
    CHECK(vfs::ioctl(b, FIONBIO, &on) == 0);
    CHECK(vfs::fcntl(b, F_GETFL, 0) == (O_RDWR | O_NONBLOCK));
    on = 0;
    CHECK(vfs::ioctl(b, FIONBIO, &on) == 0);
    CHECK(vfs::fcntl(b, F_GETFL, 0) == O_RDWR);
    // Becoming a kernel socket keeps them.
    CHECK(materialise(a, *file_of(a)) == 0);
    CHECK(sys::fcntl(a, F_GETFL) == (O_RDWR | O_NONBLOCK));
    vfs::close(a);
    vfs::close(b);
}

TEST_CASE("all copies of a placeholder become the kernel socket together") {
    const int a = fresh_socket(), b = static_cast<int>(vfs::dup(a, 0, false));
    const int one = 1;
    CHECK(set_option(a, SOL_SOCKET, SO_DONTROUTE, &one, sizeof one) == 0);
    int v = 0;
    socklen_t n = sizeof v;
    CHECK(get_option(b, SOL_SOCKET, SO_DONTROUTE, &v, &n) == 0);
    CHECK(v == 1);
    vfs::close(a);
    vfs::close(b);
}

TEST_CASE("dup2 and dup3 replace, refuse and report as the kernel does") {
    StreamPair p;
    const int other = fresh_socket();
    CHECK(vfs::dup_to(p.fd[0], p.fd[0], 0, true) == p.fd[0]);
    CHECK(vfs::dup_to(p.fd[0], p.fd[0], 0, false) == -EINVAL);
    CHECK(vfs::dup_to(p.fd[0], other, O_NONBLOCK, false) == -EINVAL);
    CHECK(vfs::dup_to(9999, other, 0, true) == -EBADF);
    CHECK(file_of(other)->kind == FileKind::fresh);
    CHECK(vfs::dup_to(p.fd[0], other, O_CLOEXEC, false) == other);
    CHECK(file_of(other) == p.file(0));
    CHECK(sys::fcntl(other, F_GETFD) == FD_CLOEXEC);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    CHECK(vfs::dup_to(ends[0], other, 0, true) == other);
    CHECK(file_of(other) == nullptr);
    CHECK(vfs::dup_to(p.fd[0], ends[0], 0, true) == ends[0]);
    CHECK(file_of(ends[0]) == p.file(0));
    vfs::close(ends[0]);
    sys::close(ends[1]);
    sys::close(other);
}

TEST_CASE("the library's own descriptors cannot be hit") {
    fresh_socket();
    const int hidden = static_cast<int>(dummy_socket());
    REQUIRE(is_hidden(hidden));
    CHECK(next_hidden(static_cast<unsigned>(hidden)) == static_cast<unsigned>(hidden));
    CHECK(vfs::close(hidden) == -EBADF);
    CHECK(vfs::dup(hidden, 0, false) == -EBADF);
    CHECK(vfs::dup_to(hidden, 7, 0, true) == -EBADF);
    CHECK(is_open(hidden));
    upward.hidden_moved = dummy_moved;
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    CHECK(vfs::dup_to(ends[1], hidden, 0, true) == hidden);
    CHECK_FALSE(is_hidden(hidden));
    CHECK(sys::write(hidden, "x", 1) == 1);
    const int moved = static_cast<int>(dummy_socket());
    CHECK(moved != hidden);
    CHECK(is_hidden(moved));
    const int fresh = fresh_socket();
    CHECK(fresh >= 0);
    vfs::close(fresh);
    sys::close(hidden);
    sys::close(ends[0]);
    sys::close(ends[1]);
}

TEST_CASE("close_range closes what is the program's and spares what is ours") {
    StreamPair p;
    const int hidden = static_cast<int>(dummy_socket());
    int low[2];
    REQUIRE(::pipe(low) == 0);
    const int base = static_cast<int>(sys::fcntl(low[0], F_DUPFD, 200)), high = hidden + 5;
    const int copy = static_cast<int>(vfs::dup(p.fd[0], 201, false));
    REQUIRE(vfs::dup_to(p.fd[0], high, 0, true) == high);
    CHECK(vfs::close_range(10, 5, 0) == -EINVAL);
    CHECK(vfs::close_range(10, 15, 0x80) == -EINVAL);
    CHECK(vfs::close_range(200, ~0u, 0) == 0);
    CHECK_FALSE(is_open(base));
    CHECK_FALSE(is_open(copy));
    CHECK_FALSE(is_open(high));
    CHECK(file_of(copy) == nullptr);
    CHECK(file_of(high) == nullptr);
    CHECK(is_open(hidden));
    CHECK(is_open(p.fd[0]));
    CHECK(vfs::send(p.fd[0], p.file(0), "x", 1, 0) == 1);
    sys::close(low[0]);
    sys::close(low[1]);
}

TEST_CASE("bytes waiting and bytes that have not arrived") {
    StreamPair p;
    const auto queued = [](int fd, unsigned long request) {
        int v = -1;
        return vfs::ioctl(fd, request, &v) == 0 ? v : -2;
    };
    CHECK(queued(p.fd[1], FIONREAD) == 0);
    CHECK(queued(p.fd[0], SIOCOUTQ) == 0);
    char data[3000] = {};
    CHECK(vfs::send(p.fd[0], p.file(0), data, 10, 0) == 10);
    CHECK(vfs::send(p.fd[0], p.file(0), data, sizeof data, 0) == sizeof data);
    CHECK(queued(p.fd[1], FIONREAD) == 3010);
    CHECK(queued(p.fd[0], SIOCOUTQ) == 0); // the receive buffer has taken them
    CHECK(queued(p.fd[0], SIOCOUTQNSD) == 0);
    CHECK(vfs::recv(p.fd[1], p.file(1), data, 5, 0) == 5);
    CHECK(queued(p.fd[1], FIONREAD) == 3005);
    CHECK(vfs::recv(p.fd[1], p.file(1), data, sizeof data, 0) == sizeof data);
    CHECK(vfs::recv(p.fd[1], p.file(1), data, sizeof data, 0) == 5);
    CHECK(queued(p.fd[1], FIONREAD) == 0);
    CHECK(queued(p.fd[0], SIOCOUTQ) == 0);
}

TEST_CASE("only a channel is taken for the one that the environment names") {
    int channel[2], stream[2], pipes[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel) == 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0);
    REQUIRE(pipe(pipes) == 0);
    const int tcp = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    const int alone = static_cast<int>(sys::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    const auto named = [](int fd) { return control::handed_channel(std::to_string(fd).c_str()); };
    CHECK(named(channel[0]) == channel[0]);
    for (const int other : {stream[0], pipes[0], tcp, alone, 9999})
        CHECK(named(other) == -1);
    for (const char *text : {"", "x", "-1", "1x", "99999999999999999999"})
        CHECK(control::handed_channel(text) == -1);
    for (const int fd : {channel[0], channel[1], stream[0], stream[1], pipes[0], pipes[1], tcp, alone})
        sys::close(fd);
}

// As in a child that was forked just when a thread of its parent closed the connection.
TEST_CASE("who does not hold a connection does not end it") {
    test_link(0);
    unsigned seg = 0;
    uint32_t index = 0;
    Ofd *o = allocate_ofd(1, 0, 0, &seg, &index);
    REQUIRE(o != nullptr);
    segments[seg].view.proc(segments[seg].proc).held[index / 64] &= ~(uint64_t{1} << index % 64);
    CHECK_FALSE(drop_ofd(seg, index));
    CHECK(o->state == static_cast<uint32_t>(OfdState::open));
    hold_ofd(seg, index);
    CHECK(drop_ofd(seg, index));
    free_ofd(seg, index);
}

TEST_CASE("an exec's table that names a number twice frees nothing that it names elsewhere") {
    StreamPair up; // so that there is a process to resume in
    constexpr uint32_t kFiles = 2, kNumbers = 3;
    std::vector<char> bytes(ExecTable::size_for(0, 0, kNumbers));
    auto &table = *reinterpret_cast<ExecTable *>(bytes.data());
    table.magic = kExecMagic;
    table.version = kLayoutVersion;
    table.pid = static_cast<uint32_t>(getpid());
    table.bytes = bytes.size();
    table.channel = table.own_segment = -1;
    table.room = table.numbers = kNumbers;
    table.files = kFiles;
    const int first = static_cast<int>(sys::fcntl(up.fd[0], F_DUPFD_CLOEXEC, 0)),
              second = static_cast<int>(sys::fcntl(up.fd[0], F_DUPFD_CLOEXEC, 0));
    for (uint32_t i = 0; i < kFiles; ++i) {
        table.file()[i].kind = static_cast<uint8_t>(FileKind::fresh);
        table.file()[i].family = AF_INET;
    }
    table.number()[0] = {first, 0};
    table.number()[1] = {first, 1};
    table.number()[2] = {second, 0};
    const int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    REQUIRE(sys::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    resume_after_exec(fd);
    REQUIRE(file_of(first)->kind == FileKind::fresh);
    REQUIRE(file_of(second)->kind == FileKind::fresh);
    REQUIRE(file_of(second) != file_of(first));
    vfs::close(first);
    vfs::close(second);
}
