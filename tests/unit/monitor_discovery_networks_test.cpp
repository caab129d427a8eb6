// Which connections between network namespaces are found to have libsd at both ends, and may be joined:
// through veth, bridges, routers, address translation, boxes that change packets; and what a hostile end can
// make of it.
#include "monitor/discovery/bridges.hpp"
#include "monitor/discovery/discovery.hpp"
#include "monitor/kernel/process_info.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/box.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <sys/wait.h>

using namespace sd;
using namespace sd::test;
using monitor::DiscoveredEnd;
using monitor::Discovery;
using monitor::Party;

namespace {

struct Finder {
    OwnGroup group;
    std::unique_ptr<Discovery> discovery;
    Finder() {
        monitor::Paths paths;
        paths.discovery = true;
        paths.group = group.path().substr(monitor::unified_top().size());
        if (group.is_made()) {
            discovery = std::make_unique<Discovery>(paths);
        }
    }
    bool is_on() const { return discovery && discovery->is_on(); }

    Cause examine(const UniqueFd &socket, DiscoveredEnd &end) const {
        return discovery->examine(socket.get(), netns_cookie(socket), end);
    }
    Cause why(const UniqueFd &socket) const {
        DiscoveredEnd end;
        return examine(socket, end);
    }
    /// None: the two are the ends of one connection and may be joined.
    Cause objection(const UniqueFd &a, const UniqueFd &b) const {
        DiscoveredEnd one, two;
        const Cause cause = examine(a, one), other = examine(b, two);
        if (cause != Cause::none || other != Cause::none) {
            return cause != Cause::none ? cause : other;
        }
        const UniqueFd self = monitor::open_pidfd(getpid());
        const Party party = Discovery::party_of(one, getpid(), self.get());
        return discovery->objection(one, party, two, Discovery::party_of(two, getpid(), self.get()));
    }
    Cause objection(const Joined &c) const { return objection(c.client, c.server); }
    uint64_t count(unsigned state) const { return discovery->counts()[state]; }
};

bool may_try() {
    static const bool may = geteuid() == 0 && Finder().is_on();
    return may;
}

#define NEEDS_THE_KERNEL                                                                                     \
    if (!may_try()) {                                                                                        \
        SKIP_TEST("it takes root, CAP_BPF, CAP_NET_ADMIN and a unified hierarchy of control groups");        \
    }

/// Two namespaces on a bridge of a third, as engines make them.
struct Bridged {
    Net host, a, b;
    Bridged() {
        host.run("ip link add br0 type bridge && ip link set br0 up");
        host.give("br0", "10.5.0.254/24");
        host.give("br0", "fd05::fe/64");
        add(a, "a", "1");
        add(b, "b", "2");
        meet(a, Place("10.5.0.2", 1));
        meet(a, Place("fd05::2", 1));
    }
    void add(const Net &net, const std::string &name, const std::string &number) const {
        host.join("h" + name, "", net, "e" + name, "10.5.0." + number + "/24");
        net.give("e" + name, "fd05::" + number + "/64");
        net.run("ip route add default via 10.5.0.254 && ip -6 route add default via fd05::fe");
        host.run("ip link set h" + name + " master br0");
    }
};

/// A router between two networks.
struct Routed {
    Net router, a, b;
    Routed() {
        router.join("ra", "10.1.0.254/24", a, "e", "10.1.0.1/24");
        router.join("rb", "10.2.0.254/24", b, "e", "10.2.0.1/24");
        router.give("ra", "fd01::fe/64");
        router.give("rb", "fd02::fe/64");
        a.give("e", "fd01::1/64");
        b.give("e", "fd02::1/64");
        router.run("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
        a.run("ip route add default via 10.1.0.254 && ip -6 route add default via fd01::fe");
        b.run("ip route add default via 10.2.0.254 && ip -6 route add default via fd02::fe");
        meet(a, Place("10.2.0.1", 1));
        meet(a, Place("fd02::1", 1));
    }
    void nft(const std::string &rules) const { router.run("nft '" + rules + "'"); }
};

} // namespace

TEST_CASE("found within one namespace, and through veth, IPv4 and IPv6") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Net a, b;
    a.join("e", "10.7.0.1/24", b, "e", "10.7.0.2/24");
    a.give("e", "fd07::1/64");
    b.give("e", "fd07::2/64");
    meet(a, Place("10.7.0.2", 1));
    meet(a, Place("fd07::2", 1));
    REQUIRE(finder.objection(Joined(a, a, Place("127.0.0.1", 700))) == Cause::none);
    REQUIRE(finder.objection(Joined(a, b, Place("10.7.0.2", 700))) == Cause::none);
    REQUIRE(finder.objection(Joined(a, b, Place("fd07::2", 700))) == Cause::none);
    REQUIRE(finder.objection(Joined(b, a, Place("10.7.0.1", 700))) == Cause::none);
}

