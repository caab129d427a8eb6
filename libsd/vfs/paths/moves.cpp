// The steps of a move from one path to the other; see moves.hpp.
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/paths/counts.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/keepalive.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include <cstdio>

namespace sd {

namespace {

/// For tests: a coin that falls on one side once in `n` times.
bool by_chance(uint32_t n) noexcept {
    static constinit thread_local uint64_t state = 0;
    if (state == 0)
        state = cpu::cycles() | 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n == 0;
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

void count(MoveCounts &moves, Midst what, bool is_so) noexcept {
    if (is_so)
        moves.of[static_cast<unsigned>(what)].fetch_add(1, relaxed);
}

/// With the send token, before a move. The circumstances are for tests.
void count_move(MoveCounts &moves, const File &f, bool corked) noexcept {
    const Ofd &o = *f.ofd;
    count(moves, Midst::any, true);
    if (path_mode != PathMode::storm)
        return;
    count(moves, Midst::half_closed, f.peer->control.flags.load(relaxed) & kFlagWriteShut);
    count(moves, Midst::corked, corked || o.opt.cork.load(relaxed) != 0);
    count(moves, Midst::full, o.tx.s.stalls != 0);
    count(moves, Midst::urgent, (o.opt.*kPathStays).load(relaxed) & kSentUrgent);
    count(moves, Midst::shared, held_elsewhere(f.seg, f.ofd_index));
    count(moves, Midst::stopped, is_stopped(f.link->view.header().side[1 - f.side].process.load(relaxed)));
}

/// As senders_word(), of a line that the peer seldom writes where that is enough: who has followed into a
/// ring that was never left knows the word.
uint32_t offered_word(const File &f) noexcept {
    const auto mine = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(relaxed));
    constexpr uint32_t kBoth = kFlagTellsLeaving | kFlagHasLeft;
    const bool is_known = path_step(mine) == kPathRing &&
                          (f.peer->control.flags.load(std::memory_order_acquire) & kBoth) == kFlagTellsLeaving;
    return is_known ? mine : senders_word(f);
}

/// With the receive token, or as a hint: has the ring been read up to the position at which its sender left
/// it?
bool ring_is_left(const File &f) noexcept { return ring_ends_at(f, f.ofd->rx.s); }

/// The same of the socket. `passes`: with the token, and an urgent byte that is all there is left is passed.
bool socket_is_left(int fd, const File &f, bool passes = false) noexcept {
    if (!socket_ends_after(fd, f, 0))
        return false;
    // At an urgent byte that is not in line the kernel counts nothing, whatever is behind. A read passes it.
    if (!socket_at_mark(fd)) [[likely]]
        return true;
    char byte;
    if (sys::call(SYS_recvfrom, fd, sys::arg(&byte), 1, MSG_PEEK | MSG_DONTWAIT, 0, 0) != -EAGAIN)
        return false;
    // By reading what is behind it, as in the kernel; until then it can be read alone.
    if (passes && !rx_pending(f) &&
        !(f.peer->control.flags.load(std::memory_order_acquire) & (kFlagWriteShut | kFlagReset | kFlagDead)))
        return false;
    if (passes)
        sys::call(SYS_recvfrom, fd, sys::arg(&byte), 1, MSG_DONTWAIT, 0, 0);
    return !passes || !socket_at_mark(fd);
}

} // namespace

std::atomic<uint64_t> connections_joined{0};
MoveCounts moves_to_ring, moves_to_kernel, followed_to_ring, followed_to_kernel;

namespace {

void count_followed(MoveCounts &followed, const File &f) noexcept {
    count(followed, Midst::any, true);
    count(followed, Midst::peeked, (f.ofd->opt.*kPathStays).load(relaxed) & kWasPeeked);
}

} // namespace

void set_path_lowat(Ofd &o, int32_t low) noexcept {
    o.rcvlowat.store(is_receive_captured(o) ? low | kCaptureLowat : low, relaxed);
}

bool ring_ends_at(const File &f, const RxState &s) noexcept {
    const uint32_t mine = (f.ofd->opt.*kPathRx).load(relaxed);
    return path_step(mine) == kPathRing && offered_word(f) == path_word((mine >> 8) + 1, kPathKernel) &&
           !ring::inside(s) && ring::leads_to(s, f.rx_place, f.peer->credit.path.from.load(relaxed));
}

bool socket_ends_after(int fd, const File &f, long peeked) noexcept {
    const uint32_t mine = (f.ofd->opt.*kPathRx).load(relaxed);
    if (path_step(mine) != kPathAsked || senders_word(f) != path_word(mine >> 8, kPathRing))
        return false;
    const uint64_t written = f.peer->credit.path.from.load(relaxed);
    if (peeked == 0 || is_inline(f) || !socket_at_mark(fd))
        return is_read_up_to(fd, written, peeked);
    // At a mark nothing counts as waiting, and the peek has passed it.
    Came came{};
    if (!ask_came(fd, &came) || (came.least != written && came.most != written))
        return false;
    const long behind = pending_behind_mark(fd) - (peeked + 1);
    return behind == 0 || (behind == 1 && came.least != came.most); // the FIN
}

bool socket_has_too_much(int fd, const File &f) noexcept {
    const auto mine = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(relaxed));
    tcp_info info{};
    return path_step(mine) == kPathAsked && senders_word(f) == path_word(mine >> 8, kPathRing) &&
           ask_info(fd, &info) &&
           info.tcpi_bytes_received > f.peer->credit.path.from.load(relaxed) + 1; // the FIN may count
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

namespace {

/// In kPathTx, beside the step: the words in the slot are being changed to this. Who finds it took the token
/// over from a killed one.
constexpr uint32_t kUnfinished = 0x80;

/// With the send token: the next step, from `from` on. The peer's receiver sees `offer` last; a sender that
/// is killed in between leaves what finish_step() makes good.
void take_step(File &f, uint32_t next, uint64_t from) noexcept {
    Ofd &o = *f.ofd;
    auto &words = f.mine->credit.path;
    o.tx_block.fetch_or(kTxPath, relaxed);
    (o.opt.*kPathTx).store(static_cast<int32_t>(next | kUnfinished), std::memory_order_release);
    if (path_step(next) != kPathAsked) // before the word, and before anything goes there
        f.mine->control.flags.fetch_or(path_step(next) == kPathRing ? kFlagTellsLeaving : kFlagHasLeft,
                                       std::memory_order_seq_cst);
    words.from.store(from, relaxed);
    words.offer.store((words.offer.load(relaxed) & kGivenFrom) | next, std::memory_order_seq_cst);
    (o.opt.*kPathTx).store(static_cast<int32_t>(next), std::memory_order_release);
}

/// With the send token: where this direction is. Nothing has been sent since a step was begun that was not
/// finished: it is begun anew, or it has been offered, and holds.
uint32_t sending_word(File &f) noexcept {
    auto &own = f.ofd->opt.*kPathTx;
    const auto now = static_cast<uint32_t>(own.load(relaxed));
    if (!(now & kUnfinished)) [[likely]]
        return now;
    const uint32_t next = now & ~kUnfinished;
    const auto offered = static_cast<uint32_t>(f.mine->credit.path.offer.load(relaxed));
    const uint32_t number = next >> 8, asked = path_word(number, kPathAsked);
    uint32_t is = next;
    if (offered != next)
        is = path_step(next) == kPathAsked  ? path_word(number - 1, number > 1 ? kPathKernel : kPathNone)
             : path_step(next) == kPathRing ? asked
             : offered == asked             ? asked // it was about to be taken back
                                            : path_word(number - 1, kPathRing);
    own.store(static_cast<int32_t>(is), std::memory_order_release);
    return is;
}

/// Does the socket hold back what was sent, because the program wants to send more?
bool socket_holds_back(int fd, const Ofd &o) noexcept {
    return (o.opt.cork.load(relaxed) != 0 || ((o.opt.*kPathStays).load(relaxed) & kSentMore)) &&
           ask_count(fd, SIOCOUTQNSD) > 0;
}

/// The socket does not wait for acknowledgements as long as either direction may use the ring: the answers
/// that carry them along may go the other way, and then they come 40 ms late. To say so pushes what it holds
/// back: not before that has gone.
void stop_waiting_for_answers(int fd, Ofd &o) noexcept {
    if (((o.opt.*kPathStays).load(relaxed) & kNoNagle) || sandboxed() || socket_holds_back(fd, o))
        return; // in a sandbox a filter may end us for the call, and no direction comes back then
    const int on = 1;
    sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (o.opt.*kPathStays).fetch_or(kNoNagle, relaxed);
}

/// The socket holds back what the program has corked while it carries the sending direction.
void set_cork(int fd, const Ofd &o, bool in_use) noexcept {
    const int cork = in_use && o.opt.cork.load(relaxed) != 0;
    if (!sandboxed())
        sys::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork);
}

/// `flags` of the sender: has the direction never been in the ring? One that was born there had no stream
/// that somebody could have changed.
bool is_first_move(const Ofd &o, const std::atomic<uint32_t> &flags) noexcept {
    return !(flags.load(relaxed) & kFlagTellsLeaving) && !((o.opt.*kPathStays).load(relaxed) & kNoSyn);
}

/// With the receive token, before the first move: how much has come.
void tell_count(int fd, const File &f) noexcept {
    tcp_info info{};
    if (ask_info(fd, &info))
        f.mine->credit.counted.store(info.tcpi_bytes_received + 1, std::memory_order_release);
}

enum class Counts : uint8_t { agree, not_yet, differ };

/// With the send token, before the first move: has the receiver got what was written? It has told as of its
/// last call. One that is never done with what was written, in a long stream, cannot have told; there it is
/// enough that it has not got more.
Counts compare_counts(int fd, const File &f, uint64_t offset) noexcept {
    constexpr int32_t kPatience = 16; ///< sends
    const uint64_t told = f.peer->credit.counted.load(std::memory_order_acquire);
    if (told == 0 || told == offset + 1) // 0: a libsd that does not tell
        return Counts::agree;
    if (told > offset + 1)
        return Counts::differ;
    auto &word = f.ofd->opt.*kPathStays;
    if (word.load(relaxed) / kUncounted >= kPatience && ask_count(fd, SIOCOUTQ) > 0)
        return Counts::agree;
    if (word.load(relaxed) / kUncounted < kPatience)
        word.fetch_add(kUncounted, relaxed);
    return Counts::not_yet;
}

/// With the send token: neither direction leaves the socket any more, if both ends can help it.
void stay_for_good(File &f) noexcept {
    (f.ofd->opt.*kPathWanted).store(kWantKernel, relaxed);
    f.mine->control.flags.fetch_or(kFlagHome, std::memory_order_seq_cst);
    count_fallback(Cause::counts_differ, &(f.side == 0 ? f.stream.server : f.stream.client));
}

} // namespace

