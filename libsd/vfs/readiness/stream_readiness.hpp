// Readiness of an accelerated connection, arming for a wake-up, and blocking until something changes.
#pragma once
#include "libsd/vfs/connections/connection.hpp"

namespace sd {

/// Is payload waiting (hint without the token; exact for what the caller itself read before)?
bool rx_pending(const File &f) noexcept;
/// Is a send worth trying: free room, or the ring may grow? Hint as above.
bool tx_room(File &f) noexcept;

/// Events as tcp_poll() of the kernel would report them now: EPOLLIN, OUT, RDHUP, HUP, ERR, PRI. For fresh
/// sockets: OUT and HUP.
/// May be called without the tokens; a hint that is exact for the caller's own past operations.
uint32_t stream_events(File &f) noexcept;
/// Arms both directions of a stream so that id `id` of its link is notified of any change of readiness. Needs
/// another look afterwards, and before it, if this says so, a barrier (queue/sleeper.hpp).
[[nodiscard]] bool arm_stream(File &f, unsigned id, bool rx, bool tx) noexcept;
/// Blocks until stream_events(f) & events, an error, the deadline (CLOCK_MONOTONIC ns, INT64_MAX none) or a
/// signal. 0: look again; -ETIMEDOUT; -EINTR (a handler without SA_RESTART ran). `interrupts`:
/// self.interrupts when the program's call began; a handler that came since ends it.
[[nodiscard]] long wait_stream(File &f, uint32_t events, int64_t deadline,
                               uint64_t interrupts = self.interrupts) noexcept;

// What poll(), an epoll instance, a peek or FIONREAD say in the kernel is true until the program itself
// changes it, so that it may go on to a call that blocks. Here it is memory that a stranger could take back,
// and the program would wait, with all its other clients. So it is remembered: hints, without a token, while
// the File is held.

/// The program is about to be told that there is something to read, up to `position` of the stream.
inline void note_told(File &f, uint64_t position) noexcept {
    if (f.link->foreign.load(std::memory_order_relaxed)) [[unlikely]]
        if (position > f.stream.told.load(std::memory_order_relaxed))
            f.stream.told.store(position, std::memory_order_relaxed);
}
/// Of what was told a byte is passed over.
inline void forget_told(File &f) noexcept { f.stream.told.store(0, std::memory_order_relaxed); }
/// A call that blocks has found nothing more to read: was more shown than has been read? Not asked while the
/// path changes, when what was shown may still be on its way by the socket.
[[nodiscard]] bool is_taken_back(const File &f) noexcept;
/// The program is about to be told that there is room, as the peer has read up to `credit`.
inline void note_room_told(File &f, uint64_t credit) noexcept {
    if (f.link->foreign.load(std::memory_order_relaxed)) [[unlikely]]
        f.stream.room_told.store(credit, std::memory_order_relaxed);
}
/// With the send token: that is still so. It was true, or the peer spoils what it is sent itself.
inline void take_room_told(const File &f, TxState &s) noexcept {
    if (const uint64_t told = f.stream.room_told.load(std::memory_order_relaxed);
        told > s.credit && told <= s.tail)
        s.credit = told;
}

/// Wakes waiters of our own side (other threads and processes of the family) after a change they cannot see
/// in the link.
void notify_own(File &f) noexcept;

} // namespace sd
