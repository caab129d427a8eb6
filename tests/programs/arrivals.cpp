// What has arrived at the other end and is not read yet: how much of it, from where on, and what else came
// with it.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

using namespace sdtest;

namespace {

constexpr int kInq = 36; // TCP_INQ, newer than glibc's header

int queued(int fd, unsigned long request) {
    int bytes = -1;
    MUST(ioctl(fd, request, &bytes));
    return bytes;
}

bool becomes(int fd, unsigned long request, int bytes) {
    Stopwatch watch;
    while (queued(fd, request) != bytes) {
        if (watch.ms() > kPatience)
            return false;
        sleep_ms(1);
    }
    return true;
}

void show_control(msghdr &message) {
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        int value = 0;
        memcpy(&value, CMSG_DATA(c), std::min(sizeof value, c->cmsg_len - CMSG_LEN(0)));
        say("  level %d type %d length %zu: %d", c->cmsg_level, c->cmsg_type, c->cmsg_len, value);
    }
}

void read_with_control(int fd, size_t size, size_t room) {
    char data[64], control[256];
    iovec part{data, size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room ? control : nullptr;
    message.msg_controllen = room;
    const ssize_t n = recvmsg(fd, &message, 0);
    say("%zd bytes, flags %x, control %zu", n, static_cast<unsigned>(message.msg_flags), message.msg_controllen);
    show_control(message);
}

} // namespace

// What the peer's buffer takes has arrived, be it read or not: a program may wait for that before it goes on.
BEHAVIOUR("SIOCOUTQ of what is not read", unread_has_arrived, accelerated) {
    const Pair pair = make_pair();
    for (const size_t size : {1u, 1000u, 20000u, 20000u}) {
        send_all(pair.client, pattern(size));
        say("%zu more have arrived: %s", size, yes_no(becomes(pair.client, SIOCOUTQ, 0)));
    }
    fill(pair.client);
    SHOW_BOOL(queued(pair.client, SIOCOUTQ) > 0);
}

BEHAVIOUR("SO_LINGER with more than arrives", linger_with_a_full_ring, accelerated) {
    const Pair pair = make_pair();
    const linger long_time{1, 1000};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time));
    fill(pair.client);
    std::atomic<bool> closed{false};
    bool before = true, all = false;
    std::thread reader([&] {
        sleep_ms(200);
        before = closed;
        all = !receive_to_end(pair.server).empty();
    });
    SHOW(close(pair.client));
    closed = true;
    reader.join();
    say("closed before it was read: %s", yes_no(before));
    say("all read: %s", yes_no(all));
}

// The time is over while nobody reads.
BEHAVIOUR("SO_LINGER for a second", linger_in_vain, accelerated) {
    const Pair pair = make_pair();
    const linger one_second{1, 1};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &one_second, sizeof one_second));
    fill(pair.client);
    SHOW(close(pair.client));
    SHOW_BOOL(!receive_to_end(pair.server).empty());
}

BEHAVIOUR("SO_LINGER with what arrives at once", linger_with_little, accelerated) {
    const Pair pair = make_pair();
    const linger long_time{1, 1000};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time));
    send_all(pair.client, pattern(20000));
    SHOW(close(pair.client));
    show_data("got", receive_to_end(pair.server));
}

// A kernel that does not know the option for TCP says so in both runs.
BEHAVIOUR("SO_PEEK_OFF of a connection", peek_offset, any) {
    const Pair pair = make_pair();
    int from = 0;
    if (SHOW(setsockopt(pair.server, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from)) < 0)
        return;
    send_all(pair.client, "0123456789");
    becomes(pair.server, FIONREAD, 10);
    for (int i = 0; i < 4; ++i) {
        char bytes[4] = {};
        const ssize_t n = recv(pair.server, bytes, 3, MSG_PEEK | MSG_DONTWAIT);
        say("peek %zd: %s", n, bytes);
    }
    say("read %s", receive(pair.server, 5).c_str());
    say("from %d", get_option(pair.server, SOL_SOCKET, SO_PEEK_OFF));
    send_all(pair.server, "back");
    say("%s", receive(pair.client, 4).c_str());
}

