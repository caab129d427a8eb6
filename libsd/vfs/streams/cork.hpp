// TCP_CORK and MSG_MORE: what is written is held back until there is a segment of it, the program says so, or
// 200 ms are over. How the ring does it is in queue/cork.hpp.
//
// The data path tests Ofd::tx_block for zero as ever; kTxCork there sends whoever writes the long way round.
// A receiver looks at the word of what is held back, which is in one line with the peer's flags, when it has
// found nothing.
#pragma once
#include "libsd/queue/cork.hpp"
#include "libsd/vfs/connections/connection.hpp"

namespace sd {

enum class Cork : uint8_t {
    none, ///< shows what was held back, too
    more, ///< MSG_MORE: until the next write without it
    cork  ///< TCP_CORK: until it is taken away
};

// --- the sender; with the send token but for cork_changed()
/// How something is to be written now. `more`: the call says MSG_MORE or the like.
inline Cork cork_of(const Ofd &o, bool more) noexcept {
    if ((o.tx_block.load(std::memory_order_relaxed) & kTxCork) && o.opt.cork.load(std::memory_order_relaxed))
        return Cork::cork;
    return more ? Cork::more : Cork::none;
}
/// Is a write a plain one? Others go through publish_corked(), also to be captured.
inline bool is_plain(const Ofd &o, Cork cork) noexcept {
    return cork == Cork::none && !(o.tx_block.load(std::memory_order_relaxed) & (kTxCork | kTxCapture));
}
/// The most that one record may hold, since it would otherwise lie across the end of a segment.
inline uint64_t most_at_once(const File &f, Cork cork) noexcept {
    const Corked &b = f.mine->control.back;
    if (cork != Cork::cork)
        return ring::kMaxRecord;
    const uint32_t corked = ring::is_corked(b, f.peer->credit) ? ring::cork_place(b).payload : 0;
    return corked < ring::kSegment ? ring::kSegment - corked : 1;
}
/// Publishes a record whose payload is in place. True: the receiver has to be told, of data or that it has to
/// look at the clock.
[[nodiscard]] bool publish_corked(File &f, uint32_t n, Cork cork) noexcept;
/// What was held back can be seen from now on; the caller notifies. False: nothing was.
bool uncork(File &f) noexcept;
/// After setsockopt(TCP_CORK or TCP_NODELAY): but for TCP_NODELAY 0, what is held back goes out, or stays for
/// as long as TCP_CORK is on.
void cork_changed(File &f, int name, int value) noexcept;

// --- the receiver
/// Does the peer hold something back, or may it?
inline bool peer_has_corked(const File &f) noexcept {
    return ring::is_corked(f.peer->control.back, f.mine->credit);
}
/// When it is due (CLOCK_MONOTONIC ns). 0: now; INT64_MAX: nothing is held back, or it will never come. After
/// absorb_flags().
int64_t corked_until(const File &f) noexcept;
/// With the receive token: shows what the peer holds back, and tells it. A sender in the same memory finds
/// out by itself, and only wakes up in vain where it waits for room.
inline void show_to_ourselves(File &f) noexcept {
    ring::uncork_late(f.ofd->rx.s, f.rx_place, f.peer->control.back, f.mine->credit);
    notify(*f.link, f.slot, f.peer->control.tx_arm);
}
/// With the receive token: shows what is due.
inline void uncork_overdue(File &f) noexcept {
    if (peer_has_corked(f) && corked_until(f) == 0) [[unlikely]]
        show_to_ourselves(f);
}
/// The same without the token.
void take_overdue(File &f) noexcept;

} // namespace sd