TEST_CASE("found on one bridge, and the bridge is known from the host's side") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Bridged net;
    for (const char *address : {"10.5.0.2", "fd05::2"}) {
        const Joined c(net.a, net.b, Place(address, 700));
        REQUIRE(finder.objection(c) == Cause::none);
        // As a monitor in the host's namespace sees it.
        const Inside host(net.host.fd());
        const Finder of_host;
        const auto number_a = monitor::namespace_number(net.a.fd()),
                   number_b = monitor::namespace_number(net.b.fd());
        REQUIRE(number_a);
        REQUIRE(number_b);
        REQUIRE(monitor::bridges_to(*number_a).size() == 1);
        REQUIRE(monitor::bridges_to(*number_a) == monitor::bridges_to(*number_b));
        const Net elsewhere;
        REQUIRE_FALSE(monitor::namespace_number(elsewhere.fd()));
    }
}

TEST_CASE("found through a router") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Routed net;
    REQUIRE(finder.objection(Joined(net.a, net.b, Place("10.2.0.1", 700))) == Cause::none);
    REQUIRE(finder.objection(Joined(net.a, net.b, Place("fd02::1", 700))) == Cause::none);
}

TEST_CASE("found through translated addresses, of the server and of the client") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Routed net;
    SECTION("DNAT") {
        net.nft("add table ip t; add chain ip t pre { type nat hook prerouting priority -100; }; "
                "add rule ip t pre tcp dport 80 dnat to 10.2.0.1:700");
        REQUIRE(finder.objection(Joined(net.a, net.b, Place("10.2.0.1", 700), Place("10.1.0.254", 80))) ==
                Cause::none);
    }
    SECTION("DNAT, IPv6") {
        net.nft("add table ip6 t; add chain ip6 t pre { type nat hook prerouting priority -100; }; "
                "add rule ip6 t pre tcp dport 80 dnat to [fd02::1]:700");
        REQUIRE(finder.objection(Joined(net.a, net.b, Place("fd02::1", 700), Place("fd01::fe", 80))) ==
                Cause::none);
    }
    SECTION("SNAT") {
        net.nft("add table ip t; add chain ip t post { type nat hook postrouting priority 100; }; "
                "add rule ip t post oifname rb masquerade");
        REQUIRE(finder.objection(Joined(net.a, net.b, Place("10.2.0.1", 700))) == Cause::none);
    }
    SECTION("both") {
        net.nft(
            "add table ip t; add chain ip t pre { type nat hook prerouting priority -100; }; "
            "add chain ip t post { type nat hook postrouting priority 100; }; "
            "add rule ip t pre tcp dport 80 dnat to 10.2.0.1:700; add rule ip t post oifname rb masquerade");
        REQUIRE(finder.objection(Joined(net.a, net.b, Place("0.0.0.0", 700), Place("10.1.0.254", 80))) ==
                Cause::none);
    }
}

TEST_CASE("a proxy makes two connections, and each is judged for itself") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Routed net;
    const auto has = GENERATE(Has::libsd, Has::nothing);
    const UniqueFd listener = listen_at(net.b, Place("10.2.0.1", 700)),
                   proxy = listen_at(net.router, Place("10.1.0.254", 80), has);
    const UniqueFd client = connect_to(net.a, Place("10.1.0.254", 80)), front = accept_at(proxy.get()),
                   back = connect_to(net.router, Place("10.2.0.1", 700), has),
                   server = accept_at(listener.get());
    if (has == Has::libsd) {
        REQUIRE(finder.objection(client, front) == Cause::none);
        REQUIRE(finder.objection(back, server) == Cause::none);
    } else {
        REQUIRE(finder.why(client) == Cause::undiscovered);
        REQUIRE(finder.why(server) == Cause::undiscovered);
    }
    REQUIRE(finder.objection(client, server) == Cause::undiscovered);
}

