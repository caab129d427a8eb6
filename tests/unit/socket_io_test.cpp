// What a connection with paths reads at its kernel socket.
#include "tests/unit/stream_pair.hpp"

#include "libsd/cpu/instructions.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include <string>
#include <sys/ioctl.h>
#include <thread>

using namespace sd;
using namespace sd::test;

namespace {

struct Read {
    long result;
    bool ends = false;
    std::string bytes;
};

/// A further read of a call that has bytes.
Read read_more(int fd, size_t want) {
    char room[64];
    iovec piece{room, sizeof room};
    IoCursor to{&piece, 1};
    Read r{};
    r.result = receive_more_from_socket(fd, to, want, 0, &r.ends);
    r.bytes.assign(room, r.result > 0 ? static_cast<size_t>(r.result) : 0);
    return r;
}

void set_inline(int fd, int on) {
    REQUIRE(sys::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
}

void send_urgent(int fd) { REQUIRE(sys::call(SYS_sendto, fd, sys::arg("!"), 1, MSG_OOB, 0, 0) == 1); }

} // namespace

TEST_CASE("a call that has bytes ends before an urgent byte") {
    const int in_line = GENERATE(0, 1);
    KernelPair k;
    set_inline(k.fd[1], in_line);
    Read r = read_more(k.fd[1], 5);
    CHECK((r.result == -EAGAIN && !r.ends));
    REQUIRE(sys::call(SYS_sendto, k.fd[0], sys::arg("ab"), 2, 0, 0, 0) == 2);
    send_urgent(k.fd[0]);
    r = read_more(k.fd[1], 5);
    CHECK((r.bytes == "ab" && !r.ends));
    r = read_more(k.fd[1], 5);
    CHECK((r.result == -EAGAIN && r.ends));
    char byte = 0; // it is still there
    CHECK(sys::call(SYS_recvfrom, k.fd[1], sys::arg(&byte), 1, in_line ? 0 : MSG_OOB, 0, 0) == 1);
    CHECK(byte == '!');
}

TEST_CASE("a call that has bytes is told of an end") {
    KernelPair k;
    REQUIRE(sys::call(SYS_shutdown, k.fd[0], SHUT_WR) == 0);
    CHECK(read_more(k.fd[1], 5).result == 0);
    KernelPair other;
    const linger now{1, 0};
    REQUIRE(sys::setsockopt(other.fd[0], SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    sys::close(other.fd[0]);
    other.fd[0] = -1;
    CHECK(read_more(other.fd[1], 5).result == -ECONNRESET);
}

TEST_CASE("an urgent byte that comes while a call reads on is not read over") {
    for (int round = 0; round < 2000; ++round) {
        KernelPair k;
        set_inline(k.fd[1], 1);
        std::thread sender([&] {
            for (int i = 0; i < round % 64; ++i)
                cpu::pause();
            send_urgent(k.fd[0]);
        });
        Read r{-EAGAIN, false, {}};
        while (r.result == -EAGAIN && !r.ends)
            r = read_more(k.fd[1], 5);
        sender.join();
        REQUIRE(r.ends);
    }
}

TEST_CASE("a read of many pieces ends before an urgent byte") {
    KernelPair k;
    set_inline(k.fd[1], 1);
    char bytes[100] = {};
    REQUIRE(sys::call(SYS_sendto, k.fd[0], sys::arg(bytes), 64, 0, 0, 0) == 64);
    send_urgent(k.fd[0]);
    iovec pieces[100];
    for (unsigned i = 0; i < 100; ++i)
        pieces[i] = {&bytes[i], 1};
    IoCursor to{pieces, 100};
    CHECK(receive_from_socket(k.fd[1], to, 100, 0) == 64);
}