int write_move_counts(char *to, size_t room) noexcept {
    int n = snprintf(to, room, ",\"joined\":%lu", connections_joined.load());
    const auto write = [&](const char *name, const MoveCounts &counts) {
        for (unsigned i = 0; i < std::size(kMidstNames); ++i)
            if (const uint64_t c = counts.of[i].load(); (c != 0 || i == 0) && static_cast<size_t>(n) < room - 100)
                n += snprintf(to + n, room - static_cast<size_t>(n), ",\"%s%s\":%lu", name, kMidstNames[i], c);
    };
    write("to_ring", moves_to_ring);
    write("to_kernel", moves_to_kernel);
    write("followed_to_ring", followed_to_ring);
    write("followed_to_kernel", followed_to_kernel);
    return n;
}

void count_refusals() noexcept {
    for (uint32_t n = rdma::refusals.exchange(0, relaxed); n; --n)
        count_fallback(Cause::no_rdma, nullptr);
}

bool prepare_send(int fd, File &f, bool *tell) noexcept {
    Ofd &o = *f.ofd;
    if (rdma::refusals.load(relaxed) != 0) [[unlikely]]
        count_refusals();
    if (rdma::is_remote(*f.link)) [[unlikely]]
        rdma::progress_if_due();
    const uint32_t now = sending_word(f);
    const PathStep step = path_step(now);
    const auto answer = static_cast<uint32_t>(f.peer->credit.path.taken.load(std::memory_order_acquire));
    const bool ended = o.tx_block.load(relaxed) & kTxEnded;
    const bool called_home = is_called_home(f);
    // What is held back stays where it is, or it would go early.
    if (step == kPathRing) {
        // The receiver may still have to read the socket up to where the ring begins.
        const bool agreed = answer == now || answer == path_word(now >> 8, kPathAsked);
        const Giving given = agreed ? give_back(fd, f, tell) : Giving::nothing;
        if ((answer != now && given != Giving::all) || (ended && given != Giving::all) ||
            given == Giving::rest || sandboxed() ||
            !(called_home || given == Giving::all ||
              (!ring::is_corked(f.mine->control.back, f.peer->credit) && wants_kernel(o)))) {
            // Over RDMA each send asks first whether it can go out (make_room)
            if ((o.opt.*kPathWanted).load(relaxed) == kWantRing && !called_home && !rdma::is_remote(*f.link)) {
                o.tx_block.fetch_and(~uint32_t{kTxPath}, std::memory_order_seq_cst);
                // The monitor writes what is wanted, and then sets the bit.
                if ((o.opt.*kPathWanted).load(std::memory_order_seq_cst) != kWantRing)
                    o.tx_block.fetch_or(kTxPath, std::memory_order_release);
            }
            return true;
        }
        const bool corked = uncork(f);
        count_move(moves_to_kernel, f, corked);
        take_step(f, path_word((now >> 8) + 1, kPathKernel), o.tx.s.tail);
        SD_PROBE2(path, fd, 0);
        (o.opt.*kPathStays).fetch_and(~kSentUrgent, relaxed);
        o.tx.s.stalls = 0;
        stop_waiting_for_answers(fd, o);
        set_cork(fd, o, true);
        if (ended) // the FIN that the ring's end stood for
            (void)sys::call(SYS_shutdown, fd, SHUT_WR);
        *tell = true;
        return false;
    }
    if (ended || sandboxed())
        return false;
    if (receives_in_ring(o))
        stop_waiting_for_answers(fd, o);
    if (step == kPathAsked) {
        if ((o.opt.*kPathStays).load(relaxed) & kStaysPinned || is_told_home(f)) {
            take_step(f, path_word(now >> 8, kPathKernel), 0); // not, then
            *tell = true;
            return false;
        }
        if (answer != now || socket_holds_back(fd, o))
            return false;
        const bool counts_syn = f.side == 0 && !((o.opt.*kPathStays).load(relaxed) & kNoSyn);
        const int64_t offset = written(fd, counts_syn);
        if (offset < 0)
            return false;
        if (is_first_move(o, f.mine->control.flags)) [[unlikely]] {
            const Counts counts = compare_counts(fd, f, static_cast<uint64_t>(offset));
            if (counts == Counts::differ) {
                stay_for_good(f);
                take_step(f, path_word(now >> 8, kPathKernel), 0);
                *tell = true;
            }
            if (counts != Counts::agree)
                return false;
        }
        count_move(moves_to_ring, f, o.opt.cork.load(relaxed) != 0);
        take_step(f, path_word(now >> 8, kPathRing), static_cast<uint64_t>(offset));
        SD_PROBE2(path, fd, 1);
        (o.opt.*kPathStays).fetch_and(~kSentUrgent, relaxed);
        o.tx.s.stalls = 0;
        stop_waiting_for_answers(fd, o);
        set_cork(fd, o, false);
        hide_keepalive(fd, o);
        *tell = true;
        return true;
    }
    if (((o.opt.*kPathStays).load(relaxed) & kStaysPinned) || called_home ||
        (step == kPathKernel && answer != now) || !wants_ring(o))
        return false;
    take_step(f, path_word((now >> 8) + 1, kPathAsked), 0);
    *tell = rdma::is_remote(*f.link); // others find it when they look
    return false;
}