TEST_CASE("what a rule cuts is cut: there is no connection to be found") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Routed net;
    net.nft("add table inet t; add chain inet t f { type filter hook forward priority 0; }; "
            "add rule inet t f tcp dport 700 reject with tcp reset");
    const UniqueFd listener = listen_at(net.b, Place("10.2.0.1", 700));
    REQUIRE_THROWS(connect_to(net.a, Place("10.2.0.1", 700)));
    REQUIRE(finder.count(SD_PAIRED) == 0);
}

TEST_CASE("boxes that leave the option as it is, and those that do not") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Net a, b;
    const Place at("10.6.0.2", 700);
    std::atomic<unsigned> with_option{0}, syns{0};
    const auto through = [&](const Box::Change &change, Has server = Has::libsd) {
        const Box box(a, b, [&](TcpPacket &packet, bool to_right) {
            syns += packet.is_syn() ? 1 : 0;
            with_option += packet.is_syn() && packet.option() != nullptr ? 1 : 0;
            return change(packet, to_right);
        });
        const Joined c(a, b, at, at, Has::libsd, server);
        char byte = 'x';
        REQUIRE(send(c.client.get(), &byte, 1, 0) == 1); // whatever the box does: it is a connection
        REQUIRE(recv(c.server.get(), &byte, 1, 0) == 1);
        return finder.objection(c);
    };
    SECTION("as it is") {
        REQUIRE(through([](TcpPacket &, bool) { return true; }) == Cause::none);
        REQUIRE(with_option == 1);
    }
    SECTION("taken out of the SYN") {
        REQUIRE(through([](TcpPacket &packet, bool) {
                    if (packet.is_syn()) {
                        packet.remove_option();
                    }
                    return true;
                }) == Cause::undiscovered);
        REQUIRE(finder.count(SD_PLAIN) == 2);
    }
    SECTION("taken out of the SYN-ACK") {
        REQUIRE(through([](TcpPacket &packet, bool) {
                    if (packet.is_syn_ack()) {
                        packet.remove_option();
                    }
                    return true;
                }) == Cause::undiscovered);
        REQUIRE(finder.count(SD_PLAIN) == 1);
    }
    SECTION("sent back as it came, by a server without libsd") {
        sd_option seen{};
        REQUIRE(through(
                    [&](TcpPacket &packet, bool) {
                        if (packet.is_syn() && packet.option() != nullptr) {
                            seen = *packet.option();
                        } else if (packet.is_syn_ack()) {
                            packet.add(seen);
                        }
                        return true;
                    },
                    Has::nothing) == Cause::undiscovered);
        REQUIRE(finder.count(SD_ECHOED) == 1);
    }
    SECTION("an answer by somebody who does not know the key") {
        REQUIRE(through(
                    [](TcpPacket &packet, bool) {
                        if (packet.is_syn_ack()) {
                            packet.add(
                                {SD_OPTION_KIND, sizeof(sd_option), {0x53, 0x44}, 1, {1, 2, 3, 4, 5, 6, 7}, 8});
                        }
                        return true;
                    },
                    Has::nothing) == Cause::undiscovered);
        REQUIRE(finder.count(SD_OTHER_HOST) == 1);
    }
    SECTION("another nonce in the SYN") {
        REQUIRE(through([](TcpPacket &packet, bool) {
                    if (packet.is_syn() && packet.option() != nullptr) {
                        packet.option()->nonce ^= 1;
                    }
                    return true;
                }) == Cause::undiscovered);
        REQUIRE(finder.count(SD_OTHER_HOST) == 2);
    }
    SECTION("another version") {
        REQUIRE(through([](TcpPacket &packet, bool) {
                    if (packet.is_syn() && packet.option() != nullptr) {
                        packet.option()->version = 2;
                    }
                    return true;
                }) == Cause::undiscovered);
    }
    SECTION("sequence numbers that are rewritten: it sits in the stream") {
        REQUIRE(through([](TcpPacket &packet, bool to_right) {
                    constexpr uint32_t kShift = 1000;
                    tcphdr &tcp = packet.tcp();
                    if (to_right) {
                        tcp.seq = htonl(ntohl(tcp.seq) + kShift);
                    } else {
                        tcp.ack_seq = htonl(ntohl(tcp.ack_seq) - kShift);
                    }
                    return true;
                }) == Cause::undiscovered);
        REQUIRE(finder.count(SD_PAIRED) == 2); // each for itself; but not with each other
    }
    SECTION("SYNs with the option are lost: the second has none, and the next connection's neither") {
        const auto lossy = [](TcpPacket &packet, bool) {
            return !packet.is_syn() || packet.option() == nullptr;
        };
        REQUIRE(through(lossy) == Cause::undiscovered);
        REQUIRE(finder.count(SD_SENT_AGAIN) == 1);
        REQUIRE(with_option == 1);
        syns = 0;
        REQUIRE(through(lossy) == Cause::undiscovered);
        REQUIRE(finder.count(SD_SHY) == 1);
        REQUIRE(with_option == 1);
        REQUIRE(syns == 1);
    }
    SECTION("SYN-ACKs with the option are lost: the second has none") {
        std::atomic<unsigned> answers{0};
        REQUIRE(through([&](TcpPacket &packet, bool) {
                    answers += packet.is_syn_ack() ? 1 : 0;
                    return !packet.is_syn_ack() || packet.option() == nullptr;
                }) == Cause::undiscovered);
        REQUIRE(answers >= 2);
    }
}

