// connect(): blocking, non-blocking, refused, repeated, interrupted by a deadline, undone.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

using namespace sdtest;

namespace {

// An address where nobody listens.
Address closed_port(int family = AF_INET) {
    const int listener = make_listener(loopback(family));
    const Address address = local_address(listener);
    close(listener);
    return address;
}

int non_blocking_socket() { return MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)); }

// The kernel says EINPROGRESS; a faster transport may be connected at once.
bool started(int fd, const Address &to) {
    const int result = connect(fd, to.raw(), to.length);
    return result == 0 || errno == EINPROGRESS;
}

// Fills the listener's queue until a connection stays pending; returns that one.
int pending_connection(const Address &to) {
    for (int i = 0; i < 64; ++i) {
        const int fd = non_blocking_socket();
        if (!started(fd, to))
            give_up("connect to a full listener");
        if ((poll_now(fd, POLLOUT, 250) & POLLOUT) == 0)
            return fd;
    }
    say("64 connections fit into a backlog of 0");
    exit(1);
}

} // namespace

BEHAVIOUR("blocking connect", blocking, accelerated) {
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address to = local_address(listener);
    SHOW(connect(client, to.raw(), to.length));
    say("SO_ERROR %s", socket_error(client).c_str());
    show_ready("client", client);
    SHOW(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW(connect(server, to.raw(), to.length));
}

BEHAVIOUR("non-blocking connect, poll for writing, SO_ERROR", non_blocking, accelerated) {
    const int listener = make_listener();
    const int client = non_blocking_socket();
    const Address to = local_address(listener);
    SHOW_BOOL(started(client, to));
    wait_for(client, POLLOUT);
    say("SO_ERROR %s", socket_error(client).c_str());
    show_ready("client", client);
    const int again = connect(client, to.raw(), to.length);
    SHOW_BOOL(again == 0 || errno == EISCONN);
    SHOW(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW(send(client, "hello", 5, 0));
    say("%s", receive(server, 5).c_str());
    char byte;
    SHOW(recv(client, &byte, 1, 0));
    SHOW(send(server, "x", 1, 0));
    wait_for(client, POLLIN);
    SHOW(recv(client, &byte, 1, 0));
}

BEHAVIOUR("non-blocking connect behind edge-triggered epoll", non_blocking_epoll, accelerated) {
    const int listener = make_listener();
    const int client = non_blocking_socket();
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLOUT | EPOLLIN | EPOLLET;
    event.data.u64 = 77;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, client, &event));
    // Unconnected: HUP and OUT at once.
    SHOW(epoll_wait(set, &event, 1, 0));
    say("%s", event_names(event.events).c_str());
    SHOW_BOOL(started(client, local_address(listener)));
    bool writable = false;
    for (int i = 0; i < 50 && !writable; ++i) {
        const int count = epoll_wait(set, &event, 1, 100);
        writable = count == 1 && event.events == EPOLLOUT;
    }
    SHOW_BOOL(writable);
    say("SO_ERROR %s", socket_error(client).c_str());
    SHOW_FD(accept(listener, nullptr, nullptr));
}

BEHAVIOUR("refused connect", refused, any) {
    for (const int family : {AF_INET, AF_INET6}) {
        const int client = MUST(socket(family, SOCK_STREAM, 0));
        const Address nobody = closed_port(family);
        SHOW(connect(client, nobody.raw(), nobody.length));
        say("SO_ERROR %s", socket_error(client).c_str());
        show_ready("client", client);
        char byte;
        SHOW(recv(client, &byte, 1, 0));
        SHOW(send(client, "x", 1, MSG_NOSIGNAL));
        Address name;
        SHOW(getpeername(client, name.raw(), &name.length));
    }
}

