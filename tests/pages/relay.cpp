// A relay that knows nothing of pages: passes on what it gets, unread. Used by three processes:
//   pages_relay receive BYTES                  prints "port N"; then checks what comes
//   pages_relay relay PORT SHIFT               prints "port N"; passes all on to PORT, through a buffer that
//                                              begins SHIFT bytes behind a page's start
//   pages_relay send PORT BYTES
// Each byte follows from its place in the stream.
#include "tests/pages/torture.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

using namespace torture;

namespace torture {
bool device_there = true;
}

namespace {

constexpr size_t kBuffer = 1 << 20;

int listen_and_tell(int *listener) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof a;
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(*listener, reinterpret_cast<sockaddr *>(&a), n) == 0 && listen(*listener, 1) == 0 &&
            getsockname(*listener, reinterpret_cast<sockaddr *>(&a), &n) == 0);
    printf("port %u\n", ntohs(a.sin_port));
    fflush(stdout);
    const int fd = accept(*listener, nullptr, nullptr);
    REQUIRE(fd >= 0);
    return fd;
}

int connect_to(const char *port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(strtoul(port, nullptr, 10)));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(fd, reinterpret_cast<sockaddr *>(&a), sizeof a) == 0);
    return fd;
}

/// Of 8 bytes at a time.
uint64_t word_at(uint64_t place) { return (place + 1) * 0x9e3779b97f4a7c15u; }

char *memory(size_t n) {
    char *const p = static_cast<char *>(malloc(n));
    REQUIRE(p);
    memset(p, 1, n);
    return p;
}

void send_all(int fd, const char *from, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t sent = send(fd, from + done, n - done, 0);
        REQUIRE(sent > 0);
        done += static_cast<size_t>(sent);
    }
}

size_t receive_up_to(int fd, char *to, size_t n) {
    const ssize_t got = recv(fd, to, n, MSG_WAITALL);
    REQUIRE(got >= 0);
    return static_cast<size_t>(got);
}

void sends(const char *port, size_t bytes) {
    const int fd = connect_to(port);
    auto *const words = reinterpret_cast<uint64_t *>(memory(kBuffer));
    for (size_t at = 0; at < bytes; at += kBuffer) {
        for (size_t i = 0; i < kBuffer / 8; ++i)
            words[i] = word_at(at / 8 + i);
        send_all(fd, reinterpret_cast<char *>(words), kBuffer);
    }
    shutdown(fd, SHUT_WR);
    char end;
    REQUIRE(recv(fd, &end, 1, 0) == 1);
}

void relays(const char *port, size_t shift) {
    int listener;
    const int to = connect_to(port), from = listen_and_tell(&listener);
    char *const buffer = memory(kBuffer + 4096) + shift;
    while (const size_t n = receive_up_to(from, buffer, kBuffer))
        send_all(to, buffer, n);
    shutdown(to, SHUT_WR);
    char end;
    REQUIRE(recv(to, &end, 1, 0) == 1 && send(from, &end, 1, 0) == 1);
}

void receives(size_t bytes) {
    int listener;
    const int fd = listen_and_tell(&listener);
    auto *const words = reinterpret_cast<uint64_t *>(memory(kBuffer));
    for (size_t at = 0; at < bytes; at += kBuffer) {
        REQUIRE(receive_up_to(fd, reinterpret_cast<char *>(words), kBuffer) == kBuffer);
        for (size_t i = 0; i < kBuffer / 8; ++i)
            REQUIRE(words[i] == word_at(at / 8 + i));
    }
    REQUIRE(receive_up_to(fd, reinterpret_cast<char *>(words), 1) == 0);
    puts("all arrived");
    fflush(stdout);
    if (getenv("PAGES_WAIT")) { // until the counts were looked at
        char c;
        (void)!read(0, &c, 1);
    }
    REQUIRE(send(fd, "", 1, 0) == 1);
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    alarm(600);
    if (strcmp(argv[1], "receive") == 0)
        receives(strtoul(argv[2], nullptr, 10));
    else if (argc < 4)
        return 2;
    else if (strcmp(argv[1], "relay") == 0)
        relays(argv[2], strtoul(argv[3], nullptr, 10));
    else
        sends(argv[2], strtoul(argv[3], nullptr, 10));
    return 0;
}
