// Channels between two measured processes: TCP (with a sockmap on request), AF_UNIX or a pair of pipes, and
// whole-message reads and writes.
#pragma once

#include "bench/common/sockmap.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sd::bench {

struct Duplex {
    int in = -1;
    int out = -1;
};

// How a process waits for its peer: in the call, by asking again and again, or in epoll_wait.
enum class Waiting { blocking, spin, epoll };
[[nodiscard]] Waiting waiting_from(const std::string &name);

[[nodiscard]] int listen_tcp(const std::string &address, std::uint16_t &port, int backlog = 4096);
[[nodiscard]] int connect_tcp(const std::string &address, std::uint16_t port);
[[nodiscard]] int accept_tcp(int listener);
void set_nodelay(int fd);
void set_nonblocking(int fd);
// From now on the epoll set tells when something can be read.
void watch(int epoll, int fd);

// Made before the fork; afterwards one side calls server(), the other client().
class Channel {
  public:
    explicit Channel(const std::string &transport);
    [[nodiscard]] Duplex server();
    [[nodiscard]] Duplex client();
    // For a process that is neither.
    void drop();

  private:
    enum class Kind { tcp, strangers, sockmap, unix_stream, pipe };
    void join_sockmap(Sockmap::End end, int fd) const;
    void become_stranger() const;
    Kind kind_;
    std::uint16_t port_ = 0;
    int listener_ = -1;
    int pair_[2] = {-1, -1};
    int to_server_[2] = {-1, -1};
    int to_client_[2] = {-1, -1};
    pid_t maker_ = -1;
    int port_pipe_[2] = {-1, -1};
    Sockmap sockmap_;
};

// What --via accepts.
constexpr const char *kTransports =
    "tcp, strangers (TCP between two users), sockmap (TCP with a BPF redirect), unix or pipe";

// Moves whole messages over one Duplex. One thread.
class Mover {
  public:
    Mover(Duplex duplex, Waiting waiting);
    ~Mover();
    Mover(const Mover &) = delete;
    Mover &operator=(const Mover &) = delete;

    // False when the peer has gone.
    [[nodiscard]] bool receive(void *buffer, std::size_t size);
    [[nodiscard]] bool send(const void *buffer, std::size_t size);
    void close();

  private:
    [[nodiscard]] bool retry(bool for_write) const;

    Duplex duplex_;
    Waiting waiting_;
    int epoll_ = -1;
};

inline bool Mover::receive(void *buffer, std::size_t size) {
    char *at = static_cast<char *>(buffer);
    std::size_t left = size;
    while (left > 0) {
        const ssize_t got = read(duplex_.in, at, left);
        if (got > 0) {
            at += got;
            left -= static_cast<std::size_t>(got);
        } else if (got == 0 || !retry(false)) {
            return false;
        }
    }
    return true;
}

inline bool Mover::send(const void *buffer, std::size_t size) {
    const char *at = static_cast<const char *>(buffer);
    std::size_t left = size;
    while (left > 0) {
        const ssize_t put = write(duplex_.out, at, left);
        if (put > 0) {
            at += put;
            left -= static_cast<std::size_t>(put);
        } else if (!retry(true)) {
            return false;
        }
    }
    return true;
}

} // namespace sd::bench