BEHAVIOUR("refused non-blocking connect", refused_non_blocking, any) {
    const int client = non_blocking_socket();
    const Address nobody = closed_port();
    const int result = connect(client, nobody.raw(), nobody.length);
    SHOW_BOOL(result < 0 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    if (errno == EINPROGRESS) {
        wait_for(client, POLLOUT);
        show_ready("client", client);
        say("SO_ERROR %s", socket_error(client).c_str());
    }
    say("SO_ERROR %s", socket_error(client).c_str());
    show_ready("client", client);
}

BEHAVIOUR("a refused socket connects elsewhere", refused_then_accepted, any) {
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address nobody = closed_port();
    SHOW(connect(client, nobody.raw(), nobody.length));
    const int listener = make_listener();
    const Address to = local_address(listener);
    SHOW(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW(send(client, "abc", 3, 0));
    say("%s", receive(server, 3).c_str());
}

// The options set on the socket survive a refusal and count for the connection made later.
BEHAVIOUR("options survive a refusal", options_survive_refusal, any) {
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(client, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(client, SOL_SOCKET, SO_KEEPALIVE, 1);
    const Address nobody = closed_port();
    SHOW(connect(client, nobody.raw(), nobody.length));
    const int listener = make_listener();
    const Address to = local_address(listener);
    SHOW(connect(client, to.raw(), to.length));
    say("nodelay %d keepalive %d", get_option(client, IPPROTO_TCP, TCP_NODELAY),
        get_option(client, SOL_SOCKET, SO_KEEPALIVE));
}

// Without quick acknowledgements the client ends the handshake with its first data, or some time later.
// HAProxy's checks reset the connection before that, and no server sees them.
BEHAVIOUR("a handshake that waits for data", handshake_that_waits, any) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const auto client = [&to] {
        const int fd = non_blocking_socket();
        set_option(fd, IPPROTO_TCP, TCP_QUICKACK, 0);
        SHOW_BOOL(started(fd, to));
        wait_for(fd, POLLOUT);
        return fd;
    };
    const int check = client();
    const linger abort{1, 0};
    MUST(setsockopt(check, SOL_SOCKET, SO_LINGER, &abort, sizeof abort));
    MUST(close(check));
    say("reset: %s", event_names(static_cast<uint32_t>(poll_now(listener, POLLIN, 400))).c_str());

    const int sender = client();
    say("sender: QUICKACK %d", get_option(sender, IPPROTO_TCP, TCP_QUICKACK));
    SHOW(send(sender, "data", 4, 0));
    wait_for(listener, POLLIN);
    say("%s", receive(MUST(accept(listener, nullptr, nullptr)), 4).c_str());

    const int silent = client();
    wait_for(listener, POLLIN);
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW(send(server, "hello", 5, 0));
    wait_for(silent, POLLIN);
    say("%s", receive(silent, 5).c_str());
}

// The kernel keeps apart what connect() was told from what the connection is.
BEHAVIOUR("connect again after a reset", again_after_reset, accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    for (const bool shut : {false, true}) {
        const int client = non_blocking_socket();
        SHOW_BOOL(started(client, to));
        wait_for(listener, POLLIN);
        abort_connection(MUST(accept(listener, nullptr, nullptr)));
        wait_for(client, POLLIN);
        if (shut) {
            SHOW(shutdown(client, SHUT_WR));
            SHOW(connect(client, to.raw(), to.length));
            say("SO_ERROR %s", socket_error(client).c_str());
        }
        SHOW(connect(client, to.raw(), to.length));
        const sockaddr nothing{};
        SHOW(connect(client, &nothing, sizeof nothing));
        SHOW_BOOL(started(client, to));
    }
}

BEHAVIOUR("EALREADY while a connection is pending", already, any) {
    const int listener = make_listener("127.0.0.1", 0);
    const Address to = local_address(listener);
    const int pending = pending_connection(to);
    SHOW(connect(pending, to.raw(), to.length));
    say("SO_ERROR %s", socket_error(pending).c_str());
    say("poll %s", event_names(static_cast<uint32_t>(poll_now(pending))).c_str());
    char byte;
    SHOW(recv(pending, &byte, 1, 0));
    SHOW(send(pending, "x", 1, MSG_NOSIGNAL));
}

BEHAVIOUR("blocking connect with a deadline", blocking_times_out, any) {
    const int listener = make_listener("127.0.0.1", 0);
    const Address to = local_address(listener);
    pending_connection(to);
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_timeout(client, SO_SNDTIMEO, 200);
    SHOW(connect(client, to.raw(), to.length));
    SHOW(connect(client, to.raw(), to.length));
}

// A connection that had to wait is made as soon as there is room.
BEHAVIOUR("a pending connection gets in when there is room", pending_gets_in, any) {
    const int listener = make_listener("127.0.0.1", 0);
    const int pending = pending_connection(local_address(listener));
    SHOW_FD(accept(listener, nullptr, nullptr));
    SHOW_BOOL(wait_for(pending, POLLOUT, 10000));
    say("SO_ERROR %s", socket_error(pending).c_str());
}

BEHAVIOUR("bad addresses", bad_arguments, any) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(fd, bad_pointer<sockaddr>(), sizeof(sockaddr_in)));
    SHOW(connect(fd, to.raw(), 0));
    SHOW(connect(fd, to.raw(), 1));
    SHOW(connect(fd, to.raw(), sizeof(sockaddr_in) - 1));
    SHOW(connect(fd, to.raw(), static_cast<socklen_t>(-1)));
    SHOW(connect(fd, to.raw(), 4096));
    Address strange = to;
    strange.storage.ss_family = 77;
    SHOW(connect(fd, strange.raw(), strange.length));
    const Address six = make_address("::1", to.port());
    SHOW(connect(fd, six.raw(), six.length));
    SHOW(connect(-1, to.raw(), to.length));
    SHOW(connect(4000, to.raw(), to.length));
    SHOW(connect(STDOUT_FILENO, to.raw(), to.length));
    SHOW(connect(listener, to.raw(), to.length));
    const Address zero_port = make_address("127.0.0.1", 0);
    SHOW(connect(fd, zero_port.raw(), zero_port.length));
    const Address broadcast = make_address("255.255.255.255", to.port());
    SHOW(connect(fd, broadcast.raw(), broadcast.length));
    // After all that the socket still works, with an address longer than needed too.
    SHOW(connect(fd, to.raw(), sizeof(sockaddr_storage)));
    SHOW_FD(accept(listener, nullptr, nullptr));
}