bool follow_sender(int fd, File &f) noexcept {
    Ofd &o = *f.ofd;
    if (is_reading_stopped(o)) [[unlikely]]
        return resume_reading(fd, f, true);
    const uint32_t mine = (o.opt.*kPathRx).load(relaxed), theirs = offered_word(f);
    const auto answer = [&](uint32_t word) {
        (o.opt.*kPathRx).store(word, relaxed);
        f.mine->credit.path.taken.store(word, std::memory_order_release);
        if (rdma::is_remote(*f.link)) [[unlikely]]
            rdma::tell(*f.link, f.slot);
    };
    if (theirs == mine) [[likely]] {
        if (path_step(mine) == kPathAsked && is_first_move(o, f.peer->control.flags)) [[unlikely]]
            tell_count(fd, f);
        return false;
    }
    if (path_step(mine) == kPathRing) {
        if (!ring_is_left(f))
            return false;
        set_path_lowat(o, kPathLowat);
        answer(theirs);
        count_followed(followed_to_kernel, f);
        return true;
    }
    if (path_step(mine) != kPathAsked) {
        const bool is_taken_back = theirs == path_word((mine >> 8) + 1, kPathKernel); // before we saw it
        if (is_taken_back || (theirs == path_word((mine >> 8) + 1, kPathAsked) &&
                              !((o.opt.*kPathStays).load(relaxed) & kStaysPinned))) {
            if (!is_taken_back && is_first_move(o, f.peer->control.flags))
                tell_count(fd, f);
            answer(theirs);
        }
        return false;
    }
    if (theirs == path_word(mine >> 8, kPathKernel)) { // it stays in the socket
        answer(theirs);
        return false;
    }
    if (!socket_is_left(fd, f, true))
        return false;
    answer(theirs);
    count_followed(followed_to_ring, f);
    if (!sends_in_ring(o))
        stop_waiting_for_answers(fd, o);
    set_path_lowat(o, (o.opt.*kPathRcvlowat).load(relaxed));
    return true;
}

