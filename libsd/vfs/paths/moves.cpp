// The steps of a move from one path to the other; see moves.hpp.
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>

namespace sd {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr uint8_t kEstablished = 1, kFinWait1 = 4, kFinWait2 = 5; ///< TCP states that a peer's FIN ends

bool ask_info(int fd, tcp_info *info) noexcept {
    socklen_t n = sizeof *info;
    return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) == 0 &&
           n >= offsetof(tcp_info, tcpi_bytes_received) + sizeof info->tcpi_bytes_received;
}

long ask_count(int fd, unsigned long which) noexcept {
    int n = 0;
    const long r = sys::ioctl(fd, which, &n);
    return r < 0 ? r : n;
}

/// Payload that has been written to the socket since its connection began; -1: not to be had. Nobody writes
/// meanwhile.
int64_t written(int fd, unsigned side) noexcept {
    for (unsigned tries = 0; tries < 1000; ++tries) {
        tcp_info before{}, after{};
        if (!ask_info(fd, &before))
            return -1;
        const long queued = ask_count(fd, SIOCOUTQ);
        if (queued < 0 || !ask_info(fd, &after) || before.tcpi_state != kEstablished)
            return -1; // closing: it stays where it is
        if (before.tcpi_bytes_acked == after.tcpi_bytes_acked)
            return static_cast<int64_t>(before.tcpi_bytes_acked) + queued - (side == 0); // the SYN counts
    }
    return -1;
}

/// Has all been read that was written to the socket up to `offset`, where its sender has stopped?
bool is_read_up_to(int fd, uint64_t offset, long waiting = 0) noexcept {
    tcp_info info{};
    if (!ask_info(fd, &info))
        return true; // there is no socket any more
    // In this order: what comes after the first question shows in the second.
    if (ask_count(fd, SIOCINQ) != waiting)
        return false;
    const uint64_t got = info.tcpi_bytes_received;
    const bool open =
        info.tcpi_state == kEstablished || info.tcpi_state == kFinWait1 || info.tcpi_state == kFinWait2;
    return got == offset || (!open && got == offset + 1); // the FIN counts
}

/// For tests: a coin that falls on one side once in `n` times.
bool by_chance(uint32_t n) noexcept {
    static constinit thread_local uint64_t state = 0;
    if (state == 0)
        state = cpu::cycles() | 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n == 0;
}

/// Ofd::rcvlowat; that of a connection that is captured sends receivers the long way in any case.
void set_path_lowat(Ofd &o, int32_t low) noexcept {
    o.rcvlowat.store(is_receive_captured(o) ? low | kCaptureLowat : low, relaxed);
}

constexpr uint32_t kStorm = 4; ///< a move is begun with one of so many sends

bool wants_ring(const Ofd &o) noexcept {
    const uint32_t wanted = (o.opt.*kPathWanted).load(relaxed);
    return wanted == kWantRing || (wanted == kWantBoth && by_chance(kStorm));
}
bool wants_kernel(const Ofd &o) noexcept {
    const uint32_t wanted = (o.opt.*kPathWanted).load(relaxed);
    return wanted == kWantKernel || (wanted == kWantBoth && by_chance(kStorm));
}

uint32_t senders_word(const File &f) noexcept {
    return static_cast<uint32_t>(f.peer->credit.path.offer.load(std::memory_order_acquire));
}

/// With the receive token, or as a hint: has the ring been read up to the position at which its sender left
/// it?
bool ring_is_left(const File &f) noexcept { return ring_ends_at(f, f.ofd->rx.s); }

/// The same of the socket.
bool socket_is_left(int fd, const File &f) noexcept { return socket_ends_after(fd, f, 0); }

} // namespace

std::atomic<uint64_t> connections_joined{0}, moves_to_ring{0}, moves_to_kernel{0}, followed_to_ring{0},
    followed_to_kernel{0};

bool ring_ends_at(const File &f, const RxState &s) noexcept {
    const uint32_t mine = (f.ofd->opt.*kPathRx).load(relaxed);
    return path_step(mine) == kPathRing && senders_word(f) == path_word((mine >> 8) + 1, kPathKernel) &&
           !ring::inside(s) && ring::head_now(s) == f.peer->credit.path.from.load(relaxed);
}

bool socket_ends_after(int fd, const File &f, long peeked) noexcept {
    const uint32_t mine = (f.ofd->opt.*kPathRx).load(relaxed);
    return path_step(mine) == kPathAsked && senders_word(f) == path_word(mine >> 8, kPathRing) &&
           is_read_up_to(fd, f.peer->credit.path.from.load(relaxed), peeked);
}

int path_socket(const File &f) noexcept {
    if (file_of(f.stream.path_fd) == &f) [[likely]]
        return f.stream.path_fd;
    const int fd = any_number(f);
    return fd >= 0 ? fd : f.stream.closing_fd;
}

void begin_paths(Ofd &o) noexcept {
    (o.opt.*kPathTx).store(0, relaxed);
    (o.opt.*kPathRx).store(0, relaxed);
    (o.opt.*kPathWanted)
        .store(path_mode == PathMode::kernel  ? kWantKernel
               : path_mode == PathMode::storm ? kWantBoth
                                              : kWantRing,
               relaxed);
    (o.opt.*kPathRcvlowat).store(without_capture(o.rcvlowat.load(relaxed)), relaxed);
    (o.opt.*kPathStays).store(0, relaxed);
    set_path_lowat(o, kPathLowat);
    o.tx_block.fetch_or(kTxPath, relaxed);
    o.flags_seen.store(kSeenPath, relaxed);
}

