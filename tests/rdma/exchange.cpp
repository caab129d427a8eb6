// Two processes that know nothing of libsd exchange bytes over one TCP connection, both ways at once, and
// each prints the sums of what it has sent and received. Whoever runs them compares the sums. Before that
// they take turns with single bytes: what begins in the kernel has moved by then, where it moves.
//
//   exchange serve PORT BYTES SEED [ADDRESS]     waits for one connection
//   exchange call PORT BYTES SEED [ADDRESS]      makes it
//
// With an address (else it is that of lo) the two may be on two hosts: each looks whether what it received is
// what the other one's seed says, and the connection stays, whole, until standard input ends.
#include "tests/rdma/tcp_connection.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

/// A stream of bytes that the seed says, and pieces of it of 1 byte to 64 KiB.
struct Stream {
    uint64_t state;
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
};

/// FNV-1a: where it differs, a byte was lost, repeated, changed or moved.
struct Sum {
    uint64_t value = 0xcbf29ce484222325;
    void add(const uint8_t *bytes, size_t n) {
        for (size_t i = 0; i < n; ++i)
            value = (value ^ bytes[i]) * 0x100000001b3;
    }
};

} // namespace

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6)
        return 2;
    const bool serves = strcmp(argv[1], "serve") == 0;
    const int fd = connection(serves, static_cast<uint16_t>(atoi(argv[2])), argc == 6 ? argv[5] : "127.0.0.1");
    take_turns(fd, serves);
    const uint64_t bytes = strtoull(argv[3], nullptr, 10);
    Stream content{strtoull(argv[4], nullptr, 10) * 2 + 1 + serves}, sizes{content.state + 77};
    Sum out, in;
    static uint8_t piece[64 << 10], got[64 << 10];
    size_t length = 0, gone = 0;
    uint64_t sent = 0, received = 0;
    bool ended = false;
    const bool stays = argc == 6;
    while (sent < bytes || (stays ? received < bytes : !ended)) {
        pollfd p{fd, static_cast<short>(POLLIN | (sent < bytes ? POLLOUT : 0)), 0};
        if (poll(&p, 1, 60'000) != 1)
            fail("poll");
        if (p.revents & POLLOUT) {
            if (gone == length) {
                length = sizes.next() % 4 ? sizes.next() % 256 + 1 : sizes.next() % sizeof piece + 1;
                length = length < bytes - sent ? length : bytes - sent;
                gone = 0;
                for (size_t i = 0; i < length; ++i)
                    piece[i] = static_cast<uint8_t>(content.next() >> 24);
            }
            const ssize_t n = send(fd, piece + gone, length - gone, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0)
                fail("send");
            out.add(piece + gone, static_cast<size_t>(n));
            gone += static_cast<size_t>(n);
            sent += static_cast<size_t>(n);
            if (sent == bytes && !stays && shutdown(fd, SHUT_WR) != 0)
                fail("shutdown");
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            const ssize_t n = recv(fd, got, sizes.next() % sizeof got + 1, MSG_DONTWAIT);
            if (n < 0 || (n == 0 && stays))
                fail("recv");
            ended = n == 0;
            in.add(got, static_cast<size_t>(n));
            received += static_cast<size_t>(n);
        }
    }
    printf("%s sent %llu %016llx received %llu %016llx\n", argv[1], static_cast<unsigned long long>(sent),
           static_cast<unsigned long long>(out.value), static_cast<unsigned long long>(received),
           static_cast<unsigned long long>(in.value));
    fflush(stdout);
    if (!stays)
        return received == bytes ? 0 : 1;
    Stream theirs{strtoull(argv[4], nullptr, 10) * 2 + 1 + !serves};
    Sum expected;
    for (uint64_t i = 0; i < bytes; ++i) {
        const auto byte = static_cast<uint8_t>(theirs.next() >> 24);
        expected.add(&byte, 1);
    }
    for (char byte; read(STDIN_FILENO, &byte, 1) > 0;)
        ;
    return expected.value == in.value ? 0 : 1;
}
