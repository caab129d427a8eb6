// Socket options of ours against those of a kernel socket in the same state.
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include <cstring>
#include <linux/tcp.h>
#include <memory>
#include <string>
#include <sys/time.h>
#include <vector>

using namespace sd;
using namespace sd::test;

namespace {

struct Option {
    int level, name, value;
};

const std::vector<Option> kInts = {
    {SOL_SOCKET, SO_REUSEADDR, 3},
    {SOL_SOCKET, SO_REUSEPORT, 1},
    {SOL_SOCKET, SO_KEEPALIVE, -1},
    {SOL_SOCKET, SO_OOBINLINE, 1},
    {SOL_SOCKET, SO_BROADCAST, 1},
    {SOL_SOCKET, SO_DONTROUTE, 1},
    {SOL_SOCKET, SO_PRIORITY, 4},
    {SOL_SOCKET, SO_PRIORITY, 400},
    {SOL_SOCKET, SO_RCVLOWAT, 7},
    {SOL_SOCKET, SO_RCVLOWAT, 0},
    {SOL_SOCKET, SO_RCVLOWAT, 1 << 30},
    {SOL_SOCKET, SO_RCVLOWAT, -1},
    {SOL_SOCKET, SO_SNDBUF, 50000},
    {SOL_SOCKET, SO_SNDBUF, 1},
    {SOL_SOCKET, SO_SNDBUF, 1 << 30},
    {SOL_SOCKET, SO_RCVBUF, 40000},
    {SOL_SOCKET, SO_RCVBUF, -7},
    {SOL_SOCKET, SO_SNDLOWAT, 5},
    {SOL_SOCKET, SO_TYPE, 1},
    {SOL_SOCKET, SO_ERROR, 1},
    {SOL_SOCKET, 9999, 1},
    {SOL_SOCKET, SO_ZEROCOPY, 1},
    {SOL_SOCKET, SO_ZEROCOPY, 2},
    {SOL_SOCKET, SO_ZEROCOPY, 0},
    {IPPROTO_TCP, TCP_NODELAY, 2},
    {IPPROTO_TCP, TCP_CORK, 5},
    {IPPROTO_TCP, TCP_KEEPIDLE, 77},
    {IPPROTO_TCP, TCP_KEEPIDLE, 0},
    {IPPROTO_TCP, TCP_KEEPIDLE, 40000},
    {IPPROTO_TCP, TCP_KEEPINTVL, 11},
    {IPPROTO_TCP, TCP_KEEPCNT, 3},
    {IPPROTO_TCP, TCP_KEEPCNT, 128},
    {IPPROTO_TCP, TCP_SYNCNT, 4},
    {IPPROTO_TCP, TCP_SYNCNT, 0},
    {IPPROTO_TCP, TCP_LINGER2, 9},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, 30000},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, -1},
    {IPPROTO_TCP, 9999, 1},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000},
    {IPPROTO_IP, IP_TOS, 18},
    {IPPROTO_IP, IP_TTL, 33},
    {IPPROTO_IP, IP_TTL, 300},
    {IPPROTO_IPV6, IPV6_V6ONLY, 1},
    {IPPROTO_IP, 9999, 1},
    {7777, 1, 1},
};

std::string read_back(int fd, int level, int name) {
    unsigned char value[64];
    memset(value, 0x5a, sizeof value);
    socklen_t n = 40;
    const long r = get_option(fd, level, name, value, &n);
    std::string s = std::to_string(r);
    s.append(" length ").append(std::to_string(n)).append(":");
    for (unsigned char c : value)
        s.append(1, ' ').append(std::to_string(c));
    return s;
}

bool kernel_tunes(const Option &o) {
    return o.level == SOL_SOCKET && (o.name == SO_SNDBUF || o.name == SO_RCVBUF);
}

void compare_all(int ours, int kernels, bool tuned) {
    for (const Option &o : kInts) {
        INFO("level " << o.level << " name " << o.name);
        if (tuned || !kernel_tunes(o))
            CHECK(read_back(ours, o.level, o.name) == read_back(kernels, o.level, o.name));
    }
}

