// What the program of link_fuzz seldom does.
#pragma once
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <array>
#include <thread>

namespace sdfuzz {

using namespace sd;

/// What calls are given to read from and to write to.
inline const Room in_room, out_room;

inline size_t call_size(Input &in) {
    const size_t n = in.take<uint8_t>();
    return in.below(8) == 0 ? n * 512 : n * 2; // 0 is one, too
}

/// A call waits, and the monitor marks the connection as moved.
inline void move_meanwhile(int fd, File &f, Input &in, size_t n) {
    if (in.below(4) != 0 || !take_reference(f)) {
        return;
    }
    const timeval brief{0, 20000};
    (void)vfs::fcntl(fd, F_SETFL, 0);
    (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
    std::thread monitor([&f] {
        usleep(50);
        f.ofd->tx_block.fetch_or(kTxMoved);
        notify_own(f);
    });
    if (in.below(2) != 0) {
        (void)vfs::recv(fd, &f, in_room.last(n), n, MSG_WAITALL);
    } else {
        (void)vfs::send(fd, &f, out_room.last(Room::kBytes), Room::kBytes, MSG_NOSIGNAL);
    }
    monitor.join();
    release_file(&f);
}

inline void act_rarely(int fd, File &f, unsigned what, Input &in, int flags) {
    static char *const nowhere = static_cast<char *>(no_memory());
    const size_t n = call_size(in);
    const timeval soon{0, 1};
    switch (what) {
    case 0:
        (void)vfs::send(fd, &f, nowhere - n / 2, n, flags);
        break;
    case 1:
        (void)vfs::recv(fd, &f, nowhere - n / 2, n, flags | (in.below(4) == 0 ? MSG_WAITALL : 0));
        break;
    case 2: { // a good piece, and then a bad one or one that is too long
        std::array<iovec, 2> v{iovec{out_room.last(n), n}, iovec{nowhere, in.below(4) == 0 ? SIZE_MAX : n}};
        (void)(in.below(2) != 0 ? vfs::recvv(fd, &f, v.data(), 2, flags)
                                : vfs::sendv(fd, &f, v.data(), 2, flags));
        break;
    }
    case 3: // the monitor marks it
        f.ofd->tx_block.fetch_or(kTxMoved);
        break;
    case 4: {
        ReceivedBytes got{};
        const long r = receive_in_place(fd, in_room.last(n), n, n, flags, &got);
        if (r > 0 && got.pool != nullptr) {
            release_taken(got.pool, got.epoch, got.buffer, static_cast<uint64_t>(r));
        }
        break;
    }
    case 5: // waits, and takes nothing
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        (void)vfs::recv(fd, &f, in_room.last(n), n, MSG_PEEK | (in.below(2) != 0 ? MSG_WAITALL : 0));
        break;
    case 6: { // waits for more than there is
        const int low = 1 + in.take<uint8_t>();
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        (void)vfs::recv(fd, &f, in_room.last(n), n, 0);
        break;
    }
    case 7:
        (void)vfs::send(fd, &f, out_room.last(n), n, flags | MSG_ZEROCOPY | (in.below(4) == 0 ? MSG_MORE : 0));
        break;
    case 8:
        move_meanwhile(fd, f, in, n);
        break;
    case 9: // as programs do that have SIGPIPE ignored
        (void)vfs::send(fd, &f, out_room.last(n), n, MSG_DONTWAIT);
        break;
    case 10: {
        const std::array<iovec, 2> v{iovec{in_room.last(n), n}, iovec{in_room.last(0), 0}};
        const int fresh = static_cast<int>(vfs::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        File *const unconnected = file_of(fresh);
        if (in.below(2) != 0) {
            (void)vfs::recv(fresh, unconnected, in_room.last(n), n, flags);
            (void)vfs::sendv(fresh, unconnected, v.data(), 2, flags);
        } else {
            (void)vfs::send(fresh, unconnected, out_room.last(n), n, flags);
            (void)vfs::recvv(fresh, unconnected, v.data(), 2, flags);
        }
        vfs::close(fresh);
        break;
    }
    default: { // a list that is none
        const std::array<iovec, 2> v{iovec{in_room.last(n), SIZE_MAX}, iovec{in_room.last(n), SIZE_MAX}};
        (void)(in.below(2) != 0 ? vfs::recvv(fd, &f, v.data(), 2, flags)
                                : vfs::sendv(fd, &f, v.data(), 2, flags));
    }
    }
}

/// On a socket of the kernel that may be joined, with this call or the next one.
inline void call_unjoined(int fd, File &f, Input &in) {
    const unsigned how = in.below(8);
    const size_t n = call_size(in);
    const std::array<iovec, 2> v{iovec{in_room.last(n), n}, iovec{in_room.last(1), 1}};
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (how >= 6) { // it has asked already, and is asked for
        f.unconnected.offer = static_cast<uint8_t>(OfferState::offered);
        f.unconnected.joined = in.below(2);
    }
    switch (how % 4) {
    case 0:
        (void)vfs::send(fd, &f, out_room.last(n), n, kFlags);
        break;
    case 1:
        (void)vfs::recv(fd, &f, in_room.last(n), n, kFlags);
        break;
    case 2:
        (void)vfs::sendv(fd, &f, v.data(), 2, kFlags);
        break;
    default:
        (void)vfs::recvv(fd, &f, v.data(), 2, kFlags);
    }
}

/// One byte with the mark on it, and how it is received.
inline void send_mark(int fd, File &f, Input &in) {
    static char *const nowhere = static_cast<char *>(no_memory());
    const timeval soon{0, 1};
    const unsigned how = in.below(8);
    switch (how) {
    case 0:
    case 1:
        (void)vfs::send(fd, &f, out_room.last(1), 1, MSG_OOB | MSG_DONTWAIT | (how == 0 ? MSG_NOSIGNAL : 0));
        break;
    case 2: // waits for room
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
        (void)vfs::send(fd, &f, out_room.last(1), 1, MSG_OOB | MSG_NOSIGNAL);
        break;
    case 3: // a byte, and then none that can be read
        (void)vfs::send(fd, &f, nowhere - in.below(2), 2, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    case 4:
        (void)vfs::recv(fd, &f, nowhere, in.below(2), MSG_OOB | MSG_DONTWAIT);
        break;
    default:
        (void)vfs::recv(fd, &f, in_room.last(4), in.below(4), MSG_OOB | MSG_DONTWAIT | (how == 5 ? MSG_PEEK : 0));
    }
}

inline void disconnect(int fd) {
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    (void)vfs::connect(fd, &nobody, sizeof nobody);
}

/// A call waits, and another thread closes the connection, or has it forget its peer. True: closed.
inline bool end_meanwhile(int fd, File &f, Input &in) {
    const unsigned how = in.below(8);
    if (how >= 4) { // it takes long
        return false;
    }
    const bool closes = (how & 1) != 0;
    const timeval brief{0, 20000};
    (void)vfs::fcntl(fd, F_SETFL, 0);
    (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
    std::thread other([=] {
        usleep(50);
        closes ? (void)vfs::close(fd) : disconnect(fd);
    });
    if ((how & 2) != 0) {
        (void)vfs::recv(fd, &f, in_room.last(4), 4, 0);
    } else {
        (void)vfs::send(fd, &f, out_room.last(Room::kBytes), Room::kBytes, MSG_NOSIGNAL);
    }
    other.join();
    return closes;
}

/// What ends a connection in other ways than close(). True: it is closed, and the number free.
inline bool end_otherwise(int fd, File &f, Input &in) {
    switch (in.below(4)) {
    case 0: // as connect() does, of which nobody has seen anything
        (void)unbind_stream(f);
        break;
    case 1:
        disconnect(fd);
        break;
    case 2:
        return end_meanwhile(fd, f, in);
    default:
        send_mark(fd, f, in);
    }
    return false;
}

} // namespace sdfuzz
