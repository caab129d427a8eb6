// How the two sides of a script of verbs meet: a TCP connection, over which they tell each other their
// numbers and keys, and wait for each other.
#pragma once
#include <arpa/inet.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::verbs {

class Rendezvous {
  public:
    /// Side 0 listens, side 1 tries for half a minute.
    Rendezvous(unsigned side, const char *address, uint16_t port) {
        sockaddr_in a{};
        a.sin_family = AF_INET;
        a.sin_port = htons(port);
        inet_pton(AF_INET, address, &a.sin_addr);
        const auto *where = reinterpret_cast<const sockaddr *>(&a);
        if (side == 0) {
            const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
            setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (bind(listener, where, sizeof a) != 0 || listen(listener, 1) != 0)
                fail("listen");
            fd_ = accept(listener, nullptr, nullptr);
            close(listener);
        } else {
            for (int tries = 0; tries < 300; ++tries) {
                fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                if (connect(fd_, where, sizeof a) == 0)
                    break;
                close(fd_);
                fd_ = -1;
                usleep(100'000);
            }
        }
        if (fd_ < 0)
            fail("connect");
        const int on = 1;
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    ~Rendezvous() { close(fd_); }
    Rendezvous(const Rendezvous &) = delete;
    Rendezvous &operator=(const Rendezvous &) = delete;

    template <class T> T exchange(const T &mine) {
        T theirs{};
        if (send(fd_, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine)
            fail("send");
        if (recv(fd_, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
            fail("the other side has ended");
        return theirs;
    }
    /// The other side has come as far as this.
    void meet(uint32_t where) {
        if (exchange(where) != where)
            fail("the two sides are at different lines");
    }

  private:
    [[noreturn]] static void fail(const char *what) {
        perror(what);
        exit(2);
    }
    int fd_ = -1;
};

} // namespace sd::verbs
