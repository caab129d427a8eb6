// The monitor's end of a control channel.
#include "monitor/service/packet.hpp"
#include "monitor/kernel/descriptor_kind.hpp"

#include <cerrno>
#include <linux/sockios.h>
#include <sys/ioctl.h>

namespace sd::monitor {

Request::~Request() { close_descriptors(); }

void Request::close_descriptors() {
    for (UniqueFd &fd : fds) {
        if (fd) {
            close_received(std::move(fd), sender.uid);
        }
    }
    fds.clear();
}

Received receive(int channel, Request &request) {
    struct {
        wire::Header header;
        unsigned char body[wire::kMaxBody + 1]; // one more, to see a packet that is too long
    } packet;
    // Room for as many descriptors as can come: what is cut off, the kernel closes before it returns to us.
    constexpr size_t kMostSent = 253; // SCM_MAX_FD
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostSent) + CMSG_SPACE(sizeof(ucred))];
    iovec io{&packet, sizeof packet};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n;
    do {
        n = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return errno == EAGAIN ? Received::nothing : Received::closed;
    }
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET) {
            continue;
        }
        if (c->cmsg_type == SCM_RIGHTS) {
            const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; ++i) {
                int fd;
                std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
                request.fds.emplace_back(fd);
            }
        } else if (c->cmsg_type == SCM_CREDENTIALS) {
            std::memcpy(&request.sender, CMSG_DATA(c), sizeof request.sender);
        }
    }
    if (n == 0) {
        return Received::closed; // nobody sends empty packets, and SOCK_SEQPACKET reports the end this way
    }
    const auto length = static_cast<size_t>(n);
    std::memcpy(&request.header, &packet.header, length < sizeof(wire::Header) ? length : sizeof(wire::Header));
    if (length < sizeof(wire::Header) || (message.msg_flags & MSG_TRUNC) != 0 ||
        request.header.magic != wire::kMagic || !wire::is_served(request.header.version) ||
        request.header.length > wire::kMaxBody || length != sizeof(wire::Header) + request.header.length ||
        request.header.fds > wire::kMaxFds || request.header.fds < request.fds.size()) {
        return Received::malformed;
    }
    if (request.header.fds != request.fds.size()) {
        // The kernel hands over as many as fit. There is room for all in `control`, so it was our table that
        // had none.
        return (message.msg_flags & MSG_CTRUNC) != 0 ? Received::truncated : Received::malformed;
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return Received::malformed;
    }
    std::memcpy(request.body, packet.body, request.header.length);
    return Received::packet;
}

void bound_replies(int channel) {
    // For all packets that have not been received. The kernel makes twice of it.
    constexpr int kBytes = 8192;
    setsockopt(channel, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof kBytes);
}

bool takes_replies(int channel) {
    // Counted with the kernel's own structures, so no packet is as small as this. One that is just being
    // freed counts as a byte until after EPOLLOUT has been told.
    constexpr int kLessThanAny = 128;
    int unread = 0;
    return ioctl(channel, SIOCOUTQ, &unread) != 0 || unread < kLessThanAny;
}

bool wants_no_answer(int channel) {
    wire::Header header{};
    return recv(channel, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT) == sizeof header &&
           header.sequence == wire::kNoAnswer;
}

bool send(int channel, const wire::Header &request, const Reply &reply) {
    wire::Header header{};
    header.magic = wire::kMagic;
    header.version = wire::is_served(request.version) ? request.version : wire::kVersion;
    header.op = request.op;
    header.sequence = request.sequence;
    header.status = reply.status;
    header.cause = static_cast<uint16_t>(reply.cause);
    header.length = reply.length;
    header.fds = static_cast<uint32_t>(reply.fds.size());
    iovec io[2] = {{&header, sizeof header}, {const_cast<unsigned char *>(reply.body), reply.length}};
    msghdr message{};
    message.msg_iov = io;
    message.msg_iovlen = 2;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)]{};
    if (!reply.fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * reply.fds.size());
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * reply.fds.size());
        std::memcpy(CMSG_DATA(c), reply.fds.data(), sizeof(int) * reply.fds.size());
    }
    ssize_t n;
    do {
        n = sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

} // namespace sd::monitor
