// Things that are not TCP sockets: they must work as ever.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/membarrier.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

using namespace sdtest;

BEHAVIOUR("UDP", udp, untouched) {
    const Address any = make_address("127.0.0.1", 0);
    const int one = MUST(socket(AF_INET, SOCK_DGRAM, 0)), two = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(bind(one, any.raw(), any.length));
    MUST(bind(two, any.raw(), any.length));
    const Address to = local_address(two);
    SHOW(sendto(one, "datagram", 8, 0, to.raw(), to.length));
    SHOW(sendto(one, "", 0, 0, to.raw(), to.length));
    char buffer[16] = {};
    Address from;
    SHOW(recvfrom(two, buffer, 4, MSG_TRUNC, from.raw(), &from.length));
    say("%.4s from %s", buffer, from.host().c_str());
    SHOW(recvfrom(two, buffer, sizeof buffer, 0, nullptr, nullptr));
    SHOW(recv(two, buffer, sizeof buffer, MSG_DONTWAIT));
    SHOW(connect(one, to.raw(), to.length));
    SHOW(write(one, "connected", 9));
    SHOW(read(two, buffer, sizeof buffer));
    SHOW(get_option(one, SOL_SOCKET, SO_TYPE));
    show_ready("one", one);
}

BEHAVIOUR("AF_UNIX", unix_stream, untouched) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "sd-behaviour-%d", getpid());
    const auto *address = reinterpret_cast<const sockaddr *>(&name);
    const int listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW(bind(listener, address, sizeof name));
    SHOW(listen(listener, 5));
    const int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW(connect(client, address, sizeof name));
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW(send(client, "local", 5, 0));
    say("%s", receive(server, 5).c_str());
    ucred who{};
    socklen_t length = sizeof who;
    SHOW(getsockopt(server, SOL_SOCKET, SO_PEERCRED, &who, &length));
    SHOW_BOOL(who.pid == getpid());
    close(client);
    say("rest %zu", receive_to_end(server).size());
}

BEHAVIOUR("socketpair", socket_pairs, untouched) {
    for (const int type : {+SOCK_STREAM, +SOCK_DGRAM, +SOCK_SEQPACKET}) {
        int ends[2];
        SHOW(socketpair(AF_UNIX, type, 0, ends));
        SHOW(write(ends[0], "abc", 3));
        SHOW(write(ends[0], "def", 3));
        char buffer[16];
        SHOW(read(ends[1], buffer, 2));
        SHOW(read(ends[1], buffer, sizeof buffer));
        close(ends[0]);
        close(ends[1]);
    }
}

BEHAVIOUR("pipes", pipes, untouched) {
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK));
    char buffer[16];
    SHOW(read(ends[0], buffer, 1));
    SHOW(write(ends[1], "pipe", 4));
    show_ready("read end", ends[0]);
    show_ready("write end", ends[1]);
    SHOW(read(ends[0], buffer, sizeof buffer));
    close(ends[1]);
    SHOW(read(ends[0], buffer, 1));
    show_ready("read end", ends[0]);
    MUST(pipe(ends));
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    SHOW(write(ends[1], "x", 1));
}

BEHAVIOUR("files", files, untouched) {
    const int one = MUST(memfd_create("one", 0)), two = MUST(memfd_create("two", 0));
    SHOW(write(one, "0123456789", 10));
    char buffer[16];
    SHOW(pread(one, buffer, 4, 3));
    say("%.4s", buffer);
    SHOW(lseek(one, 2, SEEK_SET));
    SHOW(sendfile(two, one, nullptr, 5));
    SHOW(lseek(two, 0, SEEK_END));
    SHOW(pwrite(one, "ab", 2, 0));
    iovec part{buffer, 5};
    SHOW(preadv2(one, &part, 1, 0, 0));
    say("%.5s", buffer);
    SHOW(ftruncate(one, 3));
    struct stat status {};
    SHOW(fstat(one, &status));
    say("%ld", static_cast<long>(status.st_size));
}

