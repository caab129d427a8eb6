// Socket options and ioctls: what reads back before and after connecting, what an accepted socket inherits,
// and what the status questions answer in each state.
#include "tests/programs/cases.hpp"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

using namespace sdtest;

namespace {

struct Option {
    const char *name;
    int level;
    int option;
    int value; // to set
};

const Option kOptions[] = {
    {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1},
    {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1},
    {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 1},
    {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 1},
    {"SO_DONTROUTE", SOL_SOCKET, SO_DONTROUTE, 1},
    {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 4},
    {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 7},
    {"SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, 50000},
    {"SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, 40000},
    {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1},
    {"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, 1},
    {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1},
    {"TCP_CORK", IPPROTO_TCP, TCP_CORK, 1},
    {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 77},
    {"TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 11},
    {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 3},
    {"TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT, 4},
    {"TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2, 9},
    {"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, 1},
    {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 30000},
    {"TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000},
    {"IP_TOS", IPPROTO_IP, IP_TOS, 16},
    {"IP_TTL", IPPROTO_IP, IP_TTL, 33},
};

std::string read_back(int fd, const Option &option) {
    int value = 0;
    socklen_t length = sizeof value;
    if (getsockopt(fd, option.level, option.option, &value, &length) < 0)
        return strerrorname_np(errno);
    return std::to_string(value) + "/" + std::to_string(length);
}

// Sizes the kernel tunes by itself are its own affair.
bool default_is_tuned(const Option &option) {
    return option.level == SOL_SOCKET && (option.option == SO_SNDBUF || option.option == SO_RCVBUF);
}

void show_options(const char *label, int fd, bool tuned) {
    for (const Option &option : kOptions)
        say("%s %s %s", label, option.name,
            !tuned && default_is_tuned(option) ? "-" : read_back(fd, option).c_str());
}

void set_options(int fd) {
    for (const Option &option : kOptions) {
        const int result = setsockopt(fd, option.level, option.option, &option.value, sizeof option.value);
        say("set %s %s", option.name, result < 0 ? strerrorname_np(errno) : "ok");
    }
}

void show_state(const char *label, int fd) {
    tcp_info info{};
    socklen_t length = sizeof info;
    const int result = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    say("%s: TCP_INFO %d state %d, room used %s", label, result, info.tcpi_state,
        yes_no(length <= sizeof info && length > 100));
}

int queued(int fd, unsigned long request) {
    int value = -1;
    return ioctl(fd, request, &value) < 0 ? -errno : value;
}

void wait_until_queued(int fd, unsigned long request, int wanted) {
    Stopwatch watch;
    while (queued(fd, request) != wanted && watch.ms() < kPatience)
        sleep_ms(1);
    say("queued %d", queued(fd, request));
}

} // namespace

BEHAVIOUR("type, domain, protocol, listening", kinds, accelerated) {
    for (const int family : {AF_INET, AF_INET6}) {
        const int fresh = MUST(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
        const Pair pair = make_pair(family);
        for (const int fd : {fresh, pair.listener, pair.client, pair.server})
            say("type %d domain %d protocol %d listening %d error %d", get_option(fd, SOL_SOCKET, SO_TYPE),
                get_option(fd, SOL_SOCKET, SO_DOMAIN), get_option(fd, SOL_SOCKET, SO_PROTOCOL),
                get_option(fd, SOL_SOCKET, SO_ACCEPTCONN), get_option(fd, SOL_SOCKET, SO_ERROR));
    }
}

BEHAVIOUR("defaults", defaults, accelerated) {
    show_options("fresh", MUST(socket(AF_INET, SOCK_STREAM, 0)), false);
    const Pair pair = make_pair();
    show_options("client", pair.client, false);
    show_options("server", pair.server, false);
    SHOW_BOOL(get_option(pair.client, SOL_SOCKET, SO_RCVBUF) >= 4096);
    SHOW_BOOL(get_option(pair.client, SOL_SOCKET, SO_SNDBUF) >= 4096);
}

BEHAVIOUR("set before connecting", set_before_connect, any) {
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_options(client);
    show_options("before", client, true);
    const Address to = local_address(listener);
    MUST(connect(client, to.raw(), to.length));
    show_options("after", client, true);
    const int server = MUST(accept(listener, nullptr, nullptr));
    show_options("server", server, false);
}

BEHAVIOUR("set after connecting", set_after_connect, any) {
    const Pair pair = make_pair();
    set_options(pair.client);
    show_options("client", pair.client, true);
    set_options(pair.server);
    show_options("server", pair.server, true);
    SHOW(send(pair.client, "1234567", 7, 0));
    set_option(pair.client, IPPROTO_TCP, TCP_CORK, 0);
    say("%s", receive(pair.server, 7).c_str());
}

BEHAVIOUR("inherited from the listener, and what is not", inherited_from_listener, any) {
    const int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    for (const Option &option : kOptions) {
        if (option.option != TCP_DEFER_ACCEPT || option.level != IPPROTO_TCP)
            setsockopt(listener, option.level, option.option, &option.value, sizeof option.value);
    }
    const linger patient{1, 3};
    MUST(setsockopt(listener, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    set_timeout(listener, SO_RCVTIMEO, 2000);
    set_timeout(listener, SO_SNDTIMEO, 3000);
    MUST(listen(listener, 5));
    set_nonblocking(listener);
    MUST(fcntl(listener, F_SETFD, FD_CLOEXEC));
    const Address any = local_address(listener);
    const int client = connect_to(make_address("127.0.0.1", any.port()));
    wait_for(listener, POLLIN);
    const int server = MUST(accept(listener, nullptr, nullptr));
    show_options("server", server, true);
    show_options("client", client, false);
    linger got{};
    socklen_t length = sizeof got;
    SHOW(getsockopt(server, SOL_SOCKET, SO_LINGER, &got, &length));
    say("linger %d %d", got.l_onoff, got.l_linger);
    timeval value{};
    length = sizeof value;
    SHOW(getsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &value, &length));
    say("%ld.%06ld", static_cast<long>(value.tv_sec), static_cast<long>(value.tv_usec));
    SHOW(getsockopt(server, SOL_SOCKET, SO_SNDTIMEO, &value, &length));
    say("%ld.%06ld", static_cast<long>(value.tv_sec), static_cast<long>(value.tv_usec));
    // Not inherited.
    SHOW_BOOL((fcntl(server, F_GETFL) & O_NONBLOCK) == 0);
    SHOW(fcntl(server, F_GETFD));
}

BEHAVIOUR("SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER read back", timeouts_and_linger, accelerated) {
    const Pair pair = make_pair();
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        timeval value{};
        socklen_t length = sizeof value;
        SHOW(getsockopt(pair.client, SOL_SOCKET, option, &value, &length));
        say("%ld.%06ld length %u", static_cast<long>(value.tv_sec), static_cast<long>(value.tv_usec), length);
        set_timeout(pair.client, option, 2300);
        SHOW(getsockopt(pair.client, SOL_SOCKET, option, &value, &length));
        say("%ld.%06ld", static_cast<long>(value.tv_sec), static_cast<long>(value.tv_usec));
        const timeval wrong{0, 1000000}, negative{-1, 0};
        SHOW(setsockopt(pair.client, SOL_SOCKET, option, &wrong, sizeof wrong));
        SHOW(setsockopt(pair.client, SOL_SOCKET, option, &negative, sizeof negative));
        SHOW(setsockopt(pair.client, SOL_SOCKET, option, &wrong, 4));
    }
    linger value{1, 5};
    socklen_t length = sizeof value;
    SHOW(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &value, sizeof value));
    SHOW(getsockopt(pair.client, SOL_SOCKET, SO_LINGER, &value, &length));
    say("%d %d %u", value.l_onoff, value.l_linger, length);
    value = {0, 0};
    SHOW(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &value, sizeof value));
    SHOW(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &value, 4));
}

BEHAVIOUR("options that must fail", wrong_options, accelerated) {
    const Pair pair = make_pair();
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    for (const int fd : {fresh, pair.client}) {
        int value = 1;
        socklen_t length = sizeof value;
        SHOW(setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value));
        SHOW(getsockopt(fd, SOL_SOCKET, 9999, &value, &length));
        SHOW(setsockopt(fd, IPPROTO_TCP, 9999, &value, sizeof value));
        SHOW(getsockopt(fd, IPPROTO_TCP, 9999, &value, &length));
        SHOW(setsockopt(fd, 7777, 1, &value, sizeof value));
        SHOW(getsockopt(fd, 7777, 1, &value, &length));
        SHOW(setsockopt(fd, IPPROTO_IP, 9999, &value, sizeof value));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, 3));
        SHOW(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, 0));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, bad_pointer<int>(), sizeof value));
        SHOW(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, bad_pointer<int>(), &length));
        SHOW(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, bad_pointer<socklen_t>()));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_TYPE, &value, sizeof value));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_ERROR, &value, sizeof value));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, sizeof value));
        value = 200;
        SHOW(setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &value, sizeof value));
        value = -5;
        SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value));
        length = static_cast<socklen_t>(-1);
        SHOW(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
        length = 0;
        SHOW(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
        length = 1;
        value = -1;
        SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length));
        say("value %x length %u", static_cast<unsigned>(value), length);
        length = 100;
        char room[100];
        SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, room, &length));
        say("length %u", length);
    }
    int value = 1;
    SHOW(setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    SHOW(setsockopt(STDOUT_FILENO, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
}

BEHAVIOUR("SO_PEERCRED", peer_credentials, accelerated) {
    const Pair pair = make_pair();
    ucred who{};
    socklen_t length = sizeof who;
    SHOW(getsockopt(pair.client, SOL_SOCKET, SO_PEERCRED, &who, &length));
    say("pid %d uid %d gid %d length %u", who.pid, static_cast<int>(who.uid), static_cast<int>(who.gid), length);
}

BEHAVIOUR("cookie, congestion control, segment size", odds_and_ends, accelerated) {
    const Pair pair = make_pair();
    uint64_t cookie = 0, other = 0;
    socklen_t length = sizeof cookie;
    SHOW(getsockopt(pair.client, SOL_SOCKET, SO_COOKIE, &cookie, &length));
    SHOW(getsockopt(pair.server, SOL_SOCKET, SO_COOKIE, &other, &length));
    SHOW_BOOL(cookie != 0 && cookie != other);
    char name[64] = {};
    length = sizeof name;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    say("%s", name);
    SHOW_BOOL(get_option(pair.client, IPPROTO_TCP, TCP_MAXSEG) > 0);
    SHOW(get_option(pair.client, SOL_SOCKET, SO_SNDLOWAT));
    int value = 0;
    length = sizeof value;
    SHOW(getsockopt(pair.client, IPPROTO_IPV6, IPV6_V6ONLY, &value, &length));
    const Pair six = make_pair(AF_INET6);
    say("v6only %d", get_option(six.client, IPPROTO_IPV6, IPV6_V6ONLY));
    value = 1;
    SHOW(setsockopt(six.client, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof value));
}

BEHAVIOUR("TCP_INFO in each state", tcp_info_state, accelerated) {
    show_state("fresh", MUST(socket(AF_INET, SOCK_STREAM, 0)));
    const Pair pair = make_pair();
    show_state("listener", pair.listener);
    show_state("client", pair.client);
    show_state("server", pair.server);
    MUST(shutdown(pair.client, SHUT_WR));
    wait_for(pair.server, POLLRDHUP);
    sleep_ms(20);
    show_state("client", pair.client);
    show_state("server", pair.server);
    MUST(shutdown(pair.server, SHUT_WR));
    wait_for(pair.server, POLLHUP);
    show_state("client", pair.client);
    show_state("server", pair.server);
    const Pair other = make_pair();
    abort_connection(other.client);
    wait_for(other.server, POLLHUP);
    show_state("reset", other.server);
    char room[4];
    socklen_t length = 1;
    SHOW(getsockopt(pair.listener, IPPROTO_TCP, TCP_INFO, room, &length));
    say("state %d length %u", room[0], length);
}

BEHAVIOUR("FIONREAD", bytes_to_read, accelerated) {
    const Pair pair = make_pair();
    say("idle %d", queued(pair.server, FIONREAD));
    send_all(pair.client, "0123456789");
    wait_until_queued(pair.server, FIONREAD, 10);
    send_all(pair.client, pattern(5000));
    wait_until_queued(pair.server, SIOCINQ, 5010);
    receive(pair.server, 4);
    say("rest %d", queued(pair.server, FIONREAD));
    close(pair.client);
    wait_for(pair.server, POLLRDHUP);
    say("after end of file %d", queued(pair.server, FIONREAD));
    receive(pair.server, 5006);
    say("empty %d", queued(pair.server, FIONREAD));
    say("listener %d", queued(pair.listener, FIONREAD));
    say("fresh %d", queued(MUST(socket(AF_INET, SOCK_STREAM, 0)), FIONREAD));
    SHOW(ioctl(pair.server, FIONREAD, bad_pointer<int>()));
}

BEHAVIOUR("SIOCOUTQ", bytes_not_yet_taken, accelerated) {
    const Pair pair = make_pair();
    say("idle %d", queued(pair.client, SIOCOUTQ));
    set_nonblocking(pair.client);
    const std::string data = pattern(65536);
    size_t total = 0;
    ssize_t sent;
    while ((sent = send(pair.client, data.data(), data.size(), 0)) > 0)
        total += static_cast<size_t>(sent);
    SHOW_BOOL(queued(pair.client, SIOCOUTQ) > 0);
    SHOW_BOOL(static_cast<size_t>(queued(pair.client, SIOCOUTQ)) <= total);
    SHOW_BOOL(receive(pair.server, total).size() == total);
    wait_until_queued(pair.client, SIOCOUTQ, 0);
    wait_until_queued(pair.client, SIOCOUTQNSD, 0);
    say("listener %d", queued(pair.listener, SIOCOUTQ));
}

BEHAVIOUR("other ioctls", other_ioctls, accelerated) {
    const Pair pair = make_pair();
    int on = 1, off = 0;
    SHOW(ioctl(pair.client, FIONBIO, &on));
    SHOW_BOOL((fcntl(pair.client, F_GETFL) & O_NONBLOCK) != 0);
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(ioctl(pair.client, FIONBIO, &off));
    SHOW_BOOL((fcntl(pair.client, F_GETFL) & O_NONBLOCK) == 0);
    SHOW(ioctl(pair.client, FIOCLEX));
    SHOW(fcntl(pair.client, F_GETFD));
    SHOW(ioctl(pair.client, FIONCLEX));
    SHOW(fcntl(pair.client, F_GETFD));
    say("at mark %d", queued(pair.client, SIOCATMARK));
    SHOW(ioctl(pair.client, 0x5413, &on)); // TIOCGWINSZ
    SHOW(ioctl(pair.client, 0xdeadbeef, &on));
    SHOW(ioctl(pair.client, FIONBIO, bad_pointer<int>()));
    SHOW(ioctl(-1, FIONREAD, &on));
}

// A filter that lets nobody in, set when there are connections already: those go on, and nobody else comes
// in.
BEHAVIOUR("a filter on a listener that has connections", filter_on_a_listener, accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const int first = connect_to(listener), served = MUST(accept(listener, nullptr, nullptr));
    sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog filter{1, &none};
    SHOW(setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    const int late = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(late, to.raw(), to.length));
    say("connected: %s", poll_now(late, POLLOUT, 300) == POLLOUT ? "yes" : "no");
    send_all(first, "still here");
    say("%s", receive(served, 10).c_str());
    SHOW(setsockopt(listener, SOL_SOCKET, SO_DETACH_FILTER, &filter, sizeof filter));
    SHOW_BOOL(poll_now(late, POLLOUT, kPatience) == POLLOUT);
}

BEHAVIOUR("SO_RCVLOWAT", receive_low_water, accelerated) {
    const Pair pair = make_pair();
    set_option(pair.server, SOL_SOCKET, SO_RCVLOWAT, 10);
    send_all(pair.client, "12345");
    wait_until_queued(pair.server, FIONREAD, 5);
    say("poll %s", event_names(static_cast<uint32_t>(poll_now(pair.server))).c_str());
    char buffer[32];
    SHOW(recv(pair.server, buffer, 3, MSG_PEEK)); // satisfied by what was asked for
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_DONTWAIT | MSG_PEEK));
    set_timeout(pair.server, SO_RCVTIMEO, 100);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_PEEK));
    send_all(pair.client, "67890");
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    send_all(pair.client, "abc");
    shutdown(pair.client, SHUT_WR);
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
