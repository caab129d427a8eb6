// shutdown(): the end of one direction, or of both, while the descriptor stays.
#include "libsd/vfs/streams/half_close.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/vfs.hpp"
#include <linux/tcp.h>

namespace sd {

namespace {

/// With the send token: no send of ours is half way.
void publish_fin(File &f, uint32_t flags) noexcept {
    Ofd &o = *f.ofd;
    if (!(o.tx_block.fetch_or(kTxShut, std::memory_order_acq_rel) & kTxShut) && is_captured(o)) [[unlikely]]
        capture_end(f, false, CaptureKind::fin);
    ring::uncork(o.tx.s, f.tx_place, f.mine->control.back, f.peer->credit);
    set_ended(*f.mine, flags | kFlagWriteShut);
}

void tell_of_end(File &f) noexcept {
    notify(*f.link, f.slot, f.peer->control.rx_arm);
    notify(*f.link, f.slot, f.peer->control.tx_arm);
    take_overdue(f);
    // Our own threads that wait on the socket: their arm words are in our half of the slot.
    notify_own(f);
    epoll_touch(f, true);
}

} // namespace

void end_sending(File &f, uint32_t flags) noexcept {
    {
        const Claim c(f.seg, f.ofd->tx.token, f.tx_token_id(), Claim::patient);
        publish_fin(f, flags);
    }
    tell_of_end(f);
}

namespace vfs {

long shutdown(int fd, int how) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    if (f->kind == FileKind::fresh) {
        if (how < 0 || how > 2)
            return -EINVAL;
        // The kernel answers ENOTCONN, and yet the socket is shut from then on: it knows best what becomes of
        // it.
        // Its own kernel socket would not know of it
        if (f->unconnected.error.load(std::memory_order_relaxed))
            return f->real_socket ? kPass : -ENOTCONN;
        f->unconnected.refuse_cause = static_cast<uint8_t>(Cause::option);
        if (may_be_joined(*f)) // what is shut is known to the socket only
            give_up_joining(*f);
        if (!f->real_socket && materialise(fd, *f) < 0)
            return -ENOTCONN;
        return kPass;
    }
    if (f->kind == FileKind::listener && how >= 0 && how <= 2 && how != SHUT_WR) {
        // The kernel's socket stops listening: connections are refused from now on, and accept() fails.
        long r = sys::call(SYS_shutdown, fd, how);
        if (r == 0)
            // Threads may be waiting on it, so it stays what it is, without a way to it
            retire_listener(*f->listener);
        return r;
    }
    if (f->kind != FileKind::stream)
        return kPass;
    if (how < 0 || how > 2)
        return -EINVAL;
    Ofd &o = *f->ofd;
    if (!has_paths(o))
        absorb_flags(*f);
    const bool closed = tcp_state(*f) == kTcpClose;
    // Nobody will be told any more that it was made.
    if (f->stream.connect_answer == ConnectAnswer::made)
        f->stream.connect_answer = closed ? ConnectAnswer::invalid : ConnectAnswer::connected;
    // Each call wakes whoever waits, also one that changes nothing.
    if (closed) {
        epoll_touch(*f, true);
        return -ENOTCONN;
    }
    uint32_t flags = 0;
    if (how != SHUT_WR) {
        o.rx_shut.store(1, std::memory_order_release);
        flags |= kFlagReadShut;
    }
    if (how != SHUT_RD) {
        const Claim c(f->seg, o.tx.token, f->tx_token_id(), Claim::patient);
        if (has_paths(o)) [[unlikely]] {
            f->mine->control.flags.fetch_or(flags | kFlagWriteShut, std::memory_order_seq_cst);
            if (const long r = shut_socket(fd, *f, how); r < 0)
                return r;
        }
        publish_fin(*f, flags);
    } else {
        if (has_paths(o)) [[unlikely]]
            (void)shut_socket(fd, *f, how);
        f->mine->control.flags.fetch_or(flags, std::memory_order_seq_cst);
    }
    tell_of_end(*f);
    return 0;
}

} // namespace vfs

} // namespace sd