BEHAVIOUR("netlink", netlink, untouched) {
    const int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    struct {
        nlmsghdr header;
        rtgenmsg body;
    } request{};
    request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.body);
    request.header.nlmsg_type = RTM_GETLINK;
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.body.rtgen_family = AF_UNSPEC;
    SHOW_BOOL(send(fd, &request, request.header.nlmsg_len, 0) > 0);
    char buffer[16384];
    SHOW_BOOL(recv(fd, buffer, sizeof buffer, 0) > 0);
}

BEHAVIOUR("eventfd", event_counter, untouched) {
    const int fd = MUST(eventfd(3, EFD_NONBLOCK));
    uint64_t value = 4;
    SHOW(write(fd, &value, sizeof value));
    SHOW(read(fd, &value, sizeof value));
    say("%llu", static_cast<unsigned long long>(value));
    SHOW(read(fd, &value, sizeof value));
}

/// Calls that wait look at their lists before they know whether anything of ours is in there.
BEHAVIOUR("waiting with bad pointers", waits_with_bad_pointers, untouched) {
    int ends[2];
    MUST(pipe(ends));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    timespec none{};
    SHOW(poll(bad_pointer<pollfd>(), 1, 0));
    SHOW(poll(opaque<pollfd *>(reinterpret_cast<pollfd *>(~uintptr_t{0})), 1, 0));
    SHOW(ppoll(bad_pointer<pollfd>(), 1, &none, nullptr));
    SHOW(select(ends[1] + 1, bad_pointer<fd_set>(), &set, nullptr, nullptr));
    SHOW(select(ends[1] + 1, nullptr, &set, bad_pointer<fd_set>(), nullptr));
    SHOW(pselect(ends[1] + 1, bad_pointer<fd_set>(), nullptr, nullptr, &none, nullptr));
    pollfd entry{ends[1], POLLOUT, 0};
    SHOW(syscall(SYS_ppoll, &entry, 1, bad_pointer<timespec>(), nullptr, 8));
    SHOW(syscall(SYS_ppoll, &entry, 1, nullptr, bad_pointer<sigset_t>(), 8));
    SHOW(syscall(SYS_select, ends[1] + 1, nullptr, &set, nullptr, bad_pointer<timeval>()));
    SHOW(syscall(SYS_pselect6, ends[1] + 1, nullptr, &set, nullptr, bad_pointer<timespec>(), nullptr));
    SHOW(syscall(SYS_pselect6, ends[1] + 1, nullptr, &set, nullptr, nullptr, bad_pointer<void>()));
    SHOW(entry.revents);
    SHOW_BOOL(FD_ISSET(ends[1], &set));
    const int instance = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLOUT;
    SHOW(epoll_ctl(instance, EPOLL_CTL_ADD, ends[1], bad_pointer<epoll_event>()));
    MUST(epoll_ctl(instance, EPOLL_CTL_ADD, ends[1], &event));
    SHOW(epoll_wait(instance, bad_pointer<epoll_event>(), 1, 0));
    SHOW(epoll_pwait(instance, &event, 1, -1, bad_pointer<sigset_t>()));
    SHOW(epoll_pwait2(instance, &event, 1, bad_pointer<timespec>(), nullptr));
    SHOW(epoll_pwait2(instance, &event, 1, &none, nullptr));
}

// The library registers for memory barriers, too.
BEHAVIOUR("memory barriers", memory_barriers, untouched) {
    SHOW(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
    SHOW(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 1 << 20, 0));
    SHOW(syscall(SYS_membarrier, 1 << 9, 0, 0)); // what is registered
    SHOW(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
    SHOW(syscall(SYS_membarrier, 1 << 9, 0, 0));
    const pid_t child = spawn([] { SHOW(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)); });
    reap("child", child);
    SHOW(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
