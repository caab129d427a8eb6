// Addresses of both ends, against the kernel's rules for lengths and pointers.
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include <arpa/inet.h>
#include <cstring>

using namespace sd;
using namespace sd::test;

TEST_CASE("both ends name each other") {
    for (int family : {AF_INET, AF_INET6}) {
        StreamPair p(family, 41234, 8080);
        for (int end : {0, 1}) {
            sockaddr_in6 own{}, peer{};
            socklen_t n = sizeof own, m = sizeof peer;
            CHECK(vfs::getsockname(p.fd[end], reinterpret_cast<sockaddr *>(&own), &n) == 0);
            CHECK(vfs::getpeername(p.fd[end], reinterpret_cast<sockaddr *>(&peer), &m) == 0);
            const socklen_t full = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
            CHECK(n == full);
            CHECK(m == full);
            CHECK(own.sin6_family == family);
            CHECK(ntohs(own.sin6_port) == (end == 0 ? 41234 : 8080));
            CHECK(ntohs(peer.sin6_port) == (end == 0 ? 8080 : 41234));
            if (family == AF_INET6)
                CHECK(memcmp(&own.sin6_addr, &in6addr_loopback, sizeof in6addr_loopback) == 0);
            else
                CHECK(reinterpret_cast<sockaddr_in &>(own).sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        }
    }
}

TEST_CASE("short, wrong and missing rooms are treated as by the kernel") {
    StreamPair ours;
    KernelPair kernels;
    for (int room : {-1, 0, 1, 2, 7, 16, 28, 128}) {
        unsigned char a[128], b[128];
        memset(a, 0x5a, sizeof a);
        memset(b, 0x5a, sizeof b);
        socklen_t n = static_cast<socklen_t>(room), m = n;
        CHECK(vfs::getsockname(ours.fd[0], reinterpret_cast<sockaddr *>(a), &n) ==
              sys::getsockname(kernels.fd[0], b, &m));
        CHECK(n == m);
        for (size_t i = 0; i < sizeof a; ++i) {
            const bool touched = a[i] != 0x5a, kernel_touched = b[i] != 0x5a;
            if (i < 2 || i > 7) // port and address are other ones
                CHECK(touched == kernel_touched);
        }
    }
}

TEST_CASE("a fresh socket has no name and no peer") {
    test_link(0);
    for (int family : {AF_INET, AF_INET6}) {
        const int ours = static_cast<int>(vfs::socket(family, SOCK_STREAM, 0));
        const int kernels = static_cast<int>(sys::socket(family, SOCK_STREAM, 0));
        sockaddr_storage a{}, b{};
        socklen_t n = sizeof a, m = sizeof b;
        CHECK(vfs::getsockname(ours, reinterpret_cast<sockaddr *>(&a), &n) == sys::getsockname(kernels, &b, &m));
        CHECK(n == m);
        CHECK(memcmp(&a, &b, sizeof a) == 0);
        CHECK(vfs::getpeername(ours, reinterpret_cast<sockaddr *>(&a), &n) == sys::getpeername(kernels, &b, &m));
        CHECK_FALSE(file_of(ours)->real_socket);
        vfs::close(ours);
        sys::close(kernels);
    }
}

TEST_CASE("the peer's name goes with the connection, the own name stays") {
    StreamPair p;
    sockaddr_storage a{};
    socklen_t n = sizeof a;
    vfs::shutdown(p.fd[1], SHUT_WR);
    CHECK(vfs::getpeername(p.fd[0], reinterpret_cast<sockaddr *>(&a), &n) == 0);
    vfs::shutdown(p.fd[0], SHUT_WR);
    CHECK(vfs::getpeername(p.fd[0], reinterpret_cast<sockaddr *>(&a), &n) == -ENOTCONN);
    CHECK(vfs::getsockname(p.fd[0], reinterpret_cast<sockaddr *>(&a), &n) == 0);
}

TEST_CASE("SO_PEERNAME refuses more room than there is address") {
    StreamPair ours;
    KernelPair kernels;
    for (socklen_t room : {0u, 2u, 16u, 17u, 128u}) {
        char a[128], b[128];
        socklen_t n = room, m = room;
        CHECK(get_option(ours.fd[0], SOL_SOCKET, SO_PEERNAME, a, &n) ==
              sys::getsockopt(kernels.fd[0], SOL_SOCKET, SO_PEERNAME, b, &m));
        CHECK(n == m);
    }
}
