// A connection of the process that has a kernel socket as well (vfs/paths), and what its peer does there: at
// its own end of the socket, and with the words by which the two agree on who reads where.
#pragma once
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <array>
#include <netinet/in.h>

namespace sdfuzz {

class FarSocket {
  public:
    FarSocket() = default;
    ~FarSocket() { close(); }
    FarSocket(const FarSocket &) = delete;
    FarSocket &operator=(const FarSocket &) = delete;

    /// The connection has paths from now on. `in_ring`: it had none and is given one, with both directions in
    /// the ring; else both are in the socket as they were when it was made.
    void join(int fd, sd::File &f, bool in_ring) {
        const int near = make_pair();
        must(dup2(near, fd) == fd);
        f.stream.path_fd = fd;
        f.real_socket = true;
        if (in_ring) { // as when all have the socket, and the monitor says that it begins
            sd::epoll_file_has_socket(f);
            f.ofd->tx_block.fetch_or(sd::kTxMoved | sd::kTxAdopt | sd::kTxBegin | 1U << sd::kTxSerialShift);
            sd::adopt_socket(f);
        } else {
            sd::begin_paths(*f.ofd);
        }
        ::close(near);
    }
    /// A connection that began in the kernel, and the answer by which it gets a slot of the link with the
    /// next call that moves data. Its number.
    int begin_in_kernel(Process &process, unsigned side) {
        const int near = make_pair();
        sd::install_accepted(near, AF_INET, SOCK_NONBLOCK);
        sd::File *const f = sd::file_of(near);
        must(f != nullptr);
        sd::mark_offered(*f, side);
        f->unconnected.calls = 100; // it has lasted
        const sd::wire::OfferReply reply{.link_id = kLinkId, .slot = kFirstSlot + 3};
        process.monitor.begin();
        process.monitor.answer(&reply, sizeof reply, &process.link_fd, 1);
        return near;
    }
    bool is_open() const { return fd_ >= 0; }
    /// `mine`, `theirs`: the words of the peer, and of the connection it is the peer of; `tail`: where the
    /// peer has got to in its ring.
    void act(Input &in, sd::SlotSide &mine, const sd::SlotSide &theirs, uint64_t tail) {
        static const std::array<char, 512> bytes{};
        std::array<char, 4096> got;
        auto &path = mine.credit.path;
        switch (in.below(12)) {
        case 0:
        case 1:
        case 2:
            send_bytes(bytes.data(), 1 + in.below(255) * 2U, 0);
            break;
        case 3:
            send_bytes(bytes.data(), 1, MSG_OOB);
            break;
        case 4:
            (void)recv(fd_, got.data(), got.size(), MSG_DONTWAIT);
            break;
        case 5:
            shutdown(fd_, SHUT_WR);
            break;
        case 6:
            if (in.below(4) == 0) {
                close();
            }
            break;
        case 7: // to what is asked, or told, it says yes
            path.taken = static_cast<uint32_t>(theirs.credit.path.offer.load());
            break;
        case 8: // the next step of a move into the ring, and of one out of it
            step(path, tail);
            break;
        case 9: // it has counted what has come, or not
            mine.credit.counted = in.below(4) != 0 ? 0 : in.take<uint8_t>();
            break;
        case 10: // out of order
            path.offer = sd::path_word(in.below(4), static_cast<sd::PathStep>(in.below(5)));
            path.from = in.below(2) != 0 ? sent_ : in.take<uint8_t>();
            break;
        default: {
            uint64_t home = in.below(2) != 0 ? sd::kFlagHome : 0;
            mine.control.flags.fetch_or(static_cast<uint32_t>(home) |
                                        (in.below(4) == 0 ? in.take<uint8_t>() : 0));
        }
        }
    }

  private:
    void send_bytes(const void *from, size_t n, int flags) {
        if (const ssize_t r = send(fd_, from, n, flags | MSG_DONTWAIT | MSG_NOSIGNAL); r > 0) {
            sent_ += static_cast<uint64_t>(r);
        }
    }
    void step(sd::PathWords &path, uint64_t tail) const {
        const auto now = static_cast<uint32_t>(path.offer.load());
        const uint32_t number = now >> 8;
        switch (sd::path_step(now)) {
        case sd::kPathAsked:
            path.from = sent_;
            path.offer = sd::path_word(number, sd::kPathRing);
            break;
        case sd::kPathRing:
            path.from = tail;
            path.offer = sd::path_word(number + 1, sd::kPathKernel);
            break;
        default:
            path.offer = sd::path_word(number + 1, sd::kPathAsked);
        }
    }
    /// With a reset, so that no port is kept.
    void close() {
        if (fd_ >= 0) {
            const linger now{1, 0};
            setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
            ::close(fd_);
            fd_ = -1;
        }
    }
    /// The process's end.
    int make_pair() {
        static const int listening = [] {
            const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            sockaddr_in name = loopback();
            must(bind(made, reinterpret_cast<sockaddr *>(&name), sizeof name) == 0 && listen(made, 4) == 0);
            return made;
        }();
        sockaddr_in name{};
        socklen_t length = sizeof name;
        must(getsockname(listening, reinterpret_cast<sockaddr *>(&name), &length) == 0);
        const int near = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        must(near >= 0 && connect(near, reinterpret_cast<sockaddr *>(&name), sizeof name) == 0);
        fd_ = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
        must(fd_ >= 0);
        return near;
    }
    static sockaddr_in loopback() {
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return name;
    }
    int fd_ = -1;
    uint64_t sent_ = 0;
};

} // namespace sdfuzz
