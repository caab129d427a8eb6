// Channels between two measured processes.
#include "bench/common/net.hpp"

#include "bench/common/process.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <csignal>

namespace sd::bench {

namespace {

sockaddr_in make_address(const std::string &address, std::uint16_t port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &result.sin_addr) != 1) {
        errno = EINVAL;
        die(address.c_str());
    }
    return result;
}

} // namespace

Waiting waiting_from(const std::string &name) {
    if (name == "blocking") {
        return Waiting::blocking;
    }
    if (name == "spin") {
        return Waiting::spin;
    }
    if (name == "epoll") {
        return Waiting::epoll;
    }
    errno = 0;
    die("--mode must be blocking, spin or epoll");
}

int listen_tcp(const std::string &address, std::uint16_t &port, int backlog) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        die("socket");
    }
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in name = make_address(address, port);
    if (bind(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) {
        die("bind");
    }
    if (listen(fd, backlog) != 0) {
        die("listen");
    }
    socklen_t size = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&name), &size) != 0) {
        die("getsockname");
    }
    port = ntohs(name.sin_port);
    return fd;
}

int connect_tcp(const std::string &address, std::uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        die("socket");
    }
    const sockaddr_in name = make_address(address, port);
    if (connect(fd, reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0) {
        die("connect");
    }
    return fd;
}

int accept_tcp(int listener) {
    for (;;) {
        const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) {
            return fd;
        }
        if (errno != EINTR && errno != ECONNABORTED) {
            die("accept4");
        }
    }
}

void set_nodelay(int fd) {
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        die("TCP_NODELAY");
    }
}

void watch(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        die("epoll_ctl");
    }
}

void set_nonblocking(int fd) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        die("O_NONBLOCK");
    }
}

Channel::Channel(const std::string &transport) {
    if (transport == "tcp") {
        kind_ = Kind::tcp;
        listener_ = listen_tcp("127.0.0.1", port_);
    } else if (transport == "strangers") {
        kind_ = Kind::strangers;
        maker_ = getpid();
        if (pipe2(port_pipe_, O_CLOEXEC) != 0) {
            die("pipe2");
        }
    } else if (transport == "sockmap") {
        kind_ = Kind::sockmap;
        listener_ = listen_tcp("127.0.0.1", port_);
        sockmap_.load(port_);
    } else if (transport == "unix") {
        kind_ = Kind::unix_stream;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_) != 0) {
            die("socketpair");
        }
    } else if (transport == "pipe") {
        kind_ = Kind::pipe;
        if (pipe2(to_server_, O_CLOEXEC) != 0 || pipe2(to_client_, O_CLOEXEC) != 0) {
            die("pipe2");
        }
    } else {
        errno = 0;
        die("--via must be tcp, strangers, sockmap, unix or pipe");
    }
}

// Of the two processes, that which was forked; before it has a socket.
void Channel::become_stranger() const {
    if (getpid() != maker_) {
        become_other_user();
    }
}

void Channel::join_sockmap(Sockmap::End end, int fd) const {
    if (kind_ != Kind::sockmap) {
        return;
    }
    sockmap_.insert(end, fd);
    while (!sockmap_.complete()) {
        usleep(100);
    }
}

Duplex Channel::server() {
    switch (kind_) {
    case Kind::tcp:
    case Kind::sockmap: {
        const int fd = accept_tcp(listener_);
        ::close(listener_);
        join_sockmap(Sockmap::End::server, fd);
        return {fd, fd};
    }
    case Kind::strangers: {
        become_stranger();
        const int listener = listen_tcp("127.0.0.1", port_);
        if (write(port_pipe_[1], &port_, sizeof port_) != sizeof port_) {
            die("write");
        }
        const int fd = accept_tcp(listener);
        ::close(listener);
        return {fd, fd};
    }
    case Kind::unix_stream:
        ::close(pair_[1]);
        return {pair_[0], pair_[0]};
    case Kind::pipe:
        ::close(to_server_[1]);
        ::close(to_client_[0]);
        return {to_server_[0], to_client_[1]};
    }
    return {};
}

Duplex Channel::client() {
    switch (kind_) {
    case Kind::tcp:
    case Kind::sockmap: {
        ::close(listener_);
        const int fd = connect_tcp("127.0.0.1", port_);
        join_sockmap(Sockmap::End::client, fd);
        return {fd, fd};
    }
    case Kind::strangers: {
        become_stranger();
        if (read(port_pipe_[0], &port_, sizeof port_) != sizeof port_) {
            die("read");
        }
        const int fd = connect_tcp("127.0.0.1", port_);
        return {fd, fd};
    }
    case Kind::unix_stream:
        ::close(pair_[0]);
        return {pair_[1], pair_[1]};
    case Kind::pipe:
        ::close(to_server_[0]);
        ::close(to_client_[1]);
        return {to_client_[0], to_server_[1]};
    }
    return {};
}

void Channel::drop() {
    for (int *fd : {&port_pipe_[0], &port_pipe_[1], &listener_, &pair_[0], &pair_[1], &to_server_[0],
                    &to_server_[1], &to_client_[0], &to_client_[1]}) {
        if (*fd >= 0) {
            ::close(*fd);
            *fd = -1;
        }
    }
}

Mover::Mover(Duplex duplex, Waiting waiting) : duplex_(duplex), waiting_(waiting) {
    std::signal(SIGPIPE, SIG_IGN);
    if (waiting_ == Waiting::blocking) {
        return;
    }
    set_nonblocking(duplex_.in);
    if (waiting_ == Waiting::epoll) {
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = duplex_.in;
        if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, duplex_.in, &event) != 0) {
            die("epoll_ctl");
        }
    }
}

Mover::~Mover() { close(); }

void Mover::close() {
    if (duplex_.in >= 0) {
        ::close(duplex_.in);
    }
    if (duplex_.out >= 0 && duplex_.out != duplex_.in) {
        ::close(duplex_.out);
    }
    if (epoll_ >= 0) {
        ::close(epoll_);
    }
    duplex_ = {};
    epoll_ = -1;
}

// After a call that moved nothing: true when it is worth trying again.
bool Mover::retry(bool for_write) const {
    if (errno == EINTR) {
        return true;
    }
    if (errno == EAGAIN) {
        if (waiting_ == Waiting::epoll && !for_write) {
            epoll_event event{};
            return epoll_wait(epoll_, &event, 1, -1) >= 0 || errno == EINTR;
        }
        return true; // spinning, or a full buffer that the peer is emptying
    }
    if (errno == EPIPE || errno == ECONNRESET || errno == EACCES) { // EACCES: the peer has left the sockmap
        return false;
    }
    die(for_write ? "write" : "read");
}

} // namespace sd::bench
