// Copies of what passes over a connection, for sddump (layout/capture_layout.hpp).
//
// Callers have found kTxCapture or kCaptureLowat, which is why they are on the long way. Nothing here waits,
// allocates or fails: what finds no room is counted. May be called in a signal handler, and by several
// threads at the same time.
#pragma once
#include "libsd/layout/capture_layout.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Does who sends, or ends the connection, have to tell of it?
inline bool is_captured(const Ofd &o) noexcept {
    return (o.tx_block.load(std::memory_order_relaxed) & kTxCapture) != 0;
}
/// The same for who receives.
inline bool is_receive_captured(const Ofd &o) noexcept {
    return (o.rcvlowat.load(std::memory_order_relaxed) & kCaptureLowat) != 0;
}
/// SO_RCVLOWAT as the program has set it, of a connection that has not moved.
inline int32_t without_capture(int32_t lowat) noexcept { return lowat & ~kCaptureLowat; }

/// With the send token: the next record is in place, with `n` bytes, and not yet published.
void capture_sending(const File &f, uint32_t n) noexcept;
/// With the send token: this byte is about to be sent as urgent data.
void capture_urgent(const File &f, unsigned char byte) noexcept;
/// With the receive token: `n` bytes that lay at offset `from` of the ring were just taken, and the sender
/// has not been told yet.
void capture_received(const File &f, uint64_t from, uint32_t n, bool urgent) noexcept;
/// The same of bytes that the peer has handed over, and where they are.
void capture_handed(const File &f, const uint8_t *from, uint32_t n) noexcept;
/// A direction ends. What is said twice the reader shows once.
void capture_end(const File &f, bool received, CaptureKind kind) noexcept;
/// A connection that close_stream() ends with these flags.
void capture_close(const File &f, uint32_t flags) noexcept;

/// A new Ofd of this process, before others can see it: marks it, if new connections are captured.
void capture_newborn(const SegmentView &v, uint32_t proc, Ofd &o) noexcept;
/// A marked connection has been made.
void capture_born(const File &f) noexcept;
/// This process is about to execute another program, or to be somebody else: who captures it sees no more.
void end_capture(CaptureEnd why) noexcept;

} // namespace sd
