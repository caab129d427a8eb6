// A library that the program `loading` opens. It uses sockets of its own and of the program.
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PLUGIN extern "C" __attribute__((visibility("default")))

namespace {

struct Calls {
    ssize_t (*send)(int, const void *, size_t, int);
    int (*shutdown)(int, int);
};
// Addresses in data, which the dynamic linker fills in.
const Calls calls = {send, shutdown};
Calls changeable = {send, shutdown};

} // namespace

/// Has a name of libc's: the library's own calls are to come here.
PLUGIN int sockatmark(int) noexcept { return 42; }

PLUGIN int plugin_own_function(int fd) { return sockatmark(fd); }

/// Answers what comes: poll, recv, and the same back with write. Returns the bytes, or -1.
PLUGIN long plugin_echo(int fd) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, 5000) != 1)
        return -1;
    char text[64];
    const ssize_t n = recv(fd, text, sizeof text, 0);
    return n < 0 ? -1 : write(fd, text, static_cast<size_t>(n));
}

PLUGIN long plugin_send_through_tables(int fd) {
    // What was const is in memory that is read-only by now.
    return calls.send(fd, "one ", 4, 0) + changeable.send(fd, "two", 3, 0) + calls.shutdown(fd, SHUT_WR);
}

PLUGIN int plugin_connect(const sockaddr *address, socklen_t length) {
    const int fd = socket(address->sa_family, SOCK_STREAM, 0);
    return fd >= 0 && connect(fd, address, length) == 0 ? fd : -1;
}

PLUGIN int plugin_listen() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return fd >= 0 && bind(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 &&
                   listen(fd, 5) == 0
               ? fd
               : -1;
}

PLUGIN int plugin_accept(int fd) { return accept(fd, nullptr, nullptr); }

PLUGIN int plugin_close(int fd) { return close(fd); }
