// What the monitor has ready for those who ask: pools of the peer's, or the socket that a connection which
// has moved goes on as.
#pragma once
#include "libsd/layout/pool_layout.hpp"
#include "tests/fuzz/process.hpp"

#include <array>
#include <sys/stat.h>

namespace sdfuzz {

class Answers {
  public:
    enum class What { pools, socket, connected };
    void make(Process &process, What what) {
        const int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
        must(lowest >= 0 && close(lowest) == 0);
        lowest_ = lowest;
        if (what == What::connected) {
            connect_pair();
            lowest_ = pair_[1] + 1;
        }
        for (unsigned n = 0; n < 3; ++n) {
            process.monitor.answer(nullptr, 0,
                                   what == What::pools    ? pool_.data()
                                   : what == What::socket ? &other_
                                                          : pair_.data(),
                                   what == What::pools ? 2 : 1);
        }
    }
    /// Some were for requests whose answers honest monitors send without descriptors.
    void close_left() {
        for (int fd = lowest_; fd >= 0 && fd < lowest_ + 128; ++fd) {
            if (is_same(fd, other_) || is_same(fd, pool_[0]) || is_same(fd, pool_[1]) || is_same(fd, pair_[0])) {
                close(fd);
            }
        }
        for (const int fd : pair_) {
            if (fd >= 0) {
                close(fd);
            }
        }
    }

  private:
    static bool is_same(int fd, int own) {
        struct stat a {
        }, b{};
        return own >= 0 && fd != own && fstat(fd, &a) == 0 && fstat(own, &b) == 0 && a.st_ino == b.st_ino &&
               a.st_dev == b.st_dev;
    }
    /// Something has come by it, and for what is sent there is little room.
    void connect_pair() {
        static const std::array<char, 300> some{};
        const int room = 4096;
        const timeval soon{0, 1000};
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_.data()) == 0 &&
             setsockopt(pair_[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0 &&
             setsockopt(pair_[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon) == 0 &&
             write(pair_[1], some.data(), some.size()) > 0 && shutdown(pair_[1], SHUT_WR) == 0);
    }
    static std::array<int, 2> make_pool() {
        const std::array<int, 2> made{memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                                      memfd_create("ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
        must(ftruncate(made[0], 16 << 10) == 0 && ftruncate(made[1], sizeof(sd::PoolLedger)) == 0 &&
             fcntl(made[0], F_ADD_SEALS, sd::kPoolSeals) == 0 &&
             fcntl(made[1], F_ADD_SEALS, sd::kLedgerSeals) == 0);
        return made;
    }
    int lowest_ = -1;
    std::array<int, 2> pair_{-1, -1}; ///< the connected one, and its other end
    static inline const std::array<int, 2> pool_ = make_pool();
    static inline const int other_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

} // namespace sdfuzz
