// Calls that must fail: bad pointers, wrong states, wrong descriptors, and what is left intact afterwards.
#include "tests/programs/cases.hpp"

#include <sys/ioctl.h>
#include <sys/uio.h>

using namespace sdtest;

namespace {

msghdr message_of(iovec *parts, size_t count) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    return message;
}

// Two pages of which only the first may be touched; returns the end of the usable part.
char *edge_of_memory() {
    auto *pages =
        static_cast<char *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(pages, 'e', 4096);
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
    return opaque(pages + 4096);
}

} // namespace

BEHAVIOUR("EFAULT when sending", efault_send, accelerated) {
    const Pair pair = make_pair();
    iovec bad{bad_pointer<void>(), 10};
    msghdr message = message_of(&bad, 1);
    msghdr no_vector = message_of(bad_pointer<iovec>(), 1);
    mmsghdr several{message, 0};
    SHOW(write(pair.client, bad_pointer<char>(), 10));
    SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
    SHOW(sendto(pair.client, bad_pointer<char>(), 10, 0, nullptr, 0));
    SHOW(writev(pair.client, &bad, 1));
    SHOW(writev(pair.client, bad_pointer<iovec>(), 1));
    SHOW(sendmsg(pair.client, &message, 0));
    SHOW(sendmsg(pair.client, &no_vector, 0));
    SHOW(sendmsg(pair.client, bad_pointer<msghdr>(), 0));
    SHOW(sendmmsg(pair.client, &several, 1, 0));
    SHOW(sendmmsg(pair.client, bad_pointer<mmsghdr>(), 1, 0));
    SHOW(sendto(pair.client, "x", 1, 0, bad_pointer<sockaddr>(), 16));
    SHOW(write(pair.client, opaque<const char *>(nullptr), 10));
    SHOW(write(pair.client, bad_pointer<char>(), 0));
    // Nothing of all this reached the peer.
    SHOW(send(pair.client, "clean", 5, 0));
    say("%s", receive(pair.server, 5).c_str());
}

BEHAVIOUR("EFAULT when receiving loses nothing", efault_receive, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "precious");
    wait_for(pair.server, POLLIN);
    iovec bad{bad_pointer<void>(), 10};
    msghdr message = message_of(&bad, 1);
    msghdr no_vector = message_of(bad_pointer<iovec>(), 1);
    mmsghdr several{message, 0};
    SHOW(read(pair.server, bad_pointer<char>(), 10));
    SHOW(recv(pair.server, bad_pointer<char>(), 10, 0));
    SHOW(recv(pair.server, bad_pointer<char>(), 10, MSG_PEEK));
    SHOW(recvfrom(pair.server, bad_pointer<char>(), 10, 0, nullptr, nullptr));
    SHOW(readv(pair.server, &bad, 1));
    SHOW(readv(pair.server, bad_pointer<iovec>(), 1));
    SHOW(recvmsg(pair.server, &message, 0));
    SHOW(recvmsg(pair.server, &no_vector, 0));
    SHOW(recvmsg(pair.server, bad_pointer<msghdr>(), 0));
    SHOW(recvmmsg(pair.server, &several, 1, 0, nullptr));
    SHOW(recvmmsg(pair.server, bad_pointer<mmsghdr>(), 1, 0, nullptr));
    SHOW(read(pair.server, opaque<char *>(nullptr), 10));
    // Nothing was lost.
    say("%s", receive(pair.server, 8).c_str());
    SHOW(recv(pair.server, bad_pointer<char>(), 10, MSG_DONTWAIT));
}

// A buffer that begins in good memory and ends in bad.
BEHAVIOUR("EFAULT half way", efault_half_way, accelerated) {
    const Pair pair = make_pair();
    char *const edge = edge_of_memory();
    SHOW(send(pair.client, edge - 100, 200, 0));
    SHOW(send(pair.client, edge - 100, 100, 0));
    send_all(pair.client, "0123456789");
    show_data("got", receive(pair.server, 110));
    send_all(pair.client, "abcdefghij");
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, edge - 5, 10, 0));
    say("%s", receive(pair.server, 10).c_str());
}

