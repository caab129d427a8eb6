// A connection of the kernel that has a slot of a link as well: both ends are in the test itself.
#pragma once
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>

namespace sd::test {

/// A connection of the kernel, both ends of which have a slot of a link as well.
struct PathPair {
    int fd[2];

    explicit PathPair(uint32_t wanted, bool nonblocking = true) {
        LinkMap *l = test_link(0);
        const int64_t slot = take_slot(*l);
        REQUIRE(slot >= 0);
        auto &s = l->view.slot(static_cast<uint32_t>(slot));
        for (auto &side : s.side)
            for (auto *word : {&side.credit.path.offer, &side.credit.path.from, &side.credit.path.taken,
                               &side.credit.counted})
                word->store(0);
        KernelPair kernels;
        for (unsigned side = 0; side < 2; ++side) {
            fd[side] = static_cast<int>(sys::fcntl(kernels.fd[side], F_DUPFD_CLOEXEC, 0));
            if (nonblocking)
                sys::fcntl(fd[side], F_SETFL, O_RDWR | O_NONBLOCK);
            const int one = 1;
            sys::setsockopt(fd[side], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            File *f = new_file(FileKind::free);
            REQUIRE(f);
            f->family = AF_INET;
            f->real_socket = true;
            mark_offered(*f, side);
            f->kind = FileKind::fresh;
            install_file(fd[side], f);
            REQUIRE(become_joined(fd[side], *f, *test_link(side), static_cast<uint32_t>(slot)));
            (f->ofd->opt.*kPathWanted).store(wanted);
        }
    }
    ~PathPair() {
        for (int n : fd)
            if (file_of(n))
                vfs::close(n);
    }
    PathPair(const PathPair &) = delete;
    PathPair &operator=(const PathPair &) = delete;
    File *file(unsigned i) const { return file_of(fd[i]); }
    long send(unsigned i, const void *p, size_t n, int flags = 0) const {
        return vfs::send(fd[i], file(i), p, n, flags | MSG_NOSIGNAL);
    }
    long recv(unsigned i, void *p, size_t n, int flags = 0) const {
        return vfs::recv(fd[i], file(i), p, n, flags);
    }
    uint32_t events(unsigned i) const { return stream_events(*file(i)); }
    int unread(unsigned i) const {
        int n = -1;
        REQUIRE(vfs::ioctl(fd[i], FIONREAD, &n) == 0);
        return n;
    }
    /// What the kernel has not got to the other end's socket yet.
    int unsent(unsigned i) const {
        int n = -1;
        REQUIRE(sys::ioctl(fd[i], SIOCOUTQ, &n) == 0);
        return n;
    }
    /// Moves of the sending direction. Those to the ring have odd numbers, also before they are made.
    uint32_t to_ring(unsigned i) const {
        const uint32_t word = static_cast<uint32_t>((file(i)->ofd->opt.*kPathTx).load());
        return (word >> 8) / 2 + (path_step(word) == kPathRing);
    }
    uint32_t to_kernel(unsigned i) const {
        return (static_cast<uint32_t>((file(i)->ofd->opt.*kPathTx).load()) >> 8) / 2;
    }
};

/// Loopback delivers at once, but for what it does in the background.
template <typename Condition> inline bool soon(Condition condition) {
    for (int i = 0; i < 20000; ++i) {
        if (condition())
            return true;
        usleep(100);
    }
    return false;
}

/// Both directions go over the ring from here on.
inline void settle(const PathPair &p) {
    char room[100];
    for (unsigned i = 0; i < 5; ++i)
        for (unsigned me = 0; me < 2; ++me) {
            REQUIRE(p.send(me, "hello", 5) == 5);
            REQUIRE(soon([&] { return p.recv(1 - me, room, sizeof room) == 5; }));
        }
    for (unsigned me = 0; me < 2; ++me)
        REQUIRE(is_settled_in_ring(*p.file(me)));
}

} // namespace sd::test
