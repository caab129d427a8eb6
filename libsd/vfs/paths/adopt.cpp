// A connection that began in shared memory gets a kernel socket; see adopt.hpp.
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/order.hpp"
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

constexpr uint32_t kInRing = path_word(1, kPathRing);

/// Has a direction ended, or may another process go on with the placeholder? Then it stays what it is.
bool stands_in_the_way(const File &f, uint32_t block) noexcept {
    constexpr uint32_t ends = kFlagWriteShut | kFlagReadShut | kFlagClosed | kFlagReset | kFlagDead;
    const uint32_t flags = f.mine->control.flags.load(std::memory_order_acquire) |
                           f.peer->control.flags.load(std::memory_order_acquire);
    return (flags & ends) || (block & kTxEnded) || sandboxed() ||
           (adoption_of(block) == 0 && held_elsewhere(f.seg, f.ofd_index));
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

/// With both tokens: the words by which both directions are in the ring, at the end of a first move. What was
/// killed before kSeenPath is set is done again from the start.
void begin_in_ring(File &f, int32_t low, bool no_syn) noexcept {
    Ofd &o = *f.ofd;
    (o.opt.*kPathTx).store(kInRing, relaxed);
    (o.opt.*kPathRx).store(kInRing, relaxed);
    (o.opt.*kPathWanted).store(o.tx_block.load(relaxed) & kTxPath ? kWantKernel : kWantRing, relaxed);
    (o.opt.*kPathStays).store(kNoNagle | (no_syn ? kNoSyn : 0), relaxed);
    (o.opt.*kPathRcvlowat).store(without_capture(low), relaxed);
    auto &words = f.mine->credit.path;
    words.from.store(0, relaxed);
    words.offer.store(kInRing, std::memory_order_release);
    o.flags_seen.fetch_or(kSeenPath, std::memory_order_release);
}

/// With both tokens, of words that are set: the other end may leave the ring from here on.
void answer_first_move(const File &f) noexcept {
    auto &taken = f.mine->credit.path.taken;
    if (taken.load(relaxed) != 0)
        return;
    f.ofd->tx_block.fetch_or(kTxPath, std::memory_order_release); // until a send finds that nothing is wanted
    taken.store(kInRing, std::memory_order_seq_cst);
}

/// The second step, by whoever comes first. Where it is not to be taken (not `may`, and the monitor has not
/// said that it is), the marks of `serial` go, and nothing else.
void begin(File &f, uint32_t serial, bool may) noexcept {
    Ofd &o = *f.ofd;
    const Recipient reader = peers_reader(f), writer = peers_writer(f);
    {
        const Claim tx(f.seg, o.tx.token, f.tx_token_id(), Claim::patient);
        const Claim rx(f.seg, o.rx.token, f.rx_token_id(), Claim::patient);
        const uint32_t block = o.tx_block.load(std::memory_order_acquire);
        const int32_t low = o.lowat_kept.load(relaxed);
        if (!(block & kTxAdopt) || adoption_of(block) != serial)
            return; // another process was here before
        const int socket = may || (block & kTxBegin) ? path_socket(f) : -1;
        bool done = tx && rx && has_paths(o);
        if (tx && rx && !done && socket >= 0 && !stands_in_the_way(f, block)) {
            if (!(block & kTxGiven)) { // begin_in_ring() writes over some of them
                give_options(socket, f);
                o.tx_block.fetch_or(kTxGiven, std::memory_order_release);
            }
            begin_in_ring(f, low, f.side == 0 && has_no_syn(socket));
            done = true;
        }
        if (done)
            answer_first_move(f);
        o.rcvlowat.store(low, std::memory_order_seq_cst);
        o.tx_block.fetch_and(~(kTxAdopting | (done ? 0 : uint32_t{kTxPath})), std::memory_order_seq_cst);
    }
    // Who sleeps for it looks at the socket as well from now on; the peer may have waited for us.
    notify_own(f);
    reader.tell();
    writer.tell();
}

/// This process's numbers are the socket's from now on.
void take_socket(File &f, int socket) noexcept {
    if (f.unconnected.options)
        replay_options(socket, *f.unconnected.options);
    for_each_number(f, [&](int number) {
        if (replace_number(number, socket) >= 0)
            f.stream.path_fd = number;
    });
    f.real_socket = true;
    epoll_file_has_socket(f); // before anything can come by it
}

void adopt_at_once(File &f) noexcept {
    const uint16_t generation = f.ofd->generation;
    const long made = ask_for_socket(f, 0);
    const bool may = made >= 0 && !stands_in_the_way(f, f.ofd->tx_block.load(std::memory_order_acquire));
    if (may)
        take_socket(f, static_cast<int>(made));
    begin(f, 0, may);
    if (made >= 0)
        sys::close(static_cast<int>(made));
    tell_moved_let_go(f.seg, f.ofd_index, generation);
}

bool is_begun(const Ofd &o, uint32_t serial) noexcept {
    const uint32_t block = o.tx_block.load(std::memory_order_acquire);
    return (block & kTxBegin) && adoption_of(block) == serial;
}

/// Of an adoption that has ended before anybody began: a monitor that is gone has made it, and ours makes
/// another with the same names, which the kernel has to have free for it. It is the same socket for all who
/// hold the end, and its reset ends the other one. It stays under the numbers, and is nobody's.
void let_go_of_socket(File &f, int number) noexcept {
    tcp_info info{};
    socklen_t n = sizeof info;
    if (!f.real_socket || sys::getsockopt(number, IPPROTO_TCP, TCP_INFO, &info, &n) < 0 ||
        info.tcpi_state == kTcpClose)
        return;
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    (void)sys::connect(number, &none, sizeof none); // fails where it has ended by now
}

/// The first step. A child does it again: what its parent has told the monitor may not count for it. False:
/// the monitor has no socket for us, or cannot be asked.
bool fetch(File &f, uint32_t serial) noexcept {
    const int number = sandboxed() ? -1 : any_number(f);
    if (number < 0)
        return false;
    if (f.stream.fetched != 0 && f.stream.fetched != serial)
        let_go_of_socket(f, number);
    const long made = ask_for_socket(f, serial);
    if (made < 0 && made != -EAGAIN)
        return false;
    if (made >= 0) {
        take_socket(f, static_cast<int>(made));
        sys::close(static_cast<int>(made));
    }
    f.stream.fetched = static_cast<uint16_t>(serial);
    f.stream.fetched_in = fork_generation.load(relaxed);
    return made < 0 || say_has_socket(f, serial); // EAGAIN: the next mark tells that there are sockets
}

} // namespace

void adopt_socket(File &f) noexcept {
    Ofd &o = *f.ofd;
    const uint32_t serial = adoption_of(o.tx_block.load(std::memory_order_acquire));
    const uint16_t generation = o.generation;
    if (serial == 0) {
        if (is_to_adopt(f))
            adopt_at_once(f);
        return;
    }
    const bool goes_on = is_begun(o, serial) || fetch(f, serial);
    if (is_begun(o, serial))
        begin(f, serial, true);
    else if (!goes_on) {
        begin(f, serial, false);
        tell_moved_let_go(f.seg, f.ofd_index, generation); // the other end need not wait
    }
}

} // namespace sd
