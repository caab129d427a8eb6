// The other end of libsd's channel to the monitor, without a monitor: the answers to the next requests lie
// ready before they are made. A request for which none does fails, and the channel with it.
#pragma once
#include "libsd/control/channel.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/packets.hpp"
#include "libsd/layout/protocol.hpp"
#include "tests/fuzz/memory.hpp"

#include <array>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

namespace sdfuzz {

class FakeMonitor {
  public:
    /// A new channel if there is none any more, and nothing in it.
    void begin() {
        if (sd::control::chan.load() < 0) {
            close(far_);
            int pair[2];
            must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
            const long hidden = sd::hide_fd(pair[0]);
            must(hidden >= 0);
            far_ = pair[1];
            sd::control::chan.store(static_cast<int>(hidden));
        }
        drain(far_);
        drain(sd::control::chan.load());
        next_ = sd::control::next_sequence() + 1;
    }
    /// The answer to the next request that has none yet; the descriptors stay the caller's.
    void answer(const void *body, size_t length, const int *fds, unsigned count, int status = 0) {
        answer_as(sd::control::make_header(sd::wire::Op::hello, next_, length, count), body, fds, status);
        ++next_;
    }
    void answer_as(sd::wire::Header h, const void *body, const int *fds, int status) const {
        h.status = status;
        (void)sd::control::send_packet(far_, h, body, fds, MSG_DONTWAIT);
    }
    uint32_t next() const { return next_; }
    /// Has libsd closed its end?
    bool hung_up() const {
        pollfd p{far_, 0, 0};
        return poll(&p, 1, 0) > 0 && (p.revents & POLLHUP) != 0;
    }
    /// One that is no request of ours yet: an answer to another one, or rubbish.
    void say(const void *packet, size_t bytes) const {
        (void)send(far_, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }

  private:
    static void drain(int fd) {
        for (;;) {
            std::array<char, 2048> packet;
            alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
            iovec io{packet.data(), packet.size()};
            msghdr m{};
            m.msg_iov = &io;
            m.msg_iovlen = 1;
            m.msg_control = control.data();
            m.msg_controllen = control.size();
            if (recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) {
                return;
            }
            for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
                for (size_t i = 0; (i + 1) * sizeof(int) <= c->cmsg_len - CMSG_LEN(0); ++i) {
                    int passed;
                    memcpy(&passed, CMSG_DATA(c) + i * sizeof passed, sizeof passed);
                    close(passed);
                }
            }
        }
    }
    int far_ = -1;
    uint32_t next_ = 0;
};

} // namespace sdfuzz
