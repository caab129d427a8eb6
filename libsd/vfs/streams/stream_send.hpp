// Sending over an accelerated connection: what the send, sendfile and urgent calls share.
#pragma once
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// Sends with the semantics of sendmsg(2) on a TCP socket. Raises SIGPIPE where TCP does.
[[nodiscard]] long stream_send(int fd, File &f, IoCursor &from, size_t total, int flags) noexcept;

/// With the send token: room for at least one more byte, growing the ring if that is allowed. False: full.
[[nodiscard]] bool make_room(File &f, size_t want, bool may_grow_far) noexcept;
/// With the send token, after make_room(): how much of `want` bytes the next record takes. Of a larger ring
/// only a part, on which the receiver starts meanwhile. `plain`: is_plain() of this write.
[[gnu::always_inline]] inline uint64_t record_length(const File &f, uint64_t want, bool plain, Cork cork) noexcept {
    const TxState &s = f.ofd->tx.s;
    const uint64_t fits = (ring::room(s) - 8) & ~uint64_t{7};
    const uint64_t cap = s.cls == 0 ? fits : kRingSize[s.cls] / 4;
    uint64_t n = want < fits ? want : fits;
    n = n < cap ? n : cap;
    n = n < ring::kMaxRecord ? n : ring::kMaxRecord;
    if (!plain) [[unlikely]] {
        const uint64_t most = most_at_once(f, cork);
        n = n < most ? n : most;
    }
    if (n > rdma::kMostAtOnce && rdma::is_remote(*f.link)) [[unlikely]]
        n = rdma::kMostAtOnce;
    return n;
}
/// Whether a sender that would sleep otherwise may take a larger ring. A hint without the token.
bool may_grow_on(const File &f) noexcept;
/// What a send returns (a count or -errno) when the connection cannot take data any more; 0 when it can.
[[nodiscard]] long send_blocked(File &f, int flags) noexcept;
/// The peer's flags tell that nobody there will ever read: data is answered by a reset. Every flag that stops
/// a sender ends here, in whatever mixture: a hostile peer may set one without the others.
[[nodiscard]] inline bool refuses_data(uint32_t flags) noexcept {
    constexpr uint32_t kBoth = kFlagReadShut | kFlagWriteShut;
    return (flags & (kFlagClosed | kFlagReset | kFlagDead)) || (flags & kBoth) == kBoth;
}
/// Does the connection take no more data? send_blocked() then says what a send returns.
[[nodiscard]] inline bool send_refused(const File &f, const Ofd &o) noexcept {
    return (o.tx_block.load(std::memory_order_acquire) & kTxEnded) ||
           refuses_data(f.peer->control.flags.load(std::memory_order_acquire));
}
/// The cheap question before that one.
constexpr uint32_t kMayRefuse = kFlagClosed | kFlagReset | kFlagDead | kFlagReadShut | kFlagHome;
/// What was sent to a peer that has closed is answered by a reset, which ends the connection.
void answered_by_reset(File &f) noexcept;
/// A sender's wait for room in the ring; one for each call of the program.
class RoomWait {
  public:
    /// For make_room(): the sender would sleep otherwise, so that it may take a larger ring.
    bool grow_far = false;
    /// Looks for a while, then has the ring grow, then sleeps. 0: try again; -EAGAIN, also when the time of
    /// SO_SNDTIMEO is up; -EINTR; -EBADF; -EPIPE, with SIGPIPE if `flags` let it. `started`: the call has
    /// sent something, so that any handler ends it, and no signal is raised. Without the token.
    [[nodiscard]] long wait(int fd, File &f, Pin &pin, bool nonblocking, int flags, bool started) noexcept;

  private:
    int64_t deadline_ = 0;
    unsigned waits_ = 0;                          ///< after the first
    const uint64_t interrupts_ = self.interrupts; ///< when the call began
};

} // namespace sd
