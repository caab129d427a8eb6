// What sending and receiving over an accelerated connection have in common.
#pragma once
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include <sys/socket.h>
#include <sys/uio.h>

namespace sd {

constexpr size_t kMaxIov = 1024; ///< UIO_MAXIOV of the kernel

/// Writes up to about this size are not interleaved with those of other threads.
constexpr size_t kWhole = 4096 + 64;

/// A position in a caller's iovec array. Entries are read with sd_copy, so that a bad array gives -EFAULT.
struct IoCursor {
    const iovec *iov;
    int count;
    int next = 0;
    iovec now{nullptr, 0};
    /// Makes `now` non-empty. 1; 0 at the end; -EFAULT.
    [[nodiscard]] int advance() noexcept;
    bool in_last_piece() const noexcept { return next >= count; }
    void skip(size_t n) noexcept {
        now.iov_base = static_cast<char *>(now.iov_base) + n;
        now.iov_len -= n;
    }
};

/// The sum of the lengths, or -EINVAL/-EFAULT as readv reports it.
[[nodiscard]] long iov_total(const iovec *iov, int count) noexcept;

/// SO_RCVLOWAT. Of a moved connection only the bridge asks, which takes what there is.
inline int32_t low_water(const Ofd &o) noexcept {
    const int32_t low = o.rcvlowat.load(std::memory_order_relaxed);
    if (low < kPathLowat) [[likely]]
        return low;
    if (without_capture(low) == kPathLowat && (o.flags_seen.load(std::memory_order_relaxed) & kSeenPath))
        return (o.opt.*kPathRcvlowat).load(std::memory_order_relaxed);
    if (const uint32_t block = o.tx_block.load(std::memory_order_relaxed);
        low == kMovedLowat && (block & kTxMoved))
        return block & kTxAdopt ? without_capture(o.lowat_kept.load(std::memory_order_relaxed)) : 1;
    return without_capture(low);
}

void raise_sigpipe() noexcept;
int64_t deadline_after(int64_t timeout_ns) noexcept;
inline bool is_over(int64_t deadline) noexcept { return deadline != INT64_MAX && sys::now_ns() >= deadline; }
/// A call that has moved something ends with any signal, SA_RESTART or not: as one with a deadline does.
inline int64_t unrestartable(int64_t deadline) noexcept {
    return deadline < INT64_MAX ? deadline : INT64_MAX - 1;
}

/// After consuming, without the token: wakes a sender that waits for room.
inline void notify_room(File &f) noexcept {
    auto &c = f.peer->control;
    cpu::in_order_for_membarrier(); // A before B of queue/sleeper.hpp
    if (c.tx_arm.load(std::memory_order_relaxed)) [[unlikely]] {
        cpu::in_order(); // the waiter says what it wants before it arms
        if (f.mine->credit.consumed.load(std::memory_order_relaxed) >= c.tx_want.load(std::memory_order_relaxed))
            notify_slow(*f.link, f.slot, c.tx_arm);
    }
}

} // namespace sd