bool uses_ring(const File &f) noexcept {
    const Ofd &o = *f.ofd;
    const PathStep reads = path_step(static_cast<uint32_t>((o.opt.*kPathRx).load(relaxed)));
    const auto sends = static_cast<uint32_t>((o.opt.*kPathTx).load(relaxed));
    // What was sent before the last move may lie there
    const bool left = path_step(sends) == kPathKernel &&
                      static_cast<uint32_t>(f.peer->credit.path.taken.load(std::memory_order_acquire)) != sends;
    return path_step(sends) == kPathRing || left || reads == kPathAsked || reads == kPathRing ||
           is_reading_stopped(o);
}

bool is_settled_in_ring(const File &f) noexcept {
    const auto reads = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(relaxed));
    return sends_in_ring(*f.ofd) && path_step(reads) == kPathRing && offered_word(f) == reads;
}

namespace {

/// Has the peer been told that it may go over to the ring, and not said that it has, nor that it has ended?
bool may_have_gone_over(const File &f) noexcept {
    constexpr uint32_t kSaid = kFlagWriteShut | kFlagClosed | kFlagReset | kFlagDead;
    const auto mine = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(relaxed));
    return path_step(mine) == kPathAsked && !sender_is_in_ring(f) &&
           (f.peer->control.flags.load(std::memory_order_acquire) & kSaid) == 0;
}