TEST_CASE("a SYN that somebody has read off the wire and sends himself is nobody's end") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Net a, b;
    const Place at("10.6.0.2", 700);
    sd_option seen{};
    std::unique_ptr<Joined> first;
    // The second connection's SYN carries the words of the first one's.
    const Box box(a, b, [&](TcpPacket &packet, bool) {
        if (packet.is_syn() && packet.option() != nullptr) {
            if (seen.kind == 0) {
                seen = *packet.option();
            } else {
                *packet.option() = seen;
            }
        }
        return true;
    });
    const UniqueFd listener = listen_at(b, at);
    const UniqueFd client = connect_to(a, at), server = accept_at(listener.get());
    const UniqueFd forger = connect_to(a, at), fooled = accept_at(listener.get());
    REQUIRE(finder.objection(client, server) == Cause::none);
    REQUIRE(finder.why(forger) == Cause::undiscovered);
    REQUIRE(finder.why(fooled) == Cause::none); // the words are right
    REQUIRE(finder.objection(client, fooled) == Cause::undiscovered);
    REQUIRE(finder.objection(forger, server) == Cause::undiscovered);
}

TEST_CASE("a descriptor says for which namespace it can be offered, and of what") {
    NEEDS_THE_KERNEL
    const Finder finder;
    const Net a, b;
    a.join("e", "10.7.0.1/24", b, "e", "10.7.0.2/24");
    const Joined c(a, b, Place("10.7.0.2", 700));
    DiscoveredEnd end;
    // Somebody else's, that came from another namespace.
    REQUIRE(finder.discovery->examine(c.client.get(), netns_cookie(c.server), end) == Cause::foreign_namespace);
    // Not a connection.
    REQUIRE(finder.why(c.listener) != Cause::none);
    const UniqueFd udp(socket(AF_INET, SOCK_DGRAM, 0));
    REQUIRE(finder.why(udp) == Cause::foreign_namespace);
    // Both descriptors of one end, or ends of two connections.
    const UniqueFd other = connect_to(a, Place("10.7.0.2", 700)), others = accept_at(c.listener.get());
    REQUIRE(finder.objection(c.client, c.client) == Cause::undiscovered);
    REQUIRE(finder.objection(c.client, other) == Cause::undiscovered);
    REQUIRE(finder.objection(c.client, others) == Cause::undiscovered);
    REQUIRE(finder.objection(other, others) == Cause::none);
    // Only one of two that is still connected.
    shutdown(c.client.get(), SHUT_RDWR);
    REQUIRE(finder.why(c.client) == Cause::foreign_namespace);
}

