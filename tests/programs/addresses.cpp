// Which addresses two ends can meet at: families, mapped, wildcard, own, bound clients, and their names.
#include "tests/programs/cases.hpp"

#include <ifaddrs.h>
#include <net/if.h>

using namespace sdtest;

namespace {

// Exchanges a word each way and says what both ends call each other.
void exchange(int client, int server) {
    say("family %d %d", local_address(client).storage.ss_family, local_address(server).storage.ss_family);
    say("client %s -> %s", local_address(client).host().c_str(), peer_address(client).host().c_str());
    say("server %s <- %s", local_address(server).host().c_str(), peer_address(server).host().c_str());
    SHOW_BOOL(local_address(client).port() == peer_address(server).port());
    SHOW_BOOL(peer_address(client).port() == local_address(server).port());
    SHOW_BOOL(local_address(client).port() != 0);
    SHOW(send(client, "ping", 4, 0));
    say("server got %s", receive(server, 4).c_str());
    SHOW(send(server, "pong!", 5, 0));
    say("client got %s", receive(client, 5).c_str());
}

void meet(const char *listen_host, const char *connect_host) {
    const int listener = make_listener(listen_host);
    const int client = connect_to(make_address(connect_host, local_address(listener).port()));
    Address from;
    const int server = MUST(accept(listener, from.raw(), &from.length));
    say("accepted from %s, length %u", from.host().c_str(), from.length);
    SHOW_BOOL(from.port() == local_address(client).port());
    exchange(client, server);
    close(client);
    close(server);
    close(listener);
}

// An address of this host that is not loopback, or empty.
std::string own_address(int family) {
    std::string found;
    ifaddrs *list = nullptr;
    MUST(getifaddrs(&list));
    for (const ifaddrs *entry = list; entry && found.empty(); entry = entry->ifa_next) {
        if (!entry->ifa_addr || entry->ifa_addr->sa_family != family || (entry->ifa_flags & IFF_LOOPBACK))
            continue;
        Address address;
        memcpy(&address.storage, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        if (address.host().rfind("fe80", 0) != 0) // a link-local address needs a scope
            found = address.host();
    }
    freeifaddrs(list);
    return found;
}

void meet_at_own_address(int family, const char *wildcard) {
    const std::string own = own_address(family);
    if (own.empty()) {
        say("this host has no such address; loopback instead");
        meet(loopback(family), loopback(family));
        return;
    }
    meet(own.c_str(), own.c_str());
    meet(wildcard, own.c_str());
}

} // namespace

BEHAVIOUR("IPv4 on loopback", ipv4, accelerated) { meet("127.0.0.1", "127.0.0.1"); }

BEHAVIOUR("IPv6 on loopback", ipv6, accelerated) { meet("::1", "::1"); }

BEHAVIOUR("IPv6 client with a mapped address, IPv4 server", mapped_client, accelerated) {
    const int listener = make_listener("127.0.0.1");
    const int client = connect_to(make_address("::ffff:127.0.0.1", local_address(listener).port()));
    exchange(client, MUST(accept(listener, nullptr, nullptr)));
}

BEHAVIOUR("IPv6 server reached through IPv4", mapped_server, accelerated) {
    meet("::", "127.0.0.1");
    meet("::ffff:127.0.0.1", "127.0.0.1");
}

BEHAVIOUR("mapped addresses on both sides", mapped_both, accelerated) {
    meet("::ffff:127.0.0.1", "::ffff:127.0.0.1");
}

BEHAVIOUR("wildcard listener, several loopback addresses", wildcard_v4, accelerated) {
    meet("0.0.0.0", "127.0.0.1");
    meet("0.0.0.0", "127.0.0.2");
    meet("0.0.0.0", "127.1.2.3");
}

BEHAVIOUR("IPv6 wildcard listener", wildcard_v6, accelerated) { meet("::", "::1"); }

BEHAVIOUR("an IPv6-only listener does not hear IPv4", v6only, accelerated) {
    const int listener = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    const Address any = make_address("::", 0);
    MUST(bind(listener, any.raw(), any.length));
    MUST(listen(listener, 8));
    const uint16_t port = local_address(listener).port();
    const int four = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address address4 = make_address("127.0.0.1", port);
    SHOW(connect(four, address4.raw(), address4.length));
    const int six = connect_to(make_address("::1", port));
    exchange(six, MUST(accept(listener, nullptr, nullptr)));
}

// A socket that is IPv6 only may not speak to a mapped address.
BEHAVIOUR("an IPv6-only client may not use mapped addresses", v6only_client_to_mapped, any) {
    const int listener = make_listener("127.0.0.1");
    const int client = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    set_option(client, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    const Address address = make_address("::ffff:127.0.0.1", local_address(listener).port());
    SHOW(connect(client, address.raw(), address.length));
}

BEHAVIOUR("another loopback address, and only that one", other_loopback, accelerated) {
    meet("127.0.0.7", "127.0.0.7");
    // A listener on one loopback address does not answer for another.
    const int listener = make_listener("127.0.0.7");
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address wrong = make_address("127.0.0.8", local_address(listener).port());
    SHOW(connect(client, wrong.raw(), wrong.length));
}

BEHAVIOUR("the host's own IPv4 address", own_v4, accelerated) { meet_at_own_address(AF_INET, "0.0.0.0"); }

BEHAVIOUR("the host's own IPv6 address", own_v6, accelerated) { meet_at_own_address(AF_INET6, "::"); }

// Connecting to the wildcard address means this host.
BEHAVIOUR("connecting to the wildcard address", connect_to_wildcard, accelerated) {
    const int listener = make_listener("127.0.0.1");
    const int client = connect_to(make_address("0.0.0.0", local_address(listener).port()));
    exchange(client, MUST(accept(listener, nullptr, nullptr)));
    const int listener6 = make_listener("::1");
    const int client6 = connect_to(make_address("::", local_address(listener6).port()));
    exchange(client6, MUST(accept(listener6, nullptr, nullptr)));
}

BEHAVIOUR("a client bound to its own address", bound_client, accelerated) {
    const int listener = make_listener("0.0.0.0");
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address from = make_address("127.0.0.9", 0);
    SHOW(bind(client, from.raw(), from.length));
    const uint16_t port = local_address(client).port();
    const Address to = make_address("127.0.0.1", local_address(listener).port());
    SHOW(connect(client, to.raw(), to.length));
    SHOW_BOOL(local_address(client).port() == port);
    exchange(client, MUST(accept(listener, nullptr, nullptr)));
}

// The most specific listener gets the connection, whichever came first.
BEHAVIOUR("one port, two addresses", specific_before_wildcard, accelerated) {
    const int specific = make_listener("127.0.0.1");
    const uint16_t port = local_address(specific).port();
    const int wildcard = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address other = make_address("127.0.0.2", port);
    SHOW(bind(wildcard, other.raw(), other.length));
    SHOW(listen(wildcard, 8));
    const int one = connect_to(make_address("127.0.0.1", port));
    const int two = connect_to(make_address("127.0.0.2", port));
    exchange(one, MUST(accept(specific, nullptr, nullptr)));
    exchange(two, MUST(accept(wildcard, nullptr, nullptr)));
}

BEHAVIOUR("names before, during and after a connection", names_before_and_after, accelerated) {
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    Address name;
    SHOW(getsockname(client, name.raw(), &name.length));
    say("fresh: family %d host %s port %u length %u", name.storage.ss_family, name.host().c_str(),
        name.port(), name.length);
    SHOW(getpeername(client, name.raw(), &name.length));
    SHOW(getpeername(listener, name.raw(), &name.length));
    const Address to = local_address(listener);
    SHOW(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    // The peer has gone: its name stays until the connection is over on both sides.
    close(server);
    wait_for(client, POLLRDHUP);
    SHOW(getpeername(client, name.raw(), &name.length));
    SHOW(getsockname(client, name.raw(), &name.length));
    SHOW_BOOL(name.port() != 0);
    SHOW(shutdown(client, SHUT_WR));
    wait_for(client, POLLHUP);
    SHOW(getpeername(client, name.raw(), &name.length));
    SHOW(getsockname(client, name.raw(), &name.length));
    SHOW_BOOL(name.port() != 0);
}

BEHAVIOUR("names after a reset", names_after_reset, accelerated) {
    const Pair pair = make_pair();
    abort_connection(pair.server);
    wait_for(pair.client, POLLHUP);
    Address name;
    SHOW(getpeername(pair.client, name.raw(), &name.length));
    SHOW(getsockname(pair.client, name.raw(), &name.length));
}

// IPV6_ADDRFORM makes an IPv4 connection of one that was accepted through IPv6, for good.
BEHAVIOUR("from IPv6 to IPv4", address_form, accelerated) {
    const auto change = [](int fd, int form) {
        return setsockopt(fd, IPPROTO_IPV6, IPV6_ADDRFORM, &form, sizeof form);
    };
    const int listener = make_listener("::");
    const uint16_t port = local_address(listener).port();
    const Address v4 = make_address("127.0.0.1", port);
    const int client = connect_to(v4), server = MUST(accept(listener, nullptr, nullptr));
    const int six = connect_to(make_address("::1", port)), six_server = MUST(accept(listener, nullptr, nullptr));
    SHOW(change(client, AF_INET));
    SHOW(change(six, AF_INET));
    SHOW(change(six_server, AF_INET));
    SHOW(change(server, AF_INET6));
    SHOW(setsockopt(server, IPPROTO_IPV6, IPV6_ADDRFORM, bad_pointer<int>(), sizeof(int)));
    SHOW(setsockopt(server, IPPROTO_IPV6, IPV6_ADDRFORM, &port, sizeof port));
    SHOW(change(server, AF_INET));
    SHOW(get_option(server, SOL_SOCKET, SO_DOMAIN));
    Address name;
    SHOW(getsockname(server, name.raw(), &name.length));
    say("family %d host %s length %u", name.storage.ss_family, name.host().c_str(), name.length);
    SHOW(getpeername(server, name.raw(), &name.length));
    say("family %d host %s length %u", name.storage.ss_family, name.host().c_str(), name.length);
    SHOW(change(server, AF_INET));
    exchange(client, server);
    SHOW(shutdown(six, SHUT_WR));
    wait_for(six_server, POLLRDHUP);
    SHOW(change(six_server, AF_INET));
    // A socket of the new kind is left when the connection is undone.
    sockaddr nothing{};
    nothing.sa_family = AF_UNSPEC;
    SHOW(connect(server, &nothing, sizeof nothing));
    const Address any = make_address("127.0.0.1", 0);
    SHOW(bind(server, any.raw(), any.length));
    SHOW(listen(server, 8));
    const int again = connect_to(server);
    exchange(again, MUST(accept(server, nullptr, nullptr)));
}

BEHAVIOUR("short name buffers", short_name_buffers, accelerated) {
    for (const int family : {AF_INET, AF_INET6}) {
        const Pair pair = make_pair(family);
        for (const socklen_t room : {0u, 1u, 2u, 4u, 8u, 16u, 28u, 128u}) {
            unsigned char buffer[128];
            memset(buffer, 0x5a, sizeof buffer);
            socklen_t length = room;
            const int result = getsockname(pair.client, reinterpret_cast<sockaddr *>(buffer), &length);
            size_t touched = 0;
            for (size_t i = 0; i < sizeof buffer; ++i)
                touched = buffer[i] != 0x5a ? i + 1 : touched;
            say("getsockname room %u: %d, length %u, within room %s", room, result, length,
                yes_no(touched <= room));
            length = room;
            memset(buffer, 0x5a, sizeof buffer);
            const int peer = getpeername(pair.server, reinterpret_cast<sockaddr *>(buffer), &length);
            uint16_t got_family = 0;
            memcpy(&got_family, buffer, sizeof got_family);
            say("getpeername room %u: %d, length %u, family %s", room, peer, length,
                yes_no(room >= 2 && got_family == family));
        }
    }
}

BEHAVIOUR("bad name buffers", bad_name_buffers, accelerated) {
    const Pair pair = make_pair();
    Address name;
    socklen_t negative = static_cast<socklen_t>(-1);
    SHOW(getsockname(pair.client, name.raw(), &negative));
    SHOW(getpeername(pair.client, name.raw(), &negative));
    SHOW(getsockname(pair.client, name.raw(), bad_pointer<socklen_t>()));
    SHOW(getpeername(pair.client, name.raw(), bad_pointer<socklen_t>()));
    SHOW(getsockname(pair.client, bad_pointer<sockaddr>(), &name.length));
    SHOW(getpeername(pair.client, bad_pointer<sockaddr>(), &name.length));
    SHOW(getsockname(-1, name.raw(), &name.length));
    SHOW(getpeername(4000, name.raw(), &name.length));
    SHOW(getpeername(0, name.raw(), &name.length));
}

BEHAVIOUR("name buffers of accept", accept_name_buffers, accelerated) {
    const int listener = make_listener();
    for (const socklen_t room : {0u, 2u, 8u, 16u, 100u}) {
        const int client = connect_to(listener);
        Address from;
        from.length = room;
        const int server = MUST(accept(listener, from.raw(), &from.length));
        say("room %u: length %u family %s", room, from.length, yes_no(from.storage.ss_family == AF_INET));
        close(client);
        close(server);
    }
    const int client = connect_to(listener);
    socklen_t length = sizeof(sockaddr_in);
    SHOW(accept(listener, bad_pointer<sockaddr>(), &length));
    // The connection that could not be reported is gone.
    wait_for(client, POLLRDHUP);
    SHOW(recv(client, &length, 1, 0));
}

// SO_REUSEPORT: each gets its share.
BEHAVIOUR("one address, two listeners, one of them the kernel's", reuse_port_with_a_filter, accelerated) {
    const Address any = make_address("127.0.0.1", 0);
    int listener[2];
    Address name = any;
    for (int &fd : listener) {
        fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        if (&fd == &listener[1])
            keep_in_kernel(fd);
        MUST(bind(fd, name.raw(), name.length));
        name = local_address(fd);
    }
    for (const int fd : listener)
        MUST(listen(fd, 512));
    int accepted[2] = {0, 0};
    for (int i = 0; i < 400; ++i) {
        const int client = connect_to(name);
        for (bool found = false; !found;)
            for (int k = 0; k < 2; ++k)
                if (const int server = accept(listener[k], nullptr, nullptr); server >= 0) {
                    ++accepted[k];
                    found = true;
                    close(server);
                }
        close(client);
    }
    // Each is drawn for each connection: that one gets fewer than a fourth happens in no lifetime.
    SHOW_BOOL(accepted[0] > 100 && accepted[1] > 100);
    say("all %d", accepted[0] + accepted[1]);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