bool prepare_send(int fd, File &f, bool *tell) noexcept {
    Ofd &o = *f.ofd;
    auto &words = f.mine->credit.path;
    const uint32_t now = (o.opt.*kPathTx).load(relaxed);
    const PathStep step = path_step(now);
    const auto answer = static_cast<uint32_t>(f.peer->credit.path.taken.load(std::memory_order_acquire));
    const bool ended = o.tx_block.load(relaxed) & kTxEnded;
    // A mark is where it was made: urgent data and what is around it do not move.
    const bool urgent = f.mine->control.oob.load(relaxed) & 1;
    if (step == kPathRing) {
        if (answer != now || ended || urgent || !wants_kernel(o)) {
            if ((o.opt.*kPathWanted).load(relaxed) == kWantRing)
                o.tx_block.fetch_and(~uint32_t{kTxPath}, std::memory_order_release);
            return true;
        }
        uncork(f);
        words.from.store(o.tx.s.tail, relaxed);
        const uint32_t next = path_word((now >> 8) + 1, kPathKernel);
        words.offer.store(next, std::memory_order_release);
        o.tx_block.fetch_or(kTxPath, relaxed);
        (o.opt.*kPathTx).store(next, relaxed);
        moves_to_kernel.fetch_add(1, relaxed);
        SD_PROBE2(path, fd, 0);
        const int cork = o.opt.cork.load(relaxed) != 0, nodelay = o.opt.nodelay.load(relaxed) != 0;
        sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
        sys::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork);
        *tell = true;
        return false;
    }
    if (ended || (o.opt.*kPathStays).load(relaxed) != 0)
        return false;
    if (step == kPathAsked) {
        if (answer != now)
            return false;
        const int64_t offset = written(fd, f.side);
        if (offset < 0)
            return false;
        words.from.store(static_cast<uint64_t>(offset), relaxed);
        const uint32_t next = path_word(now >> 8, kPathRing);
        words.offer.store(next, std::memory_order_release);
        (o.opt.*kPathTx).store(next, relaxed);
        moves_to_ring.fetch_add(1, relaxed);
        SD_PROBE2(path, fd, 1);
        const int off = 0, on = 1; // what the kernel holds back goes now
        sys::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        *tell = true;
        return true;
    }
    if ((step == kPathKernel && answer != now) || !wants_ring(o))
        return false;
    const uint32_t next = path_word((now >> 8) + 1, kPathAsked);
    words.offer.store(next, std::memory_order_release);
    (o.opt.*kPathTx).store(next, relaxed);
    return false;
}

bool follow_sender(int fd, File &f) noexcept {
    Ofd &o = *f.ofd;
    const uint32_t mine = (o.opt.*kPathRx).load(relaxed), theirs = senders_word(f);
    const auto answer = [&](uint32_t word) {
        (o.opt.*kPathRx).store(word, relaxed);
        f.mine->credit.path.taken.store(word, std::memory_order_release);
    };
    if (theirs == mine) [[likely]]
        return false;
    if (path_step(mine) == kPathRing) {
        if (!ring_is_left(f))
            return false;
        set_path_lowat(o, kPathLowat);
        answer(theirs);
        followed_to_kernel.fetch_add(1, relaxed);
        return true;
    }
    if (path_step(mine) != kPathAsked) {
        if (theirs == path_word((mine >> 8) + 1, kPathAsked) &&
            !((o.opt.*kPathStays).load(relaxed) & kStaysPinned))
            answer(theirs);
        return false;
    }
    if (!socket_is_left(fd, f))
        return false;
    answer(theirs);
    followed_to_ring.fetch_add(1, relaxed);
    set_path_lowat(o, (o.opt.*kPathRcvlowat).load(relaxed));
    return true;
}

bool next_is_in_ring(int fd, File &f) noexcept {
    return receives_in_ring(*f.ofd) ? !ring_is_left(f) : socket_is_left(fd, f);
}

uint64_t socket_arrivals(const File &f) noexcept {
    tcp_info info{};
    return ask_info(path_socket(f), &info) ? info.tcpi_bytes_received : 0;
}

long socket_pending(int fd) noexcept {
    const long n = ask_count(fd, SIOCINQ);
    return n > 0 ? n : 0;
}

long pending_in_both(int fd, const File &f, uint64_t limit) noexcept {
    const Ofd &o = *f.ofd;
    const uint32_t mine = (o.opt.*kPathRx).load(relaxed), theirs = senders_word(f);
    const bool reads_ring = path_step(mine) == kPathRing;
    const bool ring = reads_ring || (path_step(mine) == kPathAsked && theirs == path_word(mine >> 8, kPathRing));
    const bool socket = !reads_ring || theirs == path_word((mine >> 8) + 1, kPathKernel);
    const long in_ring = ring ? ring::available(o.rx.s, f.rx_place, limit) : 0;
    return (in_ring > 0 ? in_ring : 0) + (socket ? socket_pending(fd) : 0);
}

} // namespace sd