TEST_CASE("tenants: parts of the tree that are named, and what one engine has started on one bridge") {
    const std::string one(64, 'a'), two(64, 'b');
    const auto at = [](const std::string &group, std::set<unsigned> bridges = {}, bool contained = true) {
        return Party{group, contained, std::move(bridges)};
    };
    const auto same = [](const Party &a, const Party &b, const std::vector<std::string> &patterns = {}) {
        REQUIRE(monitor::same_tenant(a, b, patterns) == monitor::same_tenant(b, a, patterns));
        return monitor::same_tenant(a, b, patterns);
    };
    const Party podman = at("/machine.slice/libpod-" + one + ".scope", {7}),
                neighbour = at("/machine.slice/libpod-" + two + ".scope/init", {5, 7}),
                elsewhere = at("/machine.slice/libpod-" + two + ".scope", {5}),
                docker = at("/system.slice/docker-" + one + ".scope", {7}),
                host = at("/system.slice/a", {}, false), by_hand = at("/user.slice/user-1.slice", {7}),
                unseen = at("?", {7});
    REQUIRE(same(podman, neighbour));
    REQUIRE_FALSE(same(podman, elsewhere));
    REQUIRE_FALSE(same(podman, docker));
    REQUIRE_FALSE(same(podman, by_hand));
    REQUIRE(same(by_hand, by_hand));
    REQUIRE(same(podman, host));
    REQUIRE(same(host, host));
    REQUIRE_FALSE(same(unseen, unseen));
    REQUIRE_FALSE(same(unseen, host));
    // On the host's own network there is no bridge.
    REQUIRE_FALSE(same(at("/docker/" + one), at("/docker/" + two)));

    const std::vector<std::string> patterns{"/kubepods.slice/*-pod*", "/tenants/*"};
    const Party a1 = at("/tenants/a/x"), a2 = at("/tenants/a/y/z"), b1 = at("/tenants/b/x", {7}),
                pod = at("/kubepods.slice/best-pod1/cri-containerd-" + one + ".scope", {7}),
                same_pod = at("/kubepods.slice/best-pod1/cri-containerd-" + two + ".scope", {7}),
                other_pod = at("/kubepods.slice/best-pod2/cri-containerd-" + two + ".scope", {7});
    REQUIRE(same(a1, a2, patterns));
    REQUIRE_FALSE(same(a1, b1, patterns));
    REQUIRE(same(pod, same_pod, patterns));
    REQUIRE_FALSE(same(pod, other_pod, patterns));
    REQUIRE_FALSE(same(pod, podman, patterns));
    REQUIRE(same(pod, host, patterns));
    REQUIRE(same(at("/tenants"), at("/tenants"), patterns) == false); // none, and no bridge in common
}

TEST_CASE("two tenants are not joined, unless it is allowed or they meet in one namespace") {
    NEEDS_THE_KERNEL
    Finder finder;
    const Net a, b;
    a.join("e", "10.7.0.1/24", b, "e", "10.7.0.2/24");
    const Joined far(a, b, Place("10.7.0.2", 700)), near(a, a, Place("127.0.0.1", 700));
    const auto objection = [&](const Joined &c) {
        DiscoveredEnd one, two;
        REQUIRE(finder.examine(c.client, one) == Cause::none);
        REQUIRE(finder.examine(c.server, two) == Cause::none);
        return finder.discovery->objection(one, {"/tenants/a", true, {}}, two, {"/tenants/b", true, {}});
    };
    REQUIRE(objection(far) == Cause::other_tenant);
    REQUIRE(objection(near) == Cause::none);
    monitor::Paths paths;
    paths.discovery = paths.between_tenants = true;
    finder.discovery->reconfigure(paths);
    REQUIRE(objection(far) == Cause::none);
}

TEST_CASE("discovery is off unless it is asked for, and can be turned off again") {
    Discovery off{monitor::Paths()};
    REQUIRE_FALSE(off.is_on());
    REQUIRE(off.why_off() == "the configuration does not turn it on");
    DiscoveredEnd end;
    REQUIRE(off.examine(-1, 0, end) == Cause::discovery_off);
    NEEDS_THE_KERNEL
    const Finder finder;
    REQUIRE(finder.discovery->why_off().empty());
    finder.discovery->reconfigure({});
    REQUIRE_FALSE(finder.is_on());
    REQUIRE(mark(make_socket(AF_INET).get()) == ENOPROTOOPT);
}

TEST_CASE("who somebody is comes from the kernel") {
    const UniqueFd self = monitor::open_pidfd(getpid());
    const Party own = monitor::read_party(getpid(), self.get());
    REQUIRE(own.group.rfind('/', 0) == 0);
    REQUIRE_FALSE(own.is_contained);
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    const UniqueFd pidfd = monitor::open_pidfd(child);
    waitpid(child, nullptr, 0);
    REQUIRE(monitor::read_party(child, pidfd.get()).group == "?");
    REQUIRE(monitor::read_party(0, -1).group == "?");
}
