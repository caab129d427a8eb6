// A connection that has a kernel socket and a slot of a link, each direction of which goes over one of the
// two, and can change to the other at any byte.
//
// The words are PathWords of the slot, by which the two ends agree; each end keeps its own truth in Ofd::opt.
// A word is number of the move << 8 | PathStep. Of one direction, S its sender, R its receiver:
//
//   kernel to ring   S: (n, asked)     and goes on writing to the socket
//                    R: (n, asked)     from now on whoever waits for data waits for both
//                    S: from = N, (n, ring)   N: what it has written to the socket so far; what it sends from
//                                             here on goes into the ring
//                    R: (n, ring)      it has read the socket up to N, and reads the ring
//   ring to kernel   S: from = M, (n + 1, kernel)   M: its position in the ring; from here on it writes
//                                             to the socket
//                    R: (n + 1, kernel)  it has read the ring up to M, and reads the socket
//
// S begins no move before R has answered (n, ring) or (n, kernel) to the last one. So there are never more
// than two pieces under way: "up to N" in the socket and "from N" in the ring, or the other way round, and R
// reads them one after the other. What was written lies with the kernel or in the ring, and arrives even if S
// is killed.
//
// Nobody is inside a read or a write of the socket, at either end, when a path changes: those are made with
// MSG_DONTWAIT and with the token of the direction in hand. Who has to wait does so for both (wait_stream).
//
// What S has asked for it may take back: (n, kernel) after (n, asked), whether R has agreed or not. R sees
// that it stays in the socket, and answers.
//
// What R has not read of the ring may come by the socket, before S leaves the ring: give_back.hpp.
//
// S counts N by the kernel: tcpi_bytes_acked + SIOCOUTQ. R has read N when tcpi_bytes_received is N (or one
// more for a FIN) and the queue is empty, since nothing comes behind N. Both are right whoever used the
// socket before.
#pragma once
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/streams/stream.hpp"
#include <iterator>