BEHAVIOUR("EFAULT in other calls", efault_elsewhere, accelerated) {
    const Pair pair = make_pair();
    Address name = make_address("127.0.0.1", 0);
    SHOW(bind(MUST(socket(AF_INET, SOCK_STREAM, 0)), bad_pointer<sockaddr>(), sizeof(sockaddr_in)));
    set_nonblocking(pair.listener);
    SHOW(accept(pair.listener, name.raw(), bad_pointer<socklen_t>()));
    SHOW(accept(pair.listener, bad_pointer<sockaddr>(), &name.length));
    const int waiting = connect_to(pair.listener);
    wait_for(pair.listener, POLLIN);
    SHOW(accept(pair.listener, name.raw(), bad_pointer<socklen_t>()));
    close(waiting);
    SHOW(poll(bad_pointer<pollfd>(), 1, 0));
    SHOW(select(pair.client + 1, bad_pointer<fd_set>(), nullptr, nullptr, nullptr));
    const int set = MUST(epoll_create1(0));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, bad_pointer<epoll_event>()));
    epoll_event event{};
    event.events = EPOLLOUT;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    SHOW(epoll_wait(set, bad_pointer<epoll_event>(), 1, 0));
    // The address of a received message goes nowhere: a stream has none to report.
    send_all(pair.client, "abc");
    char byte;
    socklen_t length = 16;
    SHOW(recvfrom(pair.server, &byte, 1, 0, bad_pointer<sockaddr>(), &length));
    SHOW(recvfrom(pair.server, &byte, 1, 0, name.raw(), bad_pointer<socklen_t>()));
}

// The name of a message means nothing to a connection, but it is looked at.
BEHAVIOUR("names that come with messages", names_of_messages, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "ab");
    wait_for(pair.client, POLLIN);
    Address name = make_address("127.0.0.1", 1);
    char byte = 'x';
    iovec part{&byte, 1};
    for (const socklen_t length : {socklen_t{0}, socklen_t{2}, socklen_t{1000}, ~socklen_t{0}})
        for (sockaddr *const at : {name.raw(), bad_pointer<sockaddr>(), opaque<sockaddr *>(nullptr)}) {
            msghdr message = message_of(&part, 1);
            message.msg_name = at;
            message.msg_namelen = length;
            SHOW(sendmsg(pair.client, &message, 0));
            mmsghdr several{message, 0};
            SHOW(sendmmsg(pair.client, &several, 1, 0));
            SHOW(recvmsg(pair.client, &message, MSG_PEEK));
            say("length %d", static_cast<int>(message.msg_namelen));
            SHOW(recvmsg(pair.client, &message, MSG_ERRQUEUE | MSG_DONTWAIT));
            message.msg_iovlen = 2000;
            message.msg_namelen = length;
            SHOW(sendmsg(pair.client, &message, 0));
            SHOW(recvmsg(pair.client, &message, 0));
        }
    SHOW(shutdown(pair.client, SHUT_WR));
    say("%zu sent", receive_to_end(pair.server).size());
}

BEHAVIOUR("ENOTCONN and EPIPE without a connection", not_connected, any) {
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const int listener = make_listener();
    for (const int fd : {fresh, listener}) {
        char buffer[8];
        iovec part{buffer, sizeof buffer};
        msghdr message = message_of(&part, 1);
        Address name;
        SHOW(read(fd, buffer, 8));
        SHOW(recv(fd, buffer, 8, 0));
        SHOW(recv(fd, buffer, 8, MSG_DONTWAIT | MSG_PEEK));
        SHOW(recvmsg(fd, &message, 0));
        SHOW(readv(fd, &part, 1));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(sendmsg(fd, &message, MSG_NOSIGNAL));
        SHOW(send(fd, "", 0, MSG_NOSIGNAL));
        SHOW(getpeername(fd, name.raw(), &name.length));
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(accept(fd == fresh ? fd : -1, nullptr, nullptr));
    }
}

BEHAVIOUR("calls in the wrong state", wrong_state, accelerated) {
    const Pair pair = make_pair();
    const Address any = make_address("127.0.0.1", 0);
    SHOW(listen(pair.client, 5));
    SHOW(bind(pair.client, any.raw(), any.length));
    SHOW(accept(pair.client, nullptr, nullptr));
    SHOW(listen(pair.server, 5));
    SHOW(bind(pair.listener, any.raw(), any.length));
    SHOW(listen(pair.listener, 7));
    SHOW(accept4(pair.listener, nullptr, nullptr, 0x40));
    SHOW(send(pair.client, "fine", 4, 0));
    say("%s", receive(pair.server, 4).c_str());
}

