// What a connection with paths does at its kernel socket: bytes, urgent bytes, events and ends.
#pragma once
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// With the send token: writes to the socket as much as it takes. Bytes; -EAGAIN, or the kernel's error.
[[nodiscard]] long send_to_socket(int fd, IoCursor &from, int flags) noexcept;
/// With the receive token: reads from the socket what there is. Bytes; 0: FIN; -EAGAIN; an error.
[[nodiscard]] long receive_from_socket(int fd, IoCursor &to, size_t want, int flags) noexcept;
/// The same for a call that has bytes already, and so ends before an urgent byte (`*ends`), whenever that
/// comes.
[[nodiscard]] long receive_more_from_socket(int fd, IoCursor &to, size_t want, int flags, bool *ends) noexcept;
/// Is the next byte of the socket the urgent one? A receive ends there.
bool socket_at_mark(int fd) noexcept;
/// Has the socket an urgent byte that nobody has taken or passed?
bool is_urgent_in_socket(int fd) noexcept;
/// With the receive token, where a peek has seen something: what waits, also behind a mark that is not in
/// line, and one more for a FIN. -1: not to be had.
[[nodiscard]] long pending_behind_mark(int fd) noexcept;
/// With the receive token: has a peek of so many bytes ended at a mark? `was_urgent`: is_urgent_in_socket(),
/// as asked before the peek.
bool peek_met_mark(int fd, long peeked, bool in_line, bool was_urgent) noexcept;
/// Has the peer's end of the socket sent its FIN, or a reset?
bool socket_has_ended(int fd) noexcept;
/// Has a reset ended it, of which nobody has been told yet?
bool socket_was_reset(int fd) noexcept;
/// stream_events() of one with paths.
uint32_t path_events(File &f) noexcept;
/// What a sleep that waits for `events` has to look for at the socket, besides the link: events for poll(),
/// 0: nothing.
short socket_wait(int fd, File &f, uint32_t events) noexcept;
/// With both tokens, as the last one closes: has data been left unread in the socket? `resets`: the close is
/// to be a reset.
[[nodiscard]] bool left_in_socket(File &f) noexcept;
void reset_socket(const File &f) noexcept;
/// shutdown() with the send token where it ends sending.
[[nodiscard]] long shut_socket(int fd, File &f, int how) noexcept;
/// With the receive token, when the socket has ended: does the link know of more than a FIN? Of a peer that
/// was killed, or has executed another program, with what it was sent unread in the ring, this is a reset.
void learn_of_end(File &f) noexcept;
/// Of a dead peer whose direction goes by the ring: was its socket closed with a reset? Then it had not read
/// what came by it. A reset that answers what was sent after its end comes behind a FIN, which counts.
[[nodiscard]] bool death_was_reset(const File &f) noexcept;
/// The error that waits, of the connection or of its socket; positive, and taken.
[[nodiscard]] int take_path_error(int fd, File &f) noexcept;
/// A reset is told once, though link and socket both know of it. With either token, when the socket has told
/// of one (`error`, negative): what is to be told, or 0: the link has told it.
[[nodiscard]] long tell_reset(File &f, long error) noexcept;

} // namespace sd