/// A socket that says so is closed by our own doing: it has not heard of the peer's end, and need not.
bool is_all_shut_here(const Ofd &o) noexcept {
    return o.rx_shut.load(std::memory_order_acquire) && (o.tx_block.load(std::memory_order_acquire) & kTxShut);
}

} // namespace

void hear_of_end(File &f) noexcept {
    constexpr int64_t kPatienceNs = 1'000'000'000;
    if (may_have_gone_over(f))
        rdma::take_last();
    const int64_t until = sys::now_ns() + kPatienceNs;
    while (may_have_gone_over(f) && !is_all_shut_here(*f.ofd)) {
        if (sys::now_ns() > until) // what is written for the peer only this process sees
            f.peer->control.flags.fetch_or(kFlagReset | kFlagClosed | kFlagLost, std::memory_order_seq_cst);
        sys::nap(1'000'000);
        rdma::progress();
    }
    absorb_flags(f); // of the dead, this brings what they had to say
}

bool sender_is_in_ring(const File &f) noexcept { return path_step(offered_word(f)) == kPathRing; }

ReadingPlace reading_place(const File &f) noexcept {
    return {ring::head_now(f.ofd->rx.s), static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(relaxed)),
            offered_word(f)};
}

bool next_is_in_ring(int fd, const File &f) noexcept {
    return receives_in_ring(*f.ofd) ? !ring_is_left(f) : socket_is_left(fd, f);
}

bool may_shrink_ring(const File &f) noexcept {
    if (!has_paths(*f.ofd)) [[likely]]
        return true;
    const auto sends = static_cast<uint32_t>((f.ofd->opt.*kPathTx).load(relaxed));
    return path_step(sends) != kPathKernel ||
           static_cast<uint32_t>(f.peer->credit.path.taken.load(std::memory_order_acquire)) == sends;
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
    const uint32_t mine = (o.opt.*kPathRx).load(relaxed), theirs = offered_word(f);
    const bool reads_ring = path_step(mine) == kPathRing;
    const bool ring = reads_ring || (path_step(mine) == kPathAsked && theirs == path_word(mine >> 8, kPathRing));
    const bool socket = !reads_ring || theirs == path_word((mine >> 8) + 1, kPathKernel);
    const uint64_t mark = is_inline(f) ? kNoMark : urgent_mark(f);
    const bool stopped = is_reading_stopped(o);
    const auto passed = static_cast<long>(stopped ? already_came(fd, f) : 0);
    const long in_ring =
        ring || stopped ? ring::available(o.rx.s, f.rx_place, limit + static_cast<uint64_t>(passed), mark) : 0;
    const long in_socket = socket ? socket_pending(fd) : 0;
    // In the kernel, nothing counts that lies behind an urgent byte.
    if (socket && !reads_ring && in_ring > 0 && !is_inline(f) && is_urgent_in_socket(fd))
        return in_socket;
    return (in_ring > passed ? in_ring - passed : 0) + in_socket;
}

} // namespace sd
