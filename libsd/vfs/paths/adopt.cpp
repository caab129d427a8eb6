// A connection that began in shared memory gets a kernel socket; see adopt.hpp.
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <linux/tcp.h>

namespace sd {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

/// Has a direction ended, or may another process go on with the placeholder? Then it stays what it is.
bool stands_in_the_way(const File &f) noexcept {
    constexpr uint32_t ends = kFlagWriteShut | kFlagReadShut | kFlagClosed | kFlagReset | kFlagDead;
    const uint32_t flags = f.mine->control.flags.load(std::memory_order_acquire) |
                           f.peer->control.flags.load(std::memory_order_acquire);
    return (flags & ends) || (f.ofd->tx_block.load(relaxed) & kTxEnded) || sandboxed() ||
           held_elsewhere(f.seg, f.ofd_index);
}

/// Was the socket made without a handshake? Then no SYN has been acknowledged that would count as sent.
bool has_no_syn(int fd) noexcept {
    tcp_info info{};
    socklen_t n = sizeof info;
    return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_bytes_acked == 0;
}

void give_options(int fd, const File &f) noexcept {
    const int one = 1; // what more the program asks for is looked at here
    if (f.unconnected.options)
        replay_options(fd, *f.unconnected.options);
    replay_stored_options(fd, f);
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sys::fcntl(fd, F_SETFL, O_RDWR | f.ofd->status.load(relaxed));
}

/// With both tokens: the words by which both directions are in the ring, at the end of a first move.
void begin_in_ring(File &f, int32_t low, bool no_syn) noexcept {
    Ofd &o = *f.ofd;
    constexpr uint32_t in_ring = path_word(1, kPathRing);
    (o.opt.*kPathTx).store(in_ring, relaxed);
    (o.opt.*kPathRx).store(in_ring, relaxed);
    (o.opt.*kPathWanted).store(o.tx_block.load(relaxed) & kTxPath ? kWantKernel : kWantRing, relaxed);
    (o.opt.*kPathStays).store(kNoNagle | (no_syn ? kNoSyn : 0), relaxed);
    (o.opt.*kPathRcvlowat).store(without_capture(low), relaxed);
    auto &words = f.mine->credit.path;
    words.from.store(0, relaxed);
    words.offer.store(in_ring, std::memory_order_release);
    o.flags_seen.fetch_or(kSeenPath, std::memory_order_release);
    o.tx_block.fetch_or(kTxPath, std::memory_order_release); // until a send finds that nothing is wanted
    words.taken.store(in_ring, std::memory_order_seq_cst);   // the other end may leave the ring from here on
}

} // namespace

bool adopt_socket(File &f, long socket) noexcept {
    Ofd &o = *f.ofd;
    const Recipient reader = peers_reader(f), writer = peers_writer(f);
    const uint16_t generation = o.generation;
    bool done = false;
    {
        const Claim tx(f.seg, o.tx.token, f.tx_token_id(), Claim::patient);
        const Claim rx(f.seg, o.rx.token, f.rx_token_id(), Claim::patient);
        const int32_t low = o.lowat_kept.load(relaxed);
        if (tx && rx && socket >= 0 && !stands_in_the_way(f)) {
            const int fd = static_cast<int>(socket);
            give_options(fd, f);
            for_each_number(f, [&](int number) {
                if (replace_number(number, fd) >= 0)
                    f.stream.path_fd = number;
            });
            f.real_socket = true;
            begin_in_ring(f, low, f.side == 0 && has_no_syn(fd));
            done = true;
        }
        o.rcvlowat.store(low, std::memory_order_seq_cst);
        o.tx_block.fetch_and(~(uint32_t{kTxMoved | kTxAdopt} | (done ? 0 : uint32_t{kTxPath})),
                             std::memory_order_seq_cst);
    }
    if (done)
        epoll_file_has_socket(f);
    // Who sleeps for it looks at the socket as well from now on; the peer may have waited for us.
    notify_own(f);
    reader.tell();
    writer.tell();
    tell_moved_let_go(f.seg, f.ofd_index, generation);
    return done;
}

} // namespace sd
