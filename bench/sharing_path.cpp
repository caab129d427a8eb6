// The send and receive path on a connection of this process with itself; compiled twice, see sharing.cpp.
#include "bench/sharing_path.hpp"
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/options/options.hpp"
#include "libsd/vfs/streams/fast_path.hpp"
#include "libsd/vfs/vfs.hpp"

#include <cstdio>
#include <cstdlib>
#include <sched.h>
#include <thread>

using namespace sd;

namespace {

int end[2];

void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "sharing: %s failed\n", what);
        abort();
    }
}

LinkMap *map_side(long memfd, unsigned side) {
    long error = 0;
    LinkMap *l = map_link(static_cast<int>(sys::fcntl(static_cast<int>(memfd), F_DUPFD_CLOEXEC, 0)), 1, side,
                          0, LinkPeer::own, &error);
    must(l != nullptr, "map_link");
    return l;
}

// As libc's names in libsd/api/sockets/io.cpp do it. Those are never part of their caller; g++ would make one
// of these so where it is shorter without tokens.
[[gnu::noinline]] long send_small(int side, const void *p, size_t n) {
    File *f = file_of(end[side]);
    const long r = fast_send(end[side], *f, p, n, 0);
    return r ? r : vfs::send(end[side], f, p, n, 0);
}
[[gnu::noinline]] long recv_small(int side, void *p, size_t n, int flags) {
    File *f = file_of(end[side]);
    const long r = fast_recv(end[side], *f, p, n, flags);
    return r ? r : vfs::recv(end[side], f, p, n, flags);
}

/// Looks until something is there; there is no monitor here that could wake anybody.
void receive(int side) {
    char buffer[8];
    long r;
    while ((r = recv_small(side, buffer, sizeof buffer, MSG_DONTWAIT)) == -EAGAIN) {
    }
    must(r == sizeof buffer, "recv");
}

} // namespace

extern "C" void sharing_setup() {
    vfs::init();
    must(own_segment(), "own_segment");
    const long memfd = sys::memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(memfd >= 0 && sys::ftruncate(static_cast<int>(memfd), kLinkBytes) == 0, "memfd");
    LinkHeader h{};
    h.magic = kLinkMagic;
    h.version = kLayoutVersion;
    h.slots = kLinkSlots;
    h.link_id = 1;
    for (auto &side : h.side)
        side.arena_open = kArenaBytes;
    must(sys::call(SYS_pwrite64, memfd, sys::arg(&h), sizeof h, 0) == sizeof h, "pwrite");
    must(sys::fcntl(static_cast<int>(memfd), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
         "seal");
    LinkMap *link[2] = {map_side(memfd, 0), map_side(memfd, 1)};
    const int64_t slot = take_slot(*link[0]); // nobody else has the link: no lock
    must(slot >= 0, "take_slot");
    for (unsigned side = 0; side < 2; ++side) {
        const long fd = vfs::socket(AF_INET, SOCK_STREAM, 0);
        must(fd >= 0, "socket");
        end[side] = static_cast<int>(fd);
        must(bind_stream(*file_of(end[side]), *link[side], static_cast<uint32_t>(slot), AF_INET),
             "bind_stream");
    }
}

extern "C" void sharing_run(unsigned long rounds) {
    char buffer[8] = {};
    for (unsigned long i = 0; i < rounds; ++i) {
        must(send_small(0, buffer, sizeof buffer) == sizeof buffer, "send");
        must(recv_small(1, buffer, sizeof buffer, 0) == sizeof buffer, "recv");
    }
}

extern "C" void sharing_round_trips(unsigned long rounds, int cpu) {
    std::thread echo([=] {
        if (cpu >= 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(static_cast<unsigned>(cpu), &set);
            sched_setaffinity(0, sizeof set, &set);
        }
        char buffer[8] = {};
        for (unsigned long i = 0; i < rounds; ++i) {
            receive(1);
            must(send_small(1, buffer, sizeof buffer) == sizeof buffer, "send");
        }
    });
    char buffer[8] = {};
    for (unsigned long i = 0; i < rounds; ++i) {
        must(send_small(0, buffer, sizeof buffer) == sizeof buffer, "send");
        receive(0);
    }
    echo.join();
}
