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
// S counts N by the kernel: tcpi_bytes_acked + SIOCOUTQ. R has read N when tcpi_bytes_received is N (or one
// more for a FIN) and the queue is empty, since nothing comes behind N. Both are right whoever used the
// socket before.
#pragma once
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// Does the connection have paths?
inline bool has_paths(const Ofd &o) noexcept {
    return o.flags_seen.load(std::memory_order_relaxed) & kSeenPath;
}
constexpr uint32_t path_word(uint32_t number, PathStep step) { return number << 8 | step; }
constexpr PathStep path_step(uint32_t word) { return static_cast<PathStep>(word & 0xff); }
inline bool sends_in_ring(const Ofd &o) noexcept {
    return path_step((o.opt.*kPathTx).load(std::memory_order_relaxed)) == kPathRing;
}
inline bool receives_in_ring(const Ofd &o) noexcept {
    return path_step((o.opt.*kPathRx).load(std::memory_order_relaxed)) == kPathRing;
}

/// From now on neither direction leaves the socket, whoever holds the connection; without tokens. False:
/// something is in the ring, or may be soon, and nothing has changed.
[[nodiscard]] bool stay_in_socket(File &f) noexcept;
/// The same, and this process's numbers are the kernel's.
[[nodiscard]] bool leave_paths(File &f) noexcept;

/// Moves that this process has made, of all its connections.
extern std::atomic<uint64_t> connections_joined, moves_to_ring, moves_to_kernel, followed_to_ring,
    followed_to_kernel;

/// A number of the kernel socket; -1: there is none any more.
int path_socket(const File &f) noexcept;
/// Makes the words of a new connection's Ofd, before anybody sees it.
void begin_paths(Ofd &o) noexcept;

/// With the send token: makes the next step of a move that is wanted. True: what is sent now goes into the
/// ring. `*tell`: the receiver is to be told.
bool prepare_send(int fd, File &f, bool *tell) noexcept;
/// With the receive token: makes the next step of a move that the sender has begun. True: it is another path
/// now that is read.
bool follow_sender(int fd, File &f) noexcept;
/// With the receive token: does the ring end at a position that a peek has got to, and the socket goes on?
bool ring_ends_at(const File &f, const RxState &s) noexcept;
/// The same of the socket, of which `peeked` bytes have been seen and not taken.
bool socket_ends_after(int fd, const File &f, long peeked) noexcept;
/// Hint without the token: is what comes next in the ring?
bool next_is_in_ring(int fd, File &f) noexcept;

/// With the send token: writes to the socket as much as it takes. Bytes; -EAGAIN, or the kernel's error.
long send_to_socket(int fd, IoCursor &from, int flags) noexcept;
/// With the receive token: reads from the socket what there is. Bytes; 0: FIN; -EAGAIN; an error.
long receive_from_socket(int fd, IoCursor &to, size_t want, int flags) noexcept;
/// Is the next byte of the socket the urgent one? A receive ends there.
bool socket_at_mark(int fd) noexcept;
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
/// shutdown() with the send token where it ends sending.
long shut_socket(int fd, File &f, int how) noexcept;
/// The error that waits, of the connection or of its socket; positive, and taken.
int take_path_error(int fd, Ofd &o) noexcept;

} // namespace sd
