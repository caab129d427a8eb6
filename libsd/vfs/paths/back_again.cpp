// From a lost link back to an end that is offered; see back_again.hpp.
#include "libsd/vfs/paths/back_again.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/streams/ancillary.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/urgent.hpp"

namespace sd {

namespace {

constexpr int64_t kFirstWait = 1'000'000'000;
constexpr unsigned kMostDoublings = 6;

/// Before anything is looked at more closely.
bool is_ours_alone(const File &f) noexcept {
    return one_thread() && !sandboxed() && f.kind == FileKind::stream && has_paths(*f.ofd) &&
           rdma::is_remote(*f.link) && rdma::is_lost(*f.link) && f.refs.load(std::memory_order_relaxed) == 1 &&
           static_cast<int>(f.seg) == own_segment_index.load(std::memory_order_relaxed) &&
           !held_elsewhere(f.seg, f.ofd_index);
}

/// With both tokens: is all of the stream in the socket, both ways, as both ends have said, and does it stay
/// there? One that has ended in a direction, or of which something was kept here that the socket does not
/// know of, is left as it is.
bool is_in_socket_for_good(int fd, const File &f) noexcept {
    constexpr uint32_t kOver = kFlagWriteShut | kFlagClosed | kFlagReset | kFlagDead;
    const Ofd &o = *f.ofd;
    const auto sends = static_cast<uint32_t>((o.opt.*kPathTx).load(std::memory_order_relaxed));
    const auto reads = static_cast<uint32_t>((o.opt.*kPathRx).load(std::memory_order_relaxed));
    const auto in_socket = [](uint32_t word) { return word == 0 || path_step(word) == kPathKernel; };
    const uint32_t theirs = f.peer->control.flags.load(std::memory_order_acquire);
    const uint32_t ours = f.mine->control.flags.load(std::memory_order_relaxed);
    const uint32_t block = o.tx_block.load(std::memory_order_acquire);
    return in_socket(sends) &&
           static_cast<uint32_t>(f.peer->credit.path.taken.load(std::memory_order_acquire)) == sends &&
           in_socket(reads) && senders_word(f) == reads && (ours & theirs & kFlagHome) &&
           !((ours | theirs) & kOver) && !(block & ~uint32_t{kTxPath}) &&
           !o.rx_shut.load(std::memory_order_relaxed) && !is_reading_stopped(o) &&
           (o.opt.*kPathWanted).load(std::memory_order_relaxed) == kWantRing &&
           !((o.opt.*kPathStays).load(std::memory_order_relaxed) & kStaysPinned) &&
           o.so_error.load(std::memory_order_relaxed) == 0 && !completions_pending(o) && !is_captured(o) &&
           !urgent_unread(f) && !is_urgent_in_socket(fd);
}

} // namespace

bool is_too_early(const File &f) noexcept {
    return f.unconnected.tries_anew != 0 && sys::now_ns() < f.unconnected.not_before;
}

bool will_try_again(File &f, Cause why) noexcept {
    auto &u = f.unconnected;
    if (u.tries_anew == 0 || (why != Cause::no_rdma && why != Cause::remote_host))
        return false;
    const unsigned doublings = u.tries_anew < kMostDoublings ? u.tries_anew : kMostDoublings;
    u.not_before = sys::now_ns() + (kFirstWait << doublings);
    u.tries_anew = static_cast<uint8_t>(doublings + 1);
    return true;
}

void offer_anew(int fd, File &f) noexcept {
    if (!is_ours_alone(f) || inside_operation() || epoll_would_repeat(f))
        return;
    LinkMap &l = *f.link;
    const unsigned seg = f.seg, side = f.side;
    const uint32_t index = f.ofd_index, slot = f.slot, status = f.ofd->status.load(std::memory_order_relaxed);
    DetachedPools pools;
    bool last;
    {
        const Claim tx(f.seg, f.ofd->tx.token, f.tx_token_id(), Claim::patient);
        const Claim rx(f.seg, f.ofd->rx.token, f.rx_token_id(), Claim::patient);
        if (!tx || !rx || !is_in_socket_for_good(fd, f))
            return;
        hand_back(f);
        f.status.store(status, std::memory_order_relaxed);
        f.kind = FileKind::fresh;
        last = drop_ofd(seg, index);
        pools = detach_pools(f);
        bury(f);
    }
    if (pools) [[unlikely]]
        let_go_of_pools(pools, last, l.id, 1u - l.side);
    if (last) {
        free_ofd(seg, index);
        l.transport->release(l, slot);
    }
    epoll_file_became_kernel(f);
    link_unuse(l);
    f.unconnected.tries_anew = 1;
    f.unconnected.not_before = sys::now_ns() + kFirstWait;
    mark_offered(f, side, f.unconnected.destination);
}

} // namespace sd