// Only the kernel can say that the port is the program's to use.
BEHAVIOUR("connect from a port below 1024", from_a_low_port, any) {
    const int listener = make_listener(), client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    uint16_t port = 1023;
    while (port > 512 && bind(client, make_address("127.0.0.1", port).raw(), sizeof(sockaddr_in)) < 0 &&
           errno == EADDRINUSE)
        --port;
    SHOW(connect(client, local_address(listener).raw(), sizeof(sockaddr_in)));
    const int server = MUST(accept(listener, nullptr, nullptr));
    SHOW_BOOL(peer_address(server).port() == local_address(client).port());
    send_all(client, "low");
    say("%s", receive(server, 3).c_str());
}

BEHAVIOUR("connect with TCP Fast Open", data_with_the_request, any) {
    const int listener = make_listener(), client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(client, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1);
    SHOW(connect(client, local_address(listener).raw(), sizeof(sockaddr_in)));
    send_all(client, "first");
    say("%s", receive(MUST(accept(listener, nullptr, nullptr)), 5).c_str());
}

BEHAVIOUR("connect in a network namespace made since", in_another_namespace, any) {
    reap("child", spawn([] {
             MUST(unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWNET | CLONE_NEWUSER));
             ifreq interface {};
             strcpy(interface.ifr_name, "lo");
             interface.ifr_flags = IFF_UP;
             MUST(ioctl(MUST(socket(AF_INET, SOCK_DGRAM, 0)), SIOCSIFFLAGS, &interface));
             const Pair pair = make_pair();
             send_all(pair.client, "elsewhere");
             say("%s", receive(pair.server, 9).c_str());
         }));
}

BEHAVIOUR("lengths of IPv6 addresses", ipv6_address_lengths, any) {
    const int listener = make_listener("::1");
    const Address to = local_address(listener);
    const int fd = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    SHOW(connect(fd, to.raw(), sizeof(sockaddr_in)));
    // The scope field may be left out.
    SHOW(connect(fd, to.raw(), sizeof(sockaddr_in6) - 4));
    SHOW_FD(accept(listener, nullptr, nullptr));
    const int four = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    const Address plain = make_address("127.0.0.1", to.port());
    SHOW(connect(four, plain.raw(), plain.length));
}

// AF_UNSPEC undoes a connection; the socket can then connect elsewhere.
BEHAVIOUR("AF_UNSPEC undoes a connection", disconnect, any) {
    const Pair pair = make_pair();
    Address nothing;
    nothing.storage.ss_family = AF_UNSPEC;
    SHOW(connect(pair.client, nothing.raw(), sizeof(sockaddr_in)));
    wait_for(pair.server, POLLHUP);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    show_ready("client", pair.client);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    Address name;
    SHOW(getpeername(pair.client, name.raw(), &name.length));
    const int other = make_listener();
    const Address to = local_address(other);
    SHOW(connect(pair.client, to.raw(), to.length));
    const int server = MUST(accept(other, nullptr, nullptr));
    SHOW(send(pair.client, "again", 5, 0));
    say("%s", receive(server, 5).c_str());
}

// A socket bound to a port that connects to it meets itself.
BEHAVIOUR("a socket connects to itself", to_itself, any) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(fd, any.raw(), any.length));
    const Address self = local_address(fd);
    SHOW(connect(fd, self.raw(), self.length));
    SHOW(send(fd, "mirror", 6, 0));
    say("%s", receive(fd, 6).c_str());
    SHOW(shutdown(fd, SHUT_WR));
    char byte;
    SHOW(recv(fd, &byte, 1, 0));
}

BEHAVIOUR("many short connections", many_in_a_row, accelerated) {
    const int listener = make_listener();
    uint64_t hash = 0;
    for (unsigned i = 0; i < 300; ++i) {
        const Pair pair = connect_through(listener);
        const std::string sent = pattern(i + 1, i);
        if (!send_all(i % 2 ? pair.client : pair.server, sent))
            return;
        const std::string got = receive(i % 2 ? pair.server : pair.client, sent.size());
        hash = hash_of(got.data(), got.size(), hash);
        close(i % 3 ? pair.client : pair.server);
        close(i % 3 ? pair.server : pair.client);
    }
    say("hash %016llx", static_cast<unsigned long long>(hash));
}

BEHAVIOUR("200 connections at once", many_at_once, accelerated) {
    const int listener = make_listener("127.0.0.1", 256);
    std::vector<Pair> pairs;
    for (int i = 0; i < 200; ++i)
        pairs.push_back(connect_through(listener));
    int right = 0;
    for (size_t i = 0; i < pairs.size(); ++i)
        send_all(pairs[i].client, std::to_string(i * 7919));
    for (size_t i = pairs.size(); i-- > 0;)
        right += receive(pairs[i].server, std::to_string(i * 7919).size()) == std::to_string(i * 7919);
    say("%d of 200 right", right);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
