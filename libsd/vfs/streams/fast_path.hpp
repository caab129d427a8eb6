// send() and recv() of small messages on a connection that this thread has for itself, in as few instructions
// as they need: they are inlined into libc's names. Where anything is out of the ordinary they return 0
// without having done anything, and the long way (vfs::send, vfs::recv) says what is so.
#pragma once
#include "libsd/base/probes.hpp"
#include "libsd/queue/small_record.hpp"
#include "libsd/vfs/streams/stream_send.hpp"

namespace sd {

constexpr size_t kFastSend = 8192;

/// With a token of `o`: does the number still stand for `f`, and that for `o`? Other threads may have closed
/// it, and made it another's, at any time before.
[[gnu::always_inline]] inline bool still_open(int fd, const File &f, const Ofd &o) noexcept {
    return fd_table[fd].load(std::memory_order_relaxed) == &f && __atomic_load_n(&f.ofd, __ATOMIC_RELAXED) == &o;
}

/// Bytes sent (all of them), or 0. `f` was found under `fd`, and may be a File of any kind.
[[gnu::always_inline]] inline long fast_send(int fd, File &f, const void *p, size_t n, int flags) noexcept {
    if (f.kind != FileKind::stream || n - 1 >= kFastSend || (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0)
        return 0;
    Ofd &o = *f.ofd;
    FastClaim c(f.seg, o.tx.token, f.tx_token_id());
    if (!c || !still_open(fd, f, o)) [[unlikely]]
        return 0;
    auto &peer = *f.peer;
    if (o.tx_block.load(std::memory_order_relaxed) != 0 ||
        (peer.control.flags.load(std::memory_order_acquire) & kMayRefuse) != 0) [[unlikely]]
        return 0;
    TxState &s = o.tx.s;
    const uint64_t before = s.tail;
    if (!ring::put_small(s, f.tx_place, p, static_cast<uint32_t>(n))) [[unlikely]]
        return 0;
    ++s.messages;
    ring::look_ahead(s, before, peer.credit.consumed);
    SD_PROBE2(send, fd, n);
    LinkMap *link = f.link; // without the token the File may become another's
    const uint32_t slot = f.slot;
    c.release();
    notify(*link, slot, peer.control.rx_arm);
    return static_cast<long>(n);
}

/// With the receive token: the whole message that is all there is, if it fits; its length, or 0. The caller
/// notifies without the token.
[[gnu::always_inline]] inline uint32_t take_message(File &f, Ofd &o, void *p, size_t n) noexcept {
    RxState &s = o.rx.s;
    const uint32_t got = ring::take_small(s, f.rx_place, p, n);
    if (got != 0) {
        f.mine->credit.consumed.store(s.head, std::memory_order_release);
        ++s.messages;
    }
    return got;
}

/// With the receive token of `f`, whose ring is empty: looks for the answer to what was sent last, for as
/// long as it takes to prepare for a sleep, once for each message sent, and in blocking calls only. True:
/// something came. A handler that is called meanwhile counts as called before recv(). In stream_recv.cpp.
bool answer_came_soon(const File &f, int flags) noexcept;

/// Bytes received (one message, which is all there is), or 0. `f` as above.
[[gnu::always_inline]] inline long fast_recv(int fd, File &f, void *p, size_t n, int flags) noexcept {
    if (f.kind != FileKind::stream || n - 1 >= size_t{1} << 30 || (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0)
        return 0;
    Ofd &o = *f.ofd;
    FastClaim c(f.seg, o.rx.token, f.rx_token_id());
    if (!c || !still_open(fd, f, o) || o.rcvlowat.load(std::memory_order_relaxed) > 1) [[unlikely]]
        return 0;
    uint32_t got = take_message(f, o, p, n);
    // Here and not only behind two more calls: from the answer to the next send() there is less to do then.
    if (got == 0 && (!answer_came_soon(f, flags) || (got = take_message(f, o, p, n)) == 0))
        return 0;
    SD_PROBE2(recv, fd, got);
    c.release();
    notify_room(f);
    return got;
}

} // namespace sd