BEHAVIOUR("TCP_INQ of a connection", bytes_left, any) {
    const Pair pair = make_pair();
    const int none = 0, on = 1, wrong = 2;
    SHOW(setsockopt(pair.server, IPPROTO_TCP, kInq, &none, sizeof none));
    SHOW(setsockopt(pair.server, IPPROTO_TCP, kInq, &wrong, sizeof wrong));
    send_all(pair.client, "before");
    wait_for(pair.server, POLLIN);
    SHOW(setsockopt(pair.server, IPPROTO_TCP, kInq, &on, sizeof on));
    say("is %d", get_option(pair.server, IPPROTO_TCP, kInq));
    say("%s", receive(pair.server, 6).c_str());
    send_all(pair.client, "0123456789");
    becomes(pair.server, FIONREAD, 10);
    read_with_control(pair.server, 3, 256);
    read_with_control(pair.server, 3, 8);
    read_with_control(pair.server, 1, 0);
    read_with_control(pair.server, 3, 256);
    send_all(pair.client, "ab");
    close(pair.client);
    wait_for(pair.server, POLLIN | POLLRDHUP);
    becomes(pair.server, FIONREAD, 2);
    read_with_control(pair.server, 1, 256);
    read_with_control(pair.server, 2, 256);
    read_with_control(pair.server, 2, 256);
}

// Whole segments are handed over: one of which a part has no place stays.
BEHAVIOUR("a bad second piece", bad_second_piece, accelerated) {
    const Pair pair = make_pair();
    const auto read_in_two = [&](size_t all, char *good, size_t good_size) {
        becomes(pair.server, FIONREAD, static_cast<int>(all));
        iovec pieces[2] = {{good, good_size}, {bad_pointer<char>(), 4}};
        SHOW(readv(pair.server, pieces, 2));
        msghdr message{};
        message.msg_iov = pieces;
        message.msg_iovlen = 2;
        SHOW(recvmsg(pair.server, &message, MSG_PEEK));
        SHOW(recvmsg(pair.server, &message, 0));
        say("left: %d", queued(pair.server, FIONREAD));
        show_data("all", receive(pair.server, all));
    };
    std::string room(20000, '\0');
    send_all(pair.client, "01234567");
    read_in_two(8, room.data(), 4);
    send_all(pair.client, "0123");
    send_all(pair.client, "4567");
    read_in_two(8, room.data(), 4);
    send_all(pair.client, pattern(30000));
    read_in_two(30000, room.data(), room.size());
    send_all(pair.client, "0123");
    becomes(pair.server, FIONREAD, 4);
    iovec pieces[2] = {{room.data(), 4}, {bad_pointer<char>(), 4}};
    SHOW(readv(pair.server, pieces, 2)); // does not come to the bad one
}

namespace {

// The option that asks for both, and what was asked for; Erlang reads the type of service of its clients so.
struct Asking {
    int family, level, service, life, set_service, set_life, options;
};
constexpr int kIpv6Options = 6; // IPV6_2292PKTOPTIONS
constexpr Asking kAsking[] = {{AF_INET, IPPROTO_IP, IP_RECVTOS, IP_RECVTTL, IP_TOS, IP_TTL, IP_PKTOPTIONS},
                              {AF_INET6, IPPROTO_IPV6, IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT, IPV6_TCLASS,
                               IPV6_UNICAST_HOPS, kIpv6Options}};

void ask_for_both(int fd, const Asking &a) {
    set_option(fd, a.level, a.service, 1);
    set_option(fd, a.level, a.life, 1);
}

void show_packets(const char *who, int fd, const Asking &a, socklen_t room) {
    alignas(cmsghdr) char answer[256];
    socklen_t length = room;
    const int r = getsockopt(fd, a.level, a.options, answer, &length);
    say("%s: %d, length %u of %u", who, r, r < 0 ? 0 : length, room);
    msghdr message{};
    message.msg_control = answer;
    message.msg_controllen = r < 0 ? 0 : length;
    show_control(message);
}

void packets_of(const Asking &a, bool listener_asks, int service, int life) {
    const int listener = make_listener(loopback(a.family));
    if (listener_asks)
        ask_for_both(listener, a);
    const Address to = local_address(listener);
    const int client = MUST(socket(a.family, SOCK_STREAM, 0));
    if (service)
        set_option(client, a.level, a.set_service, service);
    if (life)
        set_option(client, a.level, a.set_life, life);
    MUST(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    show_packets("unasked", server, a, 256);
    if (!listener_asks)
        ask_for_both(server, a);
    say("asked %d %d", get_option(server, a.level, a.service), get_option(server, a.level, a.life));
    send_all(client, "x");
    receive(server, 1);
    show_packets("server", server, a, 256);
    show_packets("short", server, a, 20);
    close(server);
    close(client);
    close(listener);
}

} // namespace

BEHAVIOUR("type of service and time to live of who connected", packets_ipv4, accelerated) {
    for (const bool listener_asks : {false, true}) {
        packets_of(kAsking[0], listener_asks, 0, 0);
        packets_of(kAsking[0], listener_asks, 0x23, 0);
        packets_of(kAsking[0], listener_asks, 0x20, 9);
    }
}

BEHAVIOUR("the same of IPv6", packets_ipv6, accelerated) {
    packets_of(kAsking[1], true, 0, 0);
    packets_of(kAsking[1], true, 0x20, 9);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
