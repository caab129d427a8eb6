// The life of an accelerated connection in this process.
#include "libsd/control/assert.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/short_lived.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/cork.hpp"

#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <csignal>
#include <initializer_list>

namespace sd {

namespace {

// Where a recycled File points: an Ofd nobody can own and an empty slot.
constinit Ofd grave_ofd{};
constinit Slot grave_slot{};

} // namespace

void bury(File &f) noexcept {
    __atomic_store_n(&f.ofd, &grave_ofd, __ATOMIC_RELEASE);
    f.mine = &grave_slot.side[0];
    f.peer = &grave_slot.side[1];
    f.tx_place = {grave_slot.ring[0]};
    f.rx_place = {grave_slot.ring[1]};
}

bool bind_stream(File &f, LinkMap &l, uint32_t slot, unsigned family) noexcept {
    unsigned seg = 0;
    uint32_t index = 0;
    Ofd *o = nullptr;
    do {
        if (!own_segment()) // a forked child makes its own with its first connection
            return false;
        o = allocate_ofd(l.id, slot, l.side, &seg, &index);
    } while (!o && own_segment_index.load(std::memory_order_relaxed) < 0); // left just then by another thread
    if (!o)
        return false;
    o->family = static_cast<uint8_t>(family);
    o->status.store(f.status.load(std::memory_order_relaxed), std::memory_order_relaxed);
    join_stream(f, l, seg, index, slot, family);
    return true;
}

void join_stream(File &f, LinkMap &l, unsigned seg, uint32_t ofd_index, uint32_t slot, unsigned family) noexcept {
    SD_ASSERT(seg < kMaxSegments && ofd_index != 0 && ofd_index < kOfds && slot < kLinkSlots);
    Ofd *o = &segments[seg].view.ofd(ofd_index);
    Slot &s = l.view.slot(slot);
    const unsigned side = l.side;
    f.seg = static_cast<uint8_t>(seg);
    f.side = static_cast<uint8_t>(side);
    f.link = &l;
    f.slot = slot;
    f.ofd_index = ofd_index;
    f.family = static_cast<uint8_t>(family);
    f.mine = &s.side[side];
    f.peer = &s.side[1 - side];
    f.tx_place = {s.ring[side]};
    f.rx_place = {s.ring[1 - side]};
    f.stream.pool_seen.store(0, std::memory_order_relaxed);
    f.stream.told.store(0, std::memory_order_relaxed);
    f.stream.room_told.store(0, std::memory_order_relaxed);
    l.users.fetch_add(1, std::memory_order_relaxed);
    __atomic_store_n(&f.ofd, o, __ATOMIC_RELEASE); // after what ConnectionSnapshot reads with it
    std::atomic_signal_fence(std::memory_order_release);
    f.kind = FileKind::stream;
}

void CleanupStack::look_for_abandoned(const void *frame) noexcept {
    // A call that goes on after this one has its frame further up the stack; only a handler on a stack of
    // its own could be anywhere.
    char local;
    const auto here = frame ? reinterpret_cast<uintptr_t>(frame) : reinterpret_cast<uintptr_t>(&local) - 1;
    stack_t alternate;
    if (reinterpret_cast<uintptr_t>(notes.entry[notes.count - 1].frame) > here ||
        sys::call(SYS_sigaltstack, 0, sys::arg(&alternate)) < 0 || (alternate.ss_flags & SS_ONSTACK))
        return;
    while (notes.count && reinterpret_cast<uintptr_t>(notes.entry[notes.count - 1].frame) <= here)
        give_back_last();
}

int take_error(Ofd &o) noexcept {
    return o.so_error.load(std::memory_order_relaxed) ? o.so_error.exchange(0, std::memory_order_acq_rel) : 0;
}

namespace {

/// Of a peer that was killed (`fin`: it had ended its direction): had it left unread what it was sent? A
/// kernel closing its socket sends RST then instead of FIN. Of what went by the socket that one tells.
bool left_unread(const File &f, bool fin) noexcept {
    const Ofd &o = *f.ofd;
    if (fin && (f.mine->control.flags.load(std::memory_order_relaxed) & kFlagWriteShut))
        return false;
    return !ring::all_uncorked_taken(o.tx.s, f.mine->control.back, f.peer->credit) ||
           (has_paths(o) && death_was_reset(f));
}

} // namespace

uint32_t absorb_flags(File &f) noexcept {
    uint32_t flags = f.peer->control.flags.load(std::memory_order_acquire) & (kFlagReleased * 2 - 1);
    Ofd &o = *f.ofd;
    uint32_t seen = o.flags_seen.load(std::memory_order_acquire);
    if ((flags & ~seen) == 0) [[likely]]
        return seen;
    if ((seen & kSeenPath) && !uses_ring(f)) [[unlikely]]
        return seen; // its socket says what becomes of it
    if ((flags & kFlagDead) && rdma::is_remote(*f.link)) [[unlikely]] {
        rdma::take_all(); // its last bytes may be on their way into the ring, or have to be carried there
        flags |= f.peer->control.flags.load(std::memory_order_acquire) & (kFlagReleased * 2 - 1);
    }
    const uint32_t fin = flags & kFlagWriteShut;
    if (flags & kFlagDead)
        flags |= left_unread(f, fin) ? kFlagReset : kFlagWriteShut;
    uint32_t before = o.flags_seen.fetch_or(flags, std::memory_order_acq_rel);
    if ((flags & kFlagReset) && !(before & kFlagReset)) {
        if (f.peer->control.flags.load(std::memory_order_relaxed) & kFlagLost) [[unlikely]]
            count_fallback(Cause::queue_pair_lost, nullptr);
        // A side that resets sets no FIN then: one that is there came before it.
        o.so_error.store(fin ? EPIPE : ECONNRESET, std::memory_order_release);
        o.tx_block.fetch_or(kTxReset, std::memory_order_release);
        if (is_captured(o))
            capture_end(f, true, CaptureKind::reset);
    }
    return before | flags;
}

SD_FORK_CODE void link_unuse(LinkMap &l) noexcept {
    const uint32_t users = l.users.fetch_sub(1, std::memory_order_acq_rel);
    SD_ASSERT(users != 0);
    if (users != 1)
        return;
    forget_link(l);
    wire::LinkRef ref{l.id, l.side, 0};
    unmap_link(&l);
    control::tell(wire::Op::drop_link, &ref, sizeof ref);
}

LinkMap *link_in_use(uint64_t id, unsigned side) noexcept {
    LinkMap *l = find_link(id, side);
    if (!l || !link_use(*l))
        return nullptr;
    if (l->id == id && l->side == side)
        return l;
    link_unuse(*l); // it had just become another
    return nullptr;
}

LinkMap *map_hidden_link(int memfd, uint64_t id, unsigned side, uint8_t reach, LinkPeer peer) noexcept {
    long error;
    LinkMap *l = side > 1 ? nullptr : map_link(memfd, id, side, reach, peer, &error);
    if (!l)
        close_hidden(memfd);
    return l;
}

namespace {

/// May a thread of this process be inside an operation with the token?
bool ours(unsigned seg, const Token &token) noexcept {
    for (const auto *word : {&token.owner, &token.lock, &token.prev}) {
        const uint32_t who = word->load(std::memory_order_acquire) & ~Token::kWaiters;
        if (who != 0 && who != Token::kShared &&
            segments[seg].view.thread(thread_index(who)).state.load(std::memory_order_relaxed) ==
                segments[seg].proc + 1)
            return true;
    }
    return false;
}

} // namespace

bool unbind_stream(File &f) noexcept {
    LinkMap &l = *f.link;
    Ofd &o = *f.ofd;
    const unsigned seg = f.seg;
    const uint32_t index = f.ofd_index;
    DetachedPools pools;
    bool last;
    // Another thread may have found the number, and be about to use the connection: as in close_stream().
    f.kind = FileKind::fresh;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    {
        const Claim tx(seg, o.tx.token, f.tx_token_id(), Claim::patient, ours(seg, o.tx.token));
        const Claim rx(seg, o.rx.token, f.rx_token_id(), Claim::patient, ours(seg, o.rx.token));
        last = drop_ofd(seg, index);
        pools = detach_pools(f);
        bury(f);
    }
    let_go_of_pools(pools, last, l.id, 1u - l.side);
    if (last)
        free_ofd(seg, index);
    epoll_stream_ends(f); // it may have been added to a set meanwhile
    link_unuse(l);
    return last;
}

void close_stream(File &f, bool reset) noexcept {
    LinkMap &l = *f.link;
    Ofd &o = *f.ofd;
    const unsigned seg = f.seg;
    const uint32_t index = f.ofd_index, slot = f.slot;
    const bool paths = has_paths(o);
    const bool was_moved = ((o.tx_block.load(std::memory_order_acquire) & kTxMoved) && !f.stream.carried) ||
                           (f.stream.fetched != 0 && !paths); // the monitor may keep sockets
    const uint16_t generation = o.generation;
    SlotSide *mine = f.mine, *peer = f.peer;
    const SlotAddress &server = f.stream.server;
    uint64_t sends = 0, bytes = 0;
    DetachedPools pools;
    bool last;
    // From here on a thread of ours that gets a token sees that the connection is closed; one that got it
    // before is found below. Other processes that hold the connection go on with it, and their tokens stay
    // theirs.
    f.kind = FileKind::free;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    {
        Claim tx(seg, o.tx.token, f.tx_token_id(), Claim::patient, ours(seg, o.tx.token));
        Claim rx(seg, o.rx.token, f.rx_token_id(), Claim::patient, ours(seg, o.rx.token));
        last = drop_ofd(seg, index);
        if (last) {
            sends = o.tx.s.messages;
            bytes = o.tx.s.bytes + o.rx.s.bytes;
            uint32_t flags = kFlagClosed;
            uncork_overdue(f);
            rdma::progress(); // may bring what is then unread
            // What is unread may lie where nobody has looked since the sender went there; and if the reading
            // was stopped, what has come by the socket is not unread in the ring. No new move is agreed to.
            if (paths && (is_reading_stopped(o) || path_step(senders_word(f)) != kPathAsked)) [[unlikely]]
                follow_sender(path_socket(f), f);
            bool unread = rx_pending(f);
            if (paths) [[unlikely]]
                unread |= left_in_socket(f);
            // When both directions have ended, so has the connection: nobody is there to reset.
            const bool over = (mine->control.flags.load(std::memory_order_relaxed) & kFlagWriteShut) &&
                              (peer->control.flags.load(std::memory_order_acquire) & kFlagWriteShut);
            const bool resets = reset || unread ||
                                (o.opt.linger_on.load(std::memory_order_relaxed) &&
                                 o.opt.linger_s.load(std::memory_order_relaxed) == 0);
            if (paths && !uses_ring(f)) [[unlikely]] {
                if (resets && !over)
                    reset_socket(f); // the socket's end says it all
            } else if (resets && !over)
                flags |= kFlagReset;
            // Else no FIN follows the reset that was
            else if (!(o.tx_block.load(std::memory_order_acquire) & kTxReset))
                flags |= kFlagWriteShut;
            if (paths && (flags & kFlagReset)) [[unlikely]]
                reset_socket(f);
            if (!(flags & kFlagReset)) // a reset takes along what was not sent yet
                ring::uncork(o.tx.s, f.tx_place, mine->control.back, peer->credit);
            if (is_captured(o)) [[unlikely]]
                capture_close(f, flags);
            // Order as with data: flags, fence (the locked instruction), then the peer's arm words. Of one
            // that stays in its socket that says it all, once nobody has it any more.
            if (!(paths && ((o.opt.*kPathStays).load(std::memory_order_relaxed) & kStaysPinned)))
                set_ended(*mine, flags);
        }
        pools = detach_pools(f);
        bury(f);
    }
    if (pools) [[unlikely]]
        let_go_of_pools(pools, last, l.id, 1u - l.side);
    if (last) {
        notify(l, slot, peer->control.rx_arm);
        notify(l, slot, peer->control.tx_arm);
        free_ofd(seg, index);
        l.transport->release(l, slot);
    }
    if (was_moved) [[unlikely]]
        tell_moved_let_go(seg, index, generation);
    // Also when others go on with it: the slot is ours to give out again once they have let go of it.
    if (l.side == 0 && !(paths && l.listener_id == 0)) { // of those that the monitor joined it does
        QuietGuard g(l.slot_lock);
        close_slot(l, slot);
    }
    if (l.side == 0 && last && l.listener_id != 0)
        note_forked(server, (l.view.header().side[1].flags.load(std::memory_order_relaxed) & kLinkForks) != 0,
                    sends, bytes);
    // Nobody is at the other end to connect to: not kept for the next connection.
    if (l.side == 0 &&
        (l.view.header().side[1].flags.load(std::memory_order_acquire) & (kLinkListenerClosed | kLinkServerDead)) &&
        !l.retired.exchange(true))
        link_unuse(l);
    link_unuse(l);
}

} // namespace sd
