// One TCP connection of a program that knows nothing of libsd. To be included once in a program.
#pragma once
#include <arpa/inet.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/socket.h>
#include <unistd.h>

[[noreturn]] inline void fail(const char *what) {
    perror(what);
    exit(1);
}

/// `serves`: takes the first one, and prints `listening` before. Else it tries for half a minute.
inline int connection(bool serves, uint16_t port, const char *ip, const char *listening = "") {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    if (inet_pton(AF_INET, ip, &at.sin_addr) != 1)
        exit(2);
    const auto *address = reinterpret_cast<const sockaddr *>(&at);
    if (serves) {
        const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
            bind(listener, address, sizeof at) != 0 || listen(listener, 1) != 0)
            fail("listen");
        fputs(listening, stdout);
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0)
            fail("accept");
        return fd;
    }
    for (int tries = 0;; ++tries) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0)
            fail("socket");
        if (connect(fd, address, sizeof at) == 0)
            return fd;
        if (tries == 600)
            fail("connect");
        close(fd); // nobody listens yet
        usleep(50'000);
    }
}

/// Single bytes to and fro; who does not serve begins. What begins in the kernel has moved by then.
inline void take_turns(int fd, bool serves) {
    for (int i = 0; i < 600; ++i) {
        auto byte = static_cast<uint8_t>(i);
        if ((i % 2 == 0) == serves) {
            byte = static_cast<uint8_t>(~i);
            if (recv(fd, &byte, 1, 0) != 1 || byte != static_cast<uint8_t>(i))
                fail("another byte than was sent");
        } else if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) {
            fail("send");
        }
    }
}
