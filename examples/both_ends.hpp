// What the examples have in common: a connection of this host with a process at each end.
#pragma once
#include "socksdirect/buffers.hpp"

#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <netinet/in.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace example {

[[noreturn]] inline void fail(const char *what) {
    std::perror(what);
    std::exit(1);
}
inline int must(const char *what, int result) {
    if (result < 0)
        fail(what);
    return result;
}

class Listener {
  public:
    Listener() : fd_(must("socket", socket(AF_INET, SOCK_STREAM, 0))) {
        name_.sin_family = AF_INET;
        name_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof name_;
        must("bind", bind(fd_, address(), size));
        must("listen", listen(fd_, 8));
        must("getsockname", getsockname(fd_, address(), &size));
    }
    int connect() {
        const int fd = must("socket", socket(AF_INET, SOCK_STREAM, 0));
        must("connect", ::connect(fd, address(), sizeof name_));
        return fd;
    }
    int accept() { return must("accept", ::accept(fd_, nullptr, nullptr)); }

  private:
    sockaddr *address() { return reinterpret_cast<sockaddr *>(&name_); }
    int fd_;
    sockaddr_in name_{};
};

/// Runs `server` in a child, and `client` here. The program's status.
inline int run(const std::function<void(Listener &)> &server, const std::function<void(Listener &)> &client) {
    Listener listener;
    const pid_t child = must("fork", fork());
    if (child == 0) {
        server(listener);
        std::exit(0);
    }
    client(listener);
    int status = 0;
    must("waitpid", waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/// FNV-1a, of eight bytes at a time.
inline uint64_t hash_of(const std::byte *data, size_t size, uint64_t hash = 14695981039346656037ull) {
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        __builtin_memcpy(&word, data + i, size - i < 8 ? size - i : 8);
        hash = (hash ^ word) * 1099511628211ull;
    }
    return hash;
}

inline void show_counts(const socksdirect::Buffers &buffers) {
    const sd_buffers_counts counts = buffers.counts();
    std::printf("received in place %llu, copied %llu\n",
                static_cast<unsigned long long>(counts.received_in_place),
                static_cast<unsigned long long>(counts.received_copied));
}

} // namespace example