namespace sd {

/// Does the connection have paths?
inline bool has_paths(const Ofd &o) noexcept {
    return o.flags_seen.load(std::memory_order_relaxed) & kSeenPath;
}
constexpr uint32_t path_word(uint32_t number, PathStep step) { return number << 8 | step; }
constexpr PathStep path_step(uint32_t word) { return static_cast<PathStep>(word & 0xff); }
/// Does either direction use the ring, or may it come to? Else the sockets tell all that there is to know.
bool uses_ring(const File &f) noexcept;
/// Do both directions use the ring, as far as either end has said? Then nothing comes by the socket.
bool is_settled_in_ring(const File &f) noexcept;
/// Is it to be asked for, or changed, where what is sent goes? With the send token.
inline bool has_other_path(const File &f, const Ofd &o) noexcept {
    // kTxPath comes before the paths, with kTxAdopt
    return has_paths(o) && ((o.tx_block.load(std::memory_order_acquire) & kTxPath) ||
                            (f.peer->control.flags.load(std::memory_order_acquire) & kFlagHome));
}
inline bool sends_in_ring(const Ofd &o) noexcept {
    return path_step((o.opt.*kPathTx).load(std::memory_order_relaxed)) == kPathRing;
}
inline bool receives_in_ring(const Ofd &o) noexcept {
    return path_step((o.opt.*kPathRx).load(std::memory_order_relaxed)) == kPathRing;
}

/// Where the peer sends to, as it says.
inline uint32_t senders_word(const File &f) noexcept {
    return static_cast<uint32_t>(f.peer->credit.path.offer.load(std::memory_order_acquire));
}
/// Ofd::rcvlowat; that of a connection that is captured sends receivers the long way in any case.
void set_path_lowat(Ofd &o, int32_t low) noexcept;

/// Does the peer ask that what is sent to it goes over the socket, and stays there?
inline bool is_called_home(const File &f) noexcept {
    return f.peer->control.flags.load(std::memory_order_acquire) & kFlagHome;
}

/// Is what is sent to go over the socket, whoever wishes it?
inline bool is_told_home(const File &f) noexcept {
    return (f.ofd->opt.*kPathWanted).load(std::memory_order_acquire) == kWantKernel || is_called_home(f);
}

/// With both tokens: what was kept here while both paths were possible is the socket's own from now on.
void hand_back(const File &f) noexcept;
/// From now on neither direction leaves the socket, whoever holds the connection; without tokens. False:
/// something is in the ring, or may be soon, and nothing has changed.
[[nodiscard]] bool stay_in_socket(File &f) noexcept;
/// The same; brings back first what is in the ring, and calls the peer home. It waits for the peer a short
/// time, which may be busy, stopped or hostile.
[[nodiscard]] bool come_home(File &f) noexcept;
/// Of one that did not come home, and whose socket somebody is about to have who knows of nothing else: both
/// ends are told that the connection is reset.
void end_in_error(File &f) noexcept;
/// Of who has called, in the peer's place, or of who is told to leave the ring: without tokens.
void answer_call_home(File &f) noexcept;
/// The same as stay_in_socket(), and this process's numbers are the kernel's.
[[nodiscard]] bool leave_paths(File &f) noexcept;

/// What a connection was in the midst of when a direction moved. Only `any` is counted always, the others by
/// storms.
enum class Midst : uint8_t {
    any,
    peeked,      ///< of who follows: data had been peeked and not taken
    urgent,      ///< of who moves, as all below: an urgent byte went the former way
    half_closed, ///< the peer has ended its direction
    corked,
    full,    ///< the last send had found no room
    shared,  ///< another process has the connection as well
    stopped, ///< the peer's process is
};
constexpr const char *kMidstNames[] = {"",        "_peeked", "_urgent", "_half_closed",
                                       "_corked", "_full",   "_shared", "_stopped"};
struct MoveCounts {
    std::atomic<uint64_t> of[std::size(kMidstNames)]{};
};
/// Moves that this process has made, of all its connections.
extern std::atomic<uint64_t> connections_joined;
/// Writes them as ,"NAME":COUNT... behind `to`, as far as `room` goes; how much.
int write_move_counts(char *to, size_t room) noexcept;
extern MoveCounts moves_to_ring, moves_to_kernel, followed_to_ring, followed_to_kernel;

/// A number of the kernel socket; -1: there is none any more.
int path_socket(const File &f) noexcept;
/// Makes the words of a new connection's Ofd, before anybody sees it.
void begin_paths(Ofd &o) noexcept;

/// With the send token: makes the next step of a move that is wanted. True: what is sent now goes into the
/// ring. `*tell`: the receiver is to be told.
bool prepare_send(int fd, File &f, bool *tell) noexcept;
/// Of rdma::refusals.
[[gnu::cold]] void count_refusals() noexcept;
/// With the receive token: makes the next step of a move that the sender has begun. True: it is another path
/// now that is read.
bool follow_sender(int fd, File &f) noexcept;
/// Of a peer on another host whose socket has ended: it may have gone over to the ring before. Waits for its
/// word, which may be slower than the FIN, or is its monitor's to say. Where nothing is heard in a second the
/// end may be a false one, and the connection counts as reset.
void hear_of_end(File &f) noexcept;
/// With the receive token: does the ring end at a position that a peek has got to, and the socket goes on?
bool ring_ends_at(const File &f, const RxState &s) noexcept;
/// The same of the socket, of which `peeked` bytes have been seen and not taken.
bool socket_ends_after(int fd, const File &f, long peeked) noexcept;
/// Does the sender write to the ring, as far as it has said?
bool sender_is_in_ring(const File &f) noexcept;
/// With the receive token, after bytes were peeked, or taken.
inline void note_peeked(Ofd &o, bool peeked) noexcept {
    auto &word = o.opt.*kPathStays;
    if (((word.load(std::memory_order_relaxed) & kWasPeeked) != 0) == peeked) [[likely]]
        return;
    if (peeked)
        word.fetch_or(kWasPeeked, std::memory_order_relaxed);
    else
        word.fetch_and(~kWasPeeked, std::memory_order_relaxed);
}
/// With the send token, after a send over the socket.
inline void note_more(Ofd &o, bool more) noexcept {
    auto &word = o.opt.*kPathStays;
    if (((word.load(std::memory_order_relaxed) & kSentMore) != 0) == more) [[likely]]
        return;
    if (more)
        word.fetch_or(kSentMore, std::memory_order_relaxed);
    else
        word.fetch_and(~kSentMore, std::memory_order_relaxed);
}
/// With the receive token: has more come by the socket than its sender says it has written there? Somebody on
/// the way has changed the stream, and where it goes on in the ring cannot be told.
bool socket_has_too_much(int fd, const File &f) noexcept;
/// Hint without the token: is what comes next in the ring?
bool next_is_in_ring(int fd, const File &f) noexcept;
/// Where the receiver is. Looks without the token that find another afterwards may have taken one moment's
/// path for another's, and missed what is there.
struct ReadingPlace {
    uint64_t head;
    uint32_t mine, theirs;
    bool operator==(const ReadingPlace &) const = default;
};
ReadingPlace reading_place(const File &f) noexcept;
/// With the send token: may a change of ring follow what is there? Not where the receiver still has to find
/// the position at which the ring was left: it would stand behind that for good.
bool may_shrink_ring(const File &f) noexcept;

/// With the send token: writes to the socket as much as it takes. Bytes; -EAGAIN, or the kernel's error.
long send_to_socket(int fd, IoCursor &from, int flags) noexcept;
/// With the receive token: reads from the socket what there is. Bytes; 0: FIN; -EAGAIN; an error.
long receive_from_socket(int fd, IoCursor &to, size_t want, int flags) noexcept;
/// Is the next byte of the socket the urgent one? A receive ends there.
bool socket_at_mark(int fd) noexcept;
/// Has the socket an urgent byte that nobody has taken or passed?
bool is_urgent_in_socket(int fd) noexcept;
/// With the receive token, where a peek has seen something: what waits, also behind a mark that is not in
/// line, and one more for a FIN. -1: not to be had.
long pending_behind_mark(int fd) noexcept;
/// With the receive token: has a peek of so many bytes ended at a mark? `was_urgent`: is_urgent_in_socket(),
/// as asked before the peek.
bool peek_met_mark(int fd, long peeked, bool in_line, bool was_urgent) noexcept;
/// Has the peer's end of the socket sent its FIN, or a reset?
bool socket_has_ended(int fd) noexcept;
/// Has a reset ended it, of which nobody has been told yet?
bool socket_was_reset(int fd) noexcept;
/// What waits in the socket.
long socket_pending(int fd) noexcept;
/// With the receive token, or as a hint: what waits in both, up to `limit`; they are one stream.
long pending_in_both(int fd, const File &f, uint64_t limit) noexcept;

/// stream_events() of one with paths.
uint32_t path_events(File &f) noexcept;
/// What a sleep that waits for `events` has to look for at the socket, besides the link: events for poll(),
/// 0: nothing.
short socket_wait(int fd, File &f, uint32_t events) noexcept;
/// Bytes that have arrived at the socket so far: edges of epoll.
uint64_t socket_arrivals(const File &f) noexcept;
/// With both tokens, as the last one closes: has data been left unread in the socket? `resets`: the close is
/// to be a reset.
bool left_in_socket(File &f) noexcept;
void reset_socket(const File &f) noexcept;
/// keepalive.cpp: does the socket send keepalives that the program has not asked for?
bool has_hidden_keepalive(const Ofd &o) noexcept;
/// What the program reads then for TCP_KEEPIDLE and the like.
int shown_keepalive(int name) noexcept;
/// When the socket may become idle, and before the program sets its own or somebody else gets the socket.
void hide_keepalive(int fd, Ofd &o) noexcept;
void end_hidden_keepalive(int fd, Ofd &o) noexcept;
/// shutdown() with the send token where it ends sending.
long shut_socket(int fd, File &f, int how) noexcept;
/// With the receive token, when the socket has ended: does the link know of more than a FIN? Of a peer that
/// was killed, or has executed another program, with what it was sent unread in the ring, this is a reset.
void learn_of_end(File &f) noexcept;
/// Of a dead peer whose direction goes by the ring: was its socket closed with a reset? Then it had not read
/// what came by it. A reset that answers what was sent after its end comes behind a FIN, which counts.
bool death_was_reset(const File &f) noexcept;
/// The error that waits, of the connection or of its socket; positive, and taken.
int take_path_error(int fd, File &f) noexcept;
/// A reset is told once, though link and socket both know of it. With either token, when the socket has told
/// of one (`error`, negative): what is to be told, or 0: the link has told it.
long tell_reset(File &f, long error) noexcept;

} // namespace sd
