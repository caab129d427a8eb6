// Steps that move data, by every call that can.
#include "tests/differential/actor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

extern "C" {
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
}

namespace sd::differential {

namespace {

constexpr size_t kMost = 1 << 18; // bytes of one step

// Each thread its own; grown once.
char *scratch() {
    static thread_local std::vector<char> bytes(kMost + 1);
    return bytes.data();
}

msghdr message_of(iovec *parts, size_t count) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    return message;
}

void give_file(int fd, const char *bytes, size_t size, Observation &o) {
    const int file = memfd_create("data", MFD_CLOEXEC);
    if (write(file, bytes, size) != static_cast<ssize_t>(size)) {
        o.say("no file ");
    }
    off_t offset = 0;
    o.result(sendfile(fd, file, &offset, size));
    close(file);
}

void give_pipe(int fd, const char *bytes, size_t size, int flags, Observation &o) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || write(ends[1], bytes, size) != static_cast<ssize_t>(size)) {
        o.say("no pipe ");
        return;
    }
    o.result(splice(ends[0], nullptr, fd, nullptr, size, (flags & MSG_DONTWAIT) != 0 ? SPLICE_F_NONBLOCK : 0));
    close(ends[0]);
    close(ends[1]);
}

void give_stdio(int fd, const char *bytes, size_t size, Observation &o) {
    const int copy = dup(fd);
    FILE *stream = copy < 0 ? nullptr : fdopen(copy, "w");
    if (stream == nullptr) {
        o.result(-1);
        if (copy >= 0) {
            close(copy);
        }
        return;
    }
    o.say("%zu", fwrite(bytes, 1, size, stream));
    o.result(fflush(stream));
    o.result(fclose(stream));
}

void give(int fd, size_t size, int flags, int variant, int step, Observation &o) {
    if (size > kMost) {
        size = kMost;
    }
    char *bytes = scratch();
    fill_pattern(bytes, size, step);
    const size_t third = size / 3;
    iovec parts[3] = {{bytes, third}, {bytes + third, 0}, {bytes + third, size - third}};
    msghdr message = message_of(parts, 3);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(9);
    switch (variant) {
    case 0:
        return o.result(write(fd, bytes, size));
    case 1:
        return o.result(send(fd, bytes, size, flags));
    case 2:
        return o.result(sendto(fd, bytes, size, flags, nullptr, 0));
    case 3:
        return o.result(sendto(fd, bytes, size, flags, reinterpret_cast<sockaddr *>(&name), sizeof name));
    case 4:
        return o.result(writev(fd, parts, 3));
    case 5:
        return o.result(sendmsg(fd, &message, flags));
    case 6: {
        mmsghdr both[2] = {{message_of(parts, 1), 99}, {message_of(parts + 1, 2), 99}};
        o.result(sendmmsg(fd, both, 2, flags));
        o.say(" %u %u", both[0].msg_len, both[1].msg_len);
        return;
    }
    case 7:
        return o.result(pwritev2(fd, parts, 3, -1, 0));
    case 8:
        return give_file(fd, bytes, size, o);
    case 9:
        return give_pipe(fd, bytes, size > 60000 ? 60000 : size, flags, o);
    case 10:
        return o.result(dprintf(fd, "%.*s", static_cast<int>(size), bytes));
    case 11:
        return give_stdio(fd, bytes, size, o);
    case 12:
        return o.result(send(fd, forbidden_page(), size, flags));
    case 13: // the last part cannot be read
        parts[2].iov_base = forbidden_page();
        return o.result(writev(fd, parts, 3));
    case 14:
        return o.result(writev(fd, parts, size % 2 != 0 ? -1 : 2000));
    case 15:
        return o.result(pwrite(fd, bytes, size, 0));
    case 16:
        return o.result(sendmsg(fd, static_cast<msghdr *>(forbidden_page()), flags));
    case 17: { // a control message of an unknown kind
        char control[CMSG_SPACE(sizeof(int))]{};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
        CMSG_FIRSTHDR(&message)->cmsg_level = size % 2 != 0 ? SOL_SOCKET : IPPROTO_TCP;
        CMSG_FIRSTHDR(&message)->cmsg_type = 77;
        return o.result(sendmsg(fd, &message, flags));
    }
    case 18:
        return o.result(syscall(SYS_write, fd, bytes, size));
    case 19:
        return o.result(syscall(SYS_sendto, fd, bytes, size, flags, nullptr, 0));
    case 20:
        return o.result(syscall(SYS_writev, fd, parts, 3));
    case 21:
        return o.result(pwritev2(fd, parts, 3, 0, 0));
    case 22:
        return o.result(pwritev2(fd, parts, 3, -1, RWF_NOWAIT));
    case 23:
        return o.result(pwritev2(fd, parts, 3, -1, 0x4000));
    case 24:
    case 25:
        return give_request(fd, bytes, size, variant == 25, o);
    case 26: { // descriptors mean nothing to TCP
        char control[CMSG_SPACE(sizeof(int))]{};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        *CMSG_FIRSTHDR(&message) = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
        return o.result(sendmsg(fd, &message, flags));
    }
    default:
        return o.result(send(fd, bytes, 0, flags));
    }
}

