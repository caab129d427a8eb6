// Passing descriptors over AF_UNIX.
#pragma once
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/un.h>

namespace sdtest {

constexpr int kMost = 8;

struct Control {
    alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int) * kMost)] = {};
};

inline void fill(msghdr &message, iovec &part, Control &control, const std::vector<int> &fds) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
}

inline long pass(int channel, const std::vector<int> &fds) {
    char byte = 'd';
    iovec part{&byte, 1};
    Control control;
    msghdr message;
    fill(message, part, control, fds);
    return sendmsg(channel, &message, 0);
}

inline std::vector<int> take(int channel, int flags = 0) {
    char byte;
    iovec part{&byte, 1};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    std::vector<int> fds;
    if (MUST(recvmsg(channel, &message, flags)) == 0)
        return fds;
    if (const cmsghdr *header = CMSG_FIRSTHDR(&message)) {
        fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    }
    return fds;
}

struct Channel {
    int parent, child;
    Channel() {
        int ends[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        parent = ends[0];
        child = ends[1];
    }
};

} // namespace sdtest