BEHAVIOUR("EBADF", bad_descriptor, accelerated) {
    for (const int fd : {-1, 999}) {
        char buffer[8];
        iovec part{buffer, sizeof buffer};
        msghdr message = message_of(&part, 1);
        int value = 0;
        SHOW(read(fd, buffer, 8));
        SHOW(write(fd, buffer, 8));
        SHOW(readv(fd, &part, 1));
        SHOW(writev(fd, &part, 1));
        SHOW(recv(fd, buffer, 8, 0));
        SHOW(send(fd, buffer, 8, 0));
        SHOW(recvmsg(fd, &message, 0));
        SHOW(sendmsg(fd, &message, 0));
        SHOW(listen(fd, 1));
        SHOW(accept(fd, nullptr, nullptr));
        SHOW(close(fd));
        SHOW(dup(fd));
        SHOW(dup2(fd, 5));
        SHOW(fcntl(fd, F_GETFL));
        SHOW(ioctl(fd, FIONREAD, &value));
    }
    const Pair pair = make_pair();
    SHOW(close(pair.client));
    SHOW(close(pair.client));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
}

BEHAVIOUR("ENOTSOCK", not_a_socket, any) {
    int ends[2];
    MUST(pipe(ends));
    char buffer[8];
    iovec part{buffer, sizeof buffer};
    msghdr message = message_of(&part, 1);
    SHOW(recv(ends[0], buffer, 8, 0));
    SHOW(send(ends[1], buffer, 8, 0));
    SHOW(recvmsg(ends[0], &message, 0));
    SHOW(sendmsg(ends[1], &message, 0));
    SHOW(listen(ends[0], 1));
    SHOW(accept(ends[0], nullptr, nullptr));
    SHOW(shutdown(ends[0], SHUT_WR));
    const Address any = make_address("127.0.0.1", 0);
    SHOW(bind(ends[0], any.raw(), any.length));
}

BEHAVIOUR("EOPNOTSUPP and its kin", not_supported, any) {
    const int datagram = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    SHOW(listen(datagram, 1));
    SHOW(accept(datagram, nullptr, nullptr));
    int pair[2];
    SHOW(socketpair(AF_INET, SOCK_STREAM, 0, pair));
    SHOW(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    SHOW(socket(AF_INET, 77, 0));
    SHOW(socket(77, SOCK_STREAM, 0));
    SHOW(socket(AF_INET, SOCK_STREAM | 0x100000, 0));
    SHOW(socket(AF_INET, SOCK_STREAM, 99999));
    SHOW(socket(AF_INET, SOCK_SEQPACKET, 0));
}

BEHAVIOUR("bind that must fail", bind_errors, accelerated) {
    const int first = make_listener();
    const Address taken = local_address(first);
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(bind(fd, taken.raw(), taken.length));
    const Address foreign = make_address("203.0.113.77", 0);
    SHOW(bind(fd, foreign.raw(), foreign.length));
    const Address six = make_address("::1", 0);
    SHOW(bind(fd, six.raw(), six.length));
    SHOW(bind(fd, taken.raw(), 4));
    SHOW(bind(fd, taken.raw(), 0));
    SHOW(bind(fd, taken.raw(), 500));
    const Address any = make_address("127.0.0.1", 0);
    SHOW(bind(fd, any.raw(), any.length));
    SHOW(bind(fd, any.raw(), any.length));
    SHOW(listen(fd, -1));
    const int client = connect_to(fd);
    SHOW_FD(accept(fd, nullptr, nullptr));
    close(client);
}

BEHAVIOUR("listen without bind", listen_without_bind, accelerated) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(listen(fd, 5));
    const Address name = local_address(fd);
    say("%s port chosen %s", name.host().c_str(), yes_no(name.port() != 0));
    const int client = connect_to(make_address("127.0.0.1", name.port()));
    const int server = MUST(accept(fd, nullptr, nullptr));
    SHOW(send(server, "ok", 2, 0));
    say("%s", receive(client, 2).c_str());
}

BEHAVIOUR("absurd sizes", sizes, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    char byte;
    SHOW(read(pair.client, &byte, opaque(static_cast<size_t>(-1))));
    SHOW(write(pair.client, bad_pointer<char>(), opaque(static_cast<size_t>(-1))));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