void show(long got, const char *bytes, size_t size, Observation &o) {
    o.result(got);
    if (got > 0) {
        // MSG_TRUNC may count bytes that were not stored.
        o.data(bytes, static_cast<size_t>(got) < size ? static_cast<size_t>(got) : size);
    }
}

void get_pipe(int fd, size_t size, int flags, Observation &o) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return o.result(-1);
    }
    const long got =
        splice(fd, nullptr, ends[1], nullptr, size, (flags & MSG_DONTWAIT) != 0 ? SPLICE_F_NONBLOCK : 0);
    o.result(got);
    if (got > 0) {
        const long there = read(ends[0], scratch(), kMost);
        o.data(scratch(), static_cast<size_t>(there < 0 ? 0 : there));
    }
    close(ends[0]);
    close(ends[1]);
}

void get_message(int fd, size_t size, int flags, Observation &o) {
    char *bytes = scratch();
    const size_t third = size / 3;
    iovec parts[2] = {{bytes, third}, {bytes + third, size - third}};
    msghdr message = message_of(parts, 2);
    char control[128];
    sockaddr_storage name{};
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const long got = recvmsg(fd, &message, flags);
    show(got, bytes, size, o);
    if (got >= 0) {
        o.say(" flags %x name %u control %zu", static_cast<unsigned>(message.msg_flags), message.msg_namelen,
              message.msg_controllen);
    }
}

void get_messages(int fd, size_t size, int flags, Observation &o) {
    char *bytes = scratch();
    iovec parts[2] = {{bytes, size / 2}, {bytes + size / 2, size - size / 2}};
    mmsghdr both[2] = {{message_of(parts, 1), 0}, {message_of(parts + 1, 1), 0}};
    timespec limit{0, 20000000};
    const int got = recvmmsg(fd, both, 2, flags, (flags & MSG_DONTWAIT) != 0 ? nullptr : &limit);
    o.result(got);
    for (int i = 0; i < got; ++i) {
        o.say(" %u flags %x", both[i].msg_len, static_cast<unsigned>(both[i].msg_hdr.msg_flags));
        o.data(static_cast<char *>(parts[i].iov_base),
               both[i].msg_len < parts[i].iov_len ? both[i].msg_len : parts[i].iov_len);
    }
}

void get_from(int fd, size_t size, int flags, Observation &o) {
    char *bytes = scratch();
    sockaddr_storage name;
    memset(&name, 'n', sizeof name);
    socklen_t length = sizeof name;
    const long got = recvfrom(fd, bytes, size, flags, reinterpret_cast<sockaddr *>(&name), &length);
    show(got, bytes, size, o);
    o.say(" name %u", length);
}

