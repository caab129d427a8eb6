// Steps that hand descriptors to other actors through AF_UNIX.
#include "tests/differential/actor.hpp"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace sd::differential {

bool perform_passing(Op op, int, Arguments a, Observation &o) {
    if (op != Op::pass && op != Op::take_passed) {
        return false;
    }
    char byte = 'p';
    iovec part{&byte, 1};
    union {
        cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    if (op == Op::pass) {
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &a[0], sizeof(int));
        o.result(sendmsg(mailbox_out(a[1]), &message, MSG_DONTWAIT));
        return true;
    }
    const long got = recvmsg(mailbox_in(own_actor), &message, MSG_DONTWAIT | (a[0] == 1 ? MSG_CMSG_CLOEXEC : 0));
    o.result(got);
    const cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
        int fd;
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
        o.made(fd);
    }
    return true;
}

} // namespace sd::differential
