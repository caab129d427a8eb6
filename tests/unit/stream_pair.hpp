// An accelerated connection between two descriptors of the test itself, with no monitor and no listener: both
// ends of one link are mapped into the same process.
#pragma once
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/options/options.hpp"
#include "libsd/vfs/vfs.hpp"

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>

namespace sd::test {

/// The memory of a link, as the monitor makes it.
inline int make_link_memory() {
    const int memfd = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(memfd >= 0);
    REQUIRE(sys::ftruncate(memfd, kLinkBytes) == 0);
    LinkHeader h{};
    h.magic = kLinkMagic;
    h.version = kLayoutVersion;
    h.slots = kLinkSlots;
    h.link_id = 1;
    for (auto &side : h.side)
        side.arena_open = kArenaBytes;
    REQUIRE(sys::call(SYS_pwrite64, memfd, sys::arg(&h), sizeof h, 0) == sizeof h);
    REQUIRE(sys::fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return memfd;
}

inline LinkMap *test_link(unsigned side) {
    static LinkMap *link[2] = {};
    if (link[0])
        return link[side];
    static bool up = (vfs::init(), own_segment());
    REQUIRE(up);
    const int memfd = make_link_memory();
    long error = 0;
    for (unsigned s = 0; s < 2; ++s) {
        link[s] =
            map_link(static_cast<int>(sys::fcntl(memfd, F_DUPFD_CLOEXEC, 0)), 1, s, 0, LinkPeer::own, &error);
        REQUIRE(link[s] != nullptr);
    }
    sys::close(memfd);
    return link[side];
}

/// 127.0.0.1:`client_port` -> 127.0.0.1:`server_port`; fd[0] is the client.
struct StreamPair {
    int fd[2];

    explicit StreamPair(int family = AF_INET, uint16_t client_port = 41000, uint16_t server_port = 80) {
        LinkMap *l = test_link(0);
        const int64_t slot = take_slot(*l); // nobody else has the link: no lock
        REQUIRE(slot >= 0);
        SlotAddress client{}, server{};
        client.family = server.family = static_cast<uint16_t>(family);
        set_loopback(client.ip, family == AF_INET6);
        set_loopback(server.ip, family == AF_INET6);
        client.port = client_port;
        server.port = server_port;
        for (unsigned s = 0; s < 2; ++s) {
            const long r = vfs::socket(family, SOCK_STREAM, 0);
            REQUIRE(r >= 0);
            fd[s] = static_cast<int>(r);
            File &f = *file_of(fd[s]);
            f.stream.client = client;
            f.stream.server = server;
            REQUIRE(bind_stream(f, *test_link(s), static_cast<uint32_t>(slot), static_cast<unsigned>(family)));
            inherit_options(*f.ofd, f, fd[s]);
        }
    }
    ~StreamPair() {
        for (int n : fd)
            if (file_of(n))
                vfs::close(n);
    }
    StreamPair(const StreamPair &) = delete;
    StreamPair &operator=(const StreamPair &) = delete;
    File *file(int i) const { return file_of(fd[i]); }
};

/// A connection of the kernel's own, to compare with.
struct KernelPair {
    int fd[2], listener;

    explicit KernelPair(int family = AF_INET) {
        listener = static_cast<int>(sys::socket(family, SOCK_STREAM, 0));
        sockaddr_storage a{};
        socklen_t n = sizeof a;
        REQUIRE(::listen(listener, 4) == 0);
        REQUIRE(sys::getsockname(listener, &a, &n) == 0);
        if (family == AF_INET)
            reinterpret_cast<sockaddr_in &>(a).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        else
            reinterpret_cast<sockaddr_in6 &>(a).sin6_addr = in6addr_loopback;
        fd[0] = static_cast<int>(sys::socket(family, SOCK_STREAM, 0));
        REQUIRE(sys::connect(fd[0], &a, n) == 0);
        fd[1] = static_cast<int>(sys::accept4(listener, nullptr, nullptr, 0));
        REQUIRE(fd[1] >= 0);
    }
    ~KernelPair() {
        for (int n : {fd[0], fd[1], listener})
            sys::close(n);
    }
    KernelPair(const KernelPair &) = delete;
    KernelPair &operator=(const KernelPair &) = delete;
};

/// vfs calls return kPass where the kernel's own call is to be made, as the interposed function does.
inline long set_option(int fd, int level, int name, const void *value, socklen_t n) {
    long r = file_of(fd) ? vfs::setsockopt(fd, level, name, value, n) : vfs::kPass;
    return r == vfs::kPass ? sys::setsockopt(fd, level, name, value, n) : r;
}
inline long get_option(int fd, int level, int name, void *value, socklen_t *n) {
    long r = file_of(fd) ? vfs::getsockopt(fd, level, name, value, n) : vfs::kPass;
    return r == vfs::kPass ? sys::getsockopt(fd, level, name, value, n) : r;
}

} // namespace sd::test
