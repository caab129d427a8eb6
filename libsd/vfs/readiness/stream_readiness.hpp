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

/// poll() or an epoll instance is about to say that there is something to read, and before it looked `read`
/// bytes had been read. In the kernel it stays there until somebody reads it, so that a program may go on to
/// a call that blocks; a stranger could take it back, and the program would wait with all its other clients.
inline void note_told(File &f, uint64_t read) noexcept {
    if (f.link->foreign.load(std::memory_order_relaxed)) [[unlikely]]
        f.stream.told.store(read + 1, std::memory_order_relaxed);
}
/// A call that blocks has found nothing to read: was something shown since the last byte was read? With the
/// File held.
[[nodiscard]] inline bool was_told(const File &f, const Ofd &o) noexcept {
    const uint64_t told = f.stream.told.load(std::memory_order_relaxed);
    return told != 0 && told == ring::bytes_now(o.rx.s) + 1;
}

/// Wakes waiters of our own side (other threads and processes of the family) after a change they cannot see
/// in the link.
void notify_own(File &f) noexcept;

} // namespace sd