void get(int fd, size_t size, int flags, int variant, Observation &o) {
    if (size > kMost) {
        size = kMost;
    }
    char *bytes = scratch();
    memset(bytes, '-', size);
    const size_t third = size / 3;
    iovec parts[3] = {{bytes, third}, {bytes + third, 0}, {bytes + third, size - third}};
    switch (variant) {
    case 0:
        return show(read(fd, bytes, size), bytes, size, o);
    case 1:
        return show(recv(fd, bytes, size, flags), bytes, size, o);
    case 2:
        return get_from(fd, size, flags, o);
    case 3:
        return show(readv(fd, parts, 3), bytes, size, o);
    case 4:
        return get_message(fd, size, flags, o);
    case 5:
        return get_messages(fd, size, flags, o);
    case 6:
        return show(preadv2(fd, parts, 3, -1, 0), bytes, size, o);
    case 7:
        return get_pipe(fd, size, flags, o);
    case 8:
        return o.result(recv(fd, forbidden_page(), size, flags));
    case 9: // the last part cannot be written
        parts[2].iov_base = forbidden_page();
        return show(readv(fd, parts, 3), bytes, third, o);
    case 10:
        return o.result(recv(fd, bytes, 0, flags));
    case 11:
        return o.result(pread(fd, bytes, size, 0));
    case 12:
        return o.result(recv(fd, nullptr, size, flags | MSG_TRUNC));
    case 13:
        return o.result(readv(fd, parts, size % 2 != 0 ? -1 : 2000));
    case 14:
        return o.result(recvmsg(fd, static_cast<msghdr *>(forbidden_page()), flags));
    case 15:
        return show(syscall(SYS_read, fd, bytes, size), bytes, size, o);
    case 16:
        return show(syscall(SYS_recvfrom, fd, bytes, size, flags, nullptr, nullptr), bytes, size, o);
    case 17:
    case 18:
        return get_request(fd, bytes, size, variant == 18, o);
    case 19:
        return o.result(preadv2(fd, parts, 3, 0, 0));
    case 20:
        return show(preadv2(fd, parts, 3, -1, RWF_NOWAIT), bytes, size, o);
    case 21:
        return o.result(preadv2(fd, parts, 3, -1, 0x4000));
    case 22:
        return get_stdio(fd, size, o);
    case 23:
        return show(__read_chk(fd, bytes, size, kMost), bytes, size, o);
    default:
        return show(__recv_chk(fd, bytes, size, kMost, flags), bytes, size, o);
    }
}

// How much a connection takes is the kernel's business (LIMITS.md, "buffering"). What is compared
// is that it gets full, and that all that was taken arrives.
void fill(int fd, int step, Observation &o) {
    static constexpr size_t kEnough = 64 << 20;
    char *bytes = scratch();
    size_t total = 0;
    for (;;) {
        const size_t size = 1 + (total * 7 + 10007) % 65521;
        fill_pattern(bytes, size, step, total);
        const long sent = send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            o.say("stopped by %s", strerrorname_np(errno));
            break;
        }
        total += static_cast<size_t>(sent);
        if (total > kEnough) {
            o.say("never full");
            break;
        }
    }
    o.reply.bytes = static_cast<int64_t>(total);
    if (total == 0) {
        o.say(", nothing taken");
    }
}

void huge(int fd, int step, Observation &o) {
    std::vector<char> bytes(static_cast<size_t>(kHugeBytes));
    fill_pattern(bytes.data(), bytes.size(), step);
    const long sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0 && sent < kHugeBytes) {
        o.say("a part");
    } else {
        o.result(sent);
    }
    o.reply.bytes = sent > 0 ? sent : 0;
}

// Reads all of what step `step` sent.
void drain(int fd, size_t expected, int step, Observation &o) {
    char *bytes = scratch();
    size_t total = 0;
    timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (total < expected) {
        const long got = recv(fd, bytes, std::min(kMost, expected - total), MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) {
            timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            if (now.tv_sec - begin.tv_sec > 2) {
                o.say("nothing more came");
                return;
            }
            pollfd entry{fd, POLLIN, 0};
            poll(&entry, 1, 100);
            continue;
        }
        if (got <= 0) {
            o.say("ended early by %s", got == 0 ? kEndOfFile : strerrorname_np(errno));
            return;
        }
        if (first_mismatch(bytes, static_cast<size_t>(got), step, total) != static_cast<size_t>(got)) {
            o.say("WRONG BYTES");
            return;
        }
        total += static_cast<size_t>(got);
    }
    o.say("%s", kAllThere);
}

} // namespace

bool perform_io(Op op, int step, Arguments a, Observation &o) {
    switch (op) {
    case Op::send:
        give(a[0], static_cast<size_t>(a[1]), a[2], a[3], step, o);
        return true;
    case Op::recv:
        get(a[0], static_cast<size_t>(a[1]), a[2], a[3], o);
        return true;
    case Op::fill:
        fill(a[0], step, o);
        return true;
    case Op::huge:
        huge(a[0], step, o);
        return true;
    case Op::drain: // the controller adds the step that sent
        drain(a[0], static_cast<size_t>(a[1]), a[2], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
