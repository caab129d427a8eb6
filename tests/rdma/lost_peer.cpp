// Two processes that know nothing of libsd, and one TCP connection, while others end what carries it:
//
//   lost_peer serve PORT SEED SECONDS      takes one connection
//   lost_peer call PORT SEED SECONDS FILE  makes it
//
// Both send the stream that their seed says, and compare what comes with the other's, byte by byte. After
// SECONDS, 0: never, each ends its direction. A reset is an answer for who says so (`may reset` in the
// output); another byte never is. `call` keeps in FILE how many bytes its sends have accepted, for the day on
// which it is killed; `one_way` in place of `serve` sends nothing after the turns.
#include "tests/rdma/tcp_connection.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace {

/// The byte at a place of a stream.
struct Stream {
    uint64_t seed;
    uint8_t at(uint64_t i) const {
        uint64_t x = (i / 8 + 1) * 0x9e3779b97f4a7c15 ^ seed * 0xbf58476d1ce4e5b9;
        x ^= x >> 31;
        x *= 0x94d049bb133111eb;
        return static_cast<uint8_t>(x >> (i % 8 * 8));
    }
};

/// For what `wait` waits for. Who was stopped and goes on may hear of that as of a signal.
template <class Fn> bool waits(Fn wait) {
    int n;
    do
        n = wait();
    while (n < 0 && errno == EINTR);
    return n == 1;
}

time_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/// Sends in a thread of its own, in blocking calls, sometimes after a sleep in poll.
void send_stream(int fd, Stream content, unsigned seconds, volatile uint64_t *accepted, unsigned seed) {
    static uint8_t piece[40'000];
    const time_t end = now() + seconds;
    uint64_t sent = 0;
    while (seconds == 0 || now() < end) {
        const size_t n = rand_r(&seed) % 3 ? rand_r(&seed) % 300 + 1 : rand_r(&seed) % sizeof piece + 1;
        for (size_t i = 0; i < n; ++i)
            piece[i] = content.at(sent + i);
        for (size_t gone = 0; gone < n;) {
            pollfd p{fd, POLLOUT, 0};
            if (rand_r(&seed) % 4 == 0 && !waits([&] { return poll(&p, 1, 60'000); }))
                fail("poll");
            const ssize_t r = send(fd, piece + gone, n - gone, MSG_NOSIGNAL);
            if (r <= 0)
                fail("send");
            gone += static_cast<size_t>(r);
            sent += static_cast<size_t>(r);
            if (accepted)
                *accepted = sent;
        }
        if (rand_r(&seed) % 64 == 0)
            usleep(rand_r(&seed) % 3000);
    }
    if (shutdown(fd, SHUT_WR) != 0)
        fail("shutdown");
    printf("sent %llu\n", static_cast<unsigned long long>(sent));
}

/// Until the end; waits in recv, poll or epoll in turn.
uint64_t receive_stream(int fd, Stream content, unsigned seed) {
    static uint8_t got[64 << 10];
    const int set = epoll_create1(0);
    epoll_event e{EPOLLIN, {}};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) != 0)
        fail("epoll");
    for (uint64_t received = 0;;) {
        const int how = rand_r(&seed) % 3;
        pollfd p{fd, POLLIN, 0};
        if ((how == 1 && !waits([&] { return poll(&p, 1, 60'000); })) ||
            (how == 2 && !waits([&] { return epoll_wait(set, &e, 1, 60'000); }))) {
            fprintf(stderr, "no more after %llu bytes: %s\n", static_cast<unsigned long long>(received),
                    strerror(errno));
            exit(1);
        }
        const ssize_t n = recv(fd, got, rand_r(&seed) % sizeof got + 1, 0);
        if (n < 0) {
            fprintf(stderr, "after %llu bytes: %s\n", static_cast<unsigned long long>(received), strerror(errno));
            exit(1);
        }
        if (n == 0)
            return received;
        for (ssize_t i = 0; i < n; ++i)
            if (const uint64_t at = received + static_cast<uint64_t>(i); got[i] != content.at(at)) {
                fprintf(stderr, "another byte at %llu\n", static_cast<unsigned long long>(at));
                exit(1);
            }
        received += static_cast<uint64_t>(n);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const bool serves = strcmp(argv[1], "call") != 0, sends = strcmp(argv[1], "one_way") != 0;
    const auto seed = static_cast<unsigned>(atoi(argv[3])), seconds = static_cast<unsigned>(atoi(argv[4]));
    volatile uint64_t *accepted = nullptr;
    if (argc > 5) {
        const int file = open(argv[5], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, 8) != 0)
            fail(argv[5]);
        accepted = static_cast<uint64_t *>(mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    }
    const int fd = connection(serves, static_cast<uint16_t>(atoi(argv[2])), "127.0.0.1", "listening\n");
    take_turns(fd, serves);
    printf("moved\n");
    std::thread sender;
    if (sends)
        sender = std::thread(send_stream, fd, Stream{seed * 2 + serves}, seconds, accepted, seed + serves);
    const uint64_t received = receive_stream(fd, Stream{seed * 2 + !serves}, seed + 7 + serves);
    if (sends)
        sender.join();
    printf("received %llu\n", static_cast<unsigned long long>(received));
    return 0;
}
