// Urgent data (MSG_OOB) of an accelerated connection.
//
// The urgent byte is a record of its own in the ring, which gives it its place in the stream; the sender's
// `oob` word says where it is and what it is, so that it can be announced and fetched before the data in
// front of it is read. As in TCP only the last urgent byte counts: an earlier one becomes ordinary data.
// SIGURG is not raised: nobody runs in the receiver when data comes.
#pragma once
#include "libsd/vfs/streams/stream.hpp"

namespace sd {

/// Ring position of the urgent byte that the receiver has not passed yet; kNoMark when there is none.
constexpr uint64_t kNoMark = ~uint64_t{0};
inline uint64_t urgent_mark(const File &f) noexcept {
    const uint64_t word = f.peer->control.oob.load(std::memory_order_acquire);
    if (!(word & 1)) [[likely]]
        return kNoMark;
    const uint64_t position = word >> 9;
    return position >= f.ofd->rx.s.head ? position : kNoMark;
}
inline bool is_inline(const File &f) noexcept { return f.ofd->opt.oobinline.load(std::memory_order_relaxed); }

/// Is the urgent byte the next one to read (hint without the token)?
bool at_urgent_mark(const File &f) noexcept;
/// The same of what is next in the ring, for one who stands there.
bool ring_at_mark(const File &f, const RxState &s) noexcept;
/// Is there an urgent byte that recv(MSG_OOB) has not taken yet: EPOLLPRI.
bool urgent_unread(const File &f) noexcept;

/// Sends the last byte of `from` as urgent data.
[[nodiscard]] long send_urgent(int fd, File &f, IoCursor &from, size_t total, int flags) noexcept;
/// recv(MSG_OOB).
[[nodiscard]] long recv_urgent(File &f, IoCursor &to, size_t total, int flags) noexcept;

} // namespace sd