int fresh_socket(int family) {
    test_link(0);
    return static_cast<int>(vfs::socket(family, SOCK_STREAM, 0));
}

} // namespace

TEST_CASE("a socket that is not connected reads back every option as the kernel's does") {
    for (int family : {AF_INET, AF_INET6}) {
        const int ours = fresh_socket(family), kernels = static_cast<int>(sys::socket(family, SOCK_STREAM, 0));
        compare_all(ours, kernels, true);
        for (const Option &o : kInts) {
            INFO("family " << family << " level " << o.level << " name " << o.name << " value " << o.value);
            CHECK(set_option(ours, o.level, o.name, &o.value, sizeof o.value) ==
                  sys::setsockopt(kernels, o.level, o.name, &o.value, sizeof o.value));
            CHECK(read_back(ours, o.level, o.name) == read_back(kernels, o.level, o.name));
        }
        compare_all(ours, kernels, true);
        vfs::close(ours);
        sys::close(kernels);
    }
}

TEST_CASE(
    "common options leave a socket without a kernel socket of its own, and are replayed when it gets one") {
    const int fd = fresh_socket(AF_INET);
    const int one = 1, idle = 33;
    const timeval t{1, 0};
    CHECK(set_option(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    CHECK(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    const std::string before = read_back(fd, IPPROTO_TCP, TCP_KEEPIDLE);
    CHECK_FALSE(file_of(fd)->real_socket);
    CHECK(materialise(fd, *file_of(fd)) == 0);
    CHECK(file_of(fd)->real_socket);
    CHECK(read_back(fd, IPPROTO_TCP, TCP_KEEPIDLE) == before);
    int v = 0;
    socklen_t n = sizeof v;
    CHECK(sys::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &n) == 0);
    CHECK(v == 1);
    timeval got{};
    n = sizeof got;
    CHECK(sys::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &n) == 0);
    CHECK(got.tv_sec == 1);
    vfs::close(fd);
}

TEST_CASE("options set on one placeholder do not show on another") {
    const int a = fresh_socket(AF_INET), b = fresh_socket(AF_INET);
    const int one = 1, size = 100000;
    for (int name : {SO_KEEPALIVE, SO_DONTROUTE})
        CHECK(set_option(a, SOL_SOCKET, name, &one, sizeof one) == 0);
    CHECK(set_option(a, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    const int plain = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    compare_all(b, plain, true);
    sys::close(plain);
    vfs::close(a);
    vfs::close(b);
}

TEST_CASE("a connection reads back and takes options as the kernel's does") {
    for (int family : {AF_INET, AF_INET6}) {
        StreamPair ours(family);
        KernelPair kernels(family);
        for (int end : {0, 1}) {
            compare_all(ours.fd[end], kernels.fd[end], false);
            for (const Option &o : kInts) {
                INFO("family " << family << " level " << o.level << " name " << o.name << " value " << o.value);
                CHECK(set_option(ours.fd[end], o.level, o.name, &o.value, sizeof o.value) ==
                      sys::setsockopt(kernels.fd[end], o.level, o.name, &o.value, sizeof o.value));
                CHECK(read_back(ours.fd[end], o.level, o.name) == read_back(kernels.fd[end], o.level, o.name));
            }
            CHECK(ours.file(end)->kind == FileKind::stream);
        }
    }
}

TEST_CASE("timeouts and linger read back as the kernel rounds them") {
    StreamPair ours;
    KernelPair kernels;
    const int a = ours.fd[0], b = kernels.fd[0];
    const timeval times[] = {{0, 1},  {0, 4000},    {0, 4001}, {2, 999999}, {0, 0},
                             {-1, 5}, {0, 1000000}, {0, -1},   {100000, 7}};
    for (const timeval &t : times)
        for (int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
            INFO(t.tv_sec << "." << t.tv_usec);
            CHECK(set_option(a, SOL_SOCKET, name, &t, sizeof t) ==
                  sys::setsockopt(b, SOL_SOCKET, name, &t, sizeof t));
            CHECK(read_back(a, SOL_SOCKET, name) == read_back(b, SOL_SOCKET, name));
        }
    const linger lingers[] = {{0, 7}, {1, 5}, {0, 9}, {7, 0}};
    for (const linger &l : lingers) {
        INFO(l.l_onoff << " " << l.l_linger);
        CHECK(set_option(a, SOL_SOCKET, SO_LINGER, &l, sizeof l) ==
              sys::setsockopt(b, SOL_SOCKET, SO_LINGER, &l, sizeof l));
        CHECK(read_back(a, SOL_SOCKET, SO_LINGER) == read_back(b, SOL_SOCKET, SO_LINGER));
    }
}

TEST_CASE("wrong lengths are refused as the kernel refuses them, or cut") {
    StreamPair ours;
    KernelPair kernels;
    const int fresh = fresh_socket(AF_INET), plain = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    const int pairs[][2] = {{ours.fd[0], kernels.fd[0]}, {fresh, plain}};
    for (auto [a, b] : pairs)
        for (int length : {-1, 0, 1, 3, 4, 5, 8, 15, 16, 17, 100}) {
            const auto n = static_cast<socklen_t>(length);
            for (auto [level, name] : {std::pair{SOL_SOCKET, SO_KEEPALIVE},
                                       {SOL_SOCKET, SO_LINGER},
                                       {SOL_SOCKET, SO_RCVTIMEO},
                                       {IPPROTO_TCP, TCP_NODELAY},
                                       {IPPROTO_TCP, TCP_KEEPCNT},
                                       {IPPROTO_IP, IP_TOS},
                                       {SOL_SOCKET, SO_TYPE},
                                       {SOL_SOCKET, SO_PEERCRED},
                                       {SOL_SOCKET, SO_RCVLOWAT}}) {
                INFO("level " << level << " name " << name << " length " << length);
                char value[100] = {1};
                CHECK(set_option(a, level, name, value, n) == sys::setsockopt(b, level, name, value, n));
                unsigned char x[100], y[100];
                memset(x, 0x5a, sizeof x);
                memset(y, 0x5a, sizeof y);
                socklen_t m = n, k = n;
                CHECK(get_option(a, level, name, x, &m) == sys::getsockopt(b, level, name, y, &k));
                CHECK(m == k);
                CHECK(memcmp(x, y, sizeof x) == 0);
            }
        }
    vfs::close(fresh);
    sys::close(plain);
}

TEST_CASE("options only the kernel can honour are remembered as the reason not to accelerate") {
    const int one = 1, zero = 0;
    int fd = fresh_socket(AF_INET);
    CHECK(set_option(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_DONTROUTE, &one, sizeof one) == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_TIMESTAMP, &zero, sizeof zero) == 0);
    CHECK(file_of(fd)->unconnected.refuse_cause == 0);
    CHECK(set_option(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one) == 0);
    CHECK(file_of(fd)->unconnected.refuse_cause == static_cast<uint8_t>(Cause::option));
    vfs::close(fd);
    fd = fresh_socket(AF_INET);
    CHECK(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one) == 0);
    CHECK(file_of(fd)->unconnected.refuse_cause == static_cast<uint8_t>(Cause::fast_open));
    vfs::close(fd);
}

TEST_CASE("what cannot work on an accelerated connection is refused as by a kernel without it") {
    StreamPair p;
    const int one = 1;
    CHECK(set_option(p.fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3) == -ENOENT);
    CHECK(set_option(p.fd[0], IPPROTO_TCP, TCP_REPAIR, &one, sizeof one) == -EPERM);
    CHECK_FALSE(p.file(0)->real_socket);
}

TEST_CASE("a full record of options is not lost") {
    const int fd = fresh_socket(AF_INET);
    int set = 0;
    for (unsigned i = 0; const KnownOption *k = known_option_at(i); ++i) {
        if (k->level == IPPROTO_IPV6)
            continue;
        unsigned char value[16] = {static_cast<unsigned char>(k->rule == Rule::range && k->hi == 1 ? 1 : 2)};
        ++set;
        CHECK(set_option(fd, k->level, k->name, value,
                         k->rule == Rule::timeout  ? 16
                         : k->rule == Rule::linger ? 8
                                                   : 4) == 0);
    }
    CHECK(set > static_cast<int>(FreshState::kMax));
    CHECK(file_of(fd)->real_socket);
    Ofd o{};
    inherit_options(o, *file_of(fd), fd);
    CHECK(o.opt.keepidle.load() == 2);
    CHECK(o.opt.nodelay.load() == 1);
    CHECK(o.rcvlowat.load() == 2);
    CHECK(o.rcvtimeo_ns.load() == 2'000'000'000);
    vfs::close(fd);
}

TEST_CASE("TCP_INFO follows the state of the connection and has the kernel's size") {
    StreamPair ours;
    KernelPair kernels;
    const auto state = [](int fd) {
        char room[1024] = {};
        socklen_t n = sizeof room;
        CHECK(get_option(fd, IPPROTO_TCP, TCP_INFO, room, &n) == 0);
        return std::pair{int{room[0]}, n};
    };
    CHECK(state(ours.fd[0]) == state(kernels.fd[0]));
    char byte = 0;
    socklen_t n = 1;
    CHECK(get_option(ours.fd[0], IPPROTO_TCP, TCP_INFO, &byte, &n) == 0);
    CHECK(n == 1);
    vfs::shutdown(ours.fd[0], SHUT_WR);
    CHECK(state(ours.fd[0]).first == 5);
    CHECK(state(ours.fd[1]).first == 8);
    vfs::shutdown(ours.fd[1], SHUT_WR);
    CHECK(state(ours.fd[0]).first == 7);
    CHECK(state(ours.fd[1]).first == 7);
}

TEST_CASE("an accepted socket has its listener's options, also when they change") {
    test_link(0);
    const int listener = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    const int one = 1, idle = 44, buffer = 30000, tos = 16;
    CHECK(sys::setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    CHECK(sys::setsockopt(listener, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) == 0);
    CHECK(sys::setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer) == 0);
    CHECK(sys::setsockopt(listener, IPPROTO_IP, IP_TOS, &tos, sizeof tos) == 0);
    ListenerOptions cache;
    InheritedSet s;
    cache.read(listener, s);
    CHECK(s.stored[2] == 1);
    CHECK(s.stored[6] == 44);
    CHECK(s.sndbuf == 60000);
    for (uint32_t i = 0; i < s.extras; ++i)
        UNSCOPED_INFO("level " << s.extra[i].level << " name " << s.extra[i].name);
    CHECK(s.extras == 3); // the buffer, IP_TOS, and the priority that it must not change
    const int zero = 0;
    CHECK(sys::setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &zero, sizeof zero) == 0);
    cache.read(listener, s);
    CHECK(s.stored[2] == 1); // from the cache
    cache.forget();
    cache.read(listener, s);
    CHECK(s.stored[2] == 0);
    sys::close(listener);
}

TEST_CASE("a buffer that the kernel has grown is not taken for the program's choice") {
    const int listener = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    const int client = static_cast<int>(sys::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof name;
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr *>(&name), n) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr *>(&name), &n) == 0);
    REQUIRE(::connect(client, reinterpret_cast<sockaddr *>(&name), n) == 0); // grows it
    auto o = std::make_unique<Ofd>();
    options_from_kernel(*o, client);
    CHECK(o->opt.sndbuf == 0);
    const int chosen = 30000;
    REQUIRE(sys::setsockopt(client, SOL_SOCKET, SO_SNDBUF, &chosen, sizeof chosen) == 0);
    options_from_kernel(*o, client);
    CHECK(o->opt.sndbuf == 60000);
    sys::close(client);
    sys::close(listener);
}

TEST_CASE("options that another process has written down are not longer than their values") {
    const int fd = fresh_socket(AF_INET);
    File &f = *file_of(fd);
    FreshOption from[4]{};
    for (FreshOption &o : from)
        o = {SOL_SOCKET, SO_KEEPALIVE, sizeof(int), {1}};
    from[0].length = sizeof from[0].value + 1;
    from[1].length = -1;
    from[2].length = INT32_MIN;
    FreshOption kept[FreshState::kMax];
    restore_options(f, from, 3);
    CHECK(copy_options(f, kept) == 0);
    restore_options(f, from, 4);
    REQUIRE(copy_options(f, kept) == 1);
    CHECK(kept[0].length == sizeof(int));
    vfs::close(fd);
}
