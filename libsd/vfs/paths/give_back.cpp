// See give_back.hpp.
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/paths/counts.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/cork.hpp"

namespace sd {

namespace {

// --- the receiver

/// With the receive token: `word` is where it reads from now on.
void read_on(File &f, uint32_t word) noexcept {
    Ofd &o = *f.ofd;
    if (path_step(word) == kPathRing) {
        f.mine->credit.path.taken.store(word, std::memory_order_release);
        set_path_lowat(o, (o.opt.*kPathRcvlowat).load(relaxed));
    }
    (o.opt.*kPathRx).store(static_cast<int32_t>(word), std::memory_order_release);
}

/// Of the peer, after it has claimed: what it had written to the socket then.
uint32_t given_from(const File &f) noexcept {
    return static_cast<uint32_t>(f.peer->credit.path.offer.load(std::memory_order_acquire) >> 32);
}

/// Is nobody left of the peer who could write to the socket?
bool has_gone(int fd, const File &f) noexcept {
    const uint32_t flags = f.peer->control.flags.load(std::memory_order_acquire);
    return (flags & (kFlagDead | kFlagClosed)) || (!f.ofd->rx_shut.load(relaxed) && socket_has_ended(fd));
}

/// Nobody is left who could go on with what was claimed: up to where the socket has got it.
uint64_t given_by_the_dead(int fd, const File &f) noexcept {
    Came came{};
    RxState s = f.ofd->rx.s;
    // A reset leaves it open whether a FIN came before it; then there was none, as a rule.
    if (ask_came(fd, &came))
        ring::walk_over(s, f.rx_place,
                        static_cast<uint32_t>((socket_was_reset(fd) ? came.most : came.least)) - given_from(f));
    return pack_given(ring::at(s));
}

} // namespace

bool stop_reading(File &f) noexcept {
    Ofd &o = *f.ofd;
    const auto mine = static_cast<uint32_t>((o.opt.*kPathRx).load(relaxed));
    const bool reads_ring = path_step(mine) == kPathRing || path_step(mine) == kPathAsked;
    if (!reads_ring || senders_word(f) != path_word(mine >> 8, kPathRing) || sandboxed() ||
        rdma::is_remote(*f.link))
        return false;
    RxState &s = o.rx.s;
    auto &own = f.mine->credit;
    ring::Record rec{};
    const int r = ring::next_record(s, f.rx_place, own.consumed, &rec);
    if (r != 1 && !(r == 0 && path_step(mine) == kPathAsked)) // then the socket alone may have something
        return false;
    own.consumed.store(ring::read_up_to(s), std::memory_order_release);
    set_path_lowat(o, kPathLowat);
    (o.opt.*kPathRx).store(static_cast<int32_t>(mine | kReadingStopped), std::memory_order_release);
    const auto offset = static_cast<uint32_t>(s.head - s.base) & (kRingSize[s.cls] - 1);
    own.back.store(pack({BackState::stopped, s.cls, rec.length, rec.read, offset}), std::memory_order_seq_cst);
    return true;
}

bool resume_reading(int fd, File &f, bool takes_back) noexcept {
    Ofd &o = *f.ofd;
    auto &own = f.mine->credit;
    const auto mine = static_cast<uint32_t>((o.opt.*kPathRx).load(relaxed)) & ~kReadingStopped;
    uint64_t back = own.back.load(std::memory_order_acquire);
    if (back_state(back) == BackState::stopped &&
        (!takes_back || own.back.compare_exchange_strong(back, 0, std::memory_order_acq_rel))) {
        if (takes_back)
            read_on(f, mine);
        return takes_back;
    }
    if (back == 0) { // killed in the midst of it
        read_on(f, mine);
        return true;
    }
    if (back_state(back) == BackState::claimed) {
        if (!has_gone(fd, f))
            return false;
        const uint64_t given = given_by_the_dead(fd, f);
        if (own.back.compare_exchange_strong(back, given, std::memory_order_acq_rel))
            back = given;
    }
    if (back_state(back) != BackState::given)
        return false;
    const ring::At to = unpack_given(back);
    RxState ahead = o.rx.s;
    std::atomic<uint64_t> scratch{0};
    uint64_t bytes = 0;
    if (!ring::walk_to(ahead, f.rx_place, scratch, to, &bytes))
        return false; // no honest sender
    const uint32_t theirs = senders_word(f);
    const bool is_left = theirs == path_word((mine >> 8) + 1, kPathKernel) && to.read == 0 &&
                         f.peer->credit.path.from.load(relaxed) == to.position;
    Came came{};
    if (!is_left && ask_came(fd, &came)) {
        const uint32_t from = given_from(f);
        // In this order: what comes after the first question shows in the second.
        if (ask_count(fd, SIOCINQ) != 0 || (static_cast<uint32_t>(came.least) - from != bytes &&
                                            static_cast<uint32_t>(came.most) - from != bytes))
            return false;
    }
    bytes = 0;
    (void)ring::walk_to(o.rx.s, f.rx_place, own.consumed, to, &bytes);
    o.rx.s.bytes -= bytes; // they have been counted, or will be, as what comes by the socket
    own.consumed.store(ring::read_up_to(o.rx.s), std::memory_order_release);
    // The ring, which may have been left here; in this order, or who takes over would look for its beginning.
    const uint32_t in_ring = path_word(mine >> 8, kPathRing);
    (o.opt.*kPathRx).store(static_cast<int32_t>(in_ring | kReadingStopped), std::memory_order_release);
    own.back.store(0, std::memory_order_release);
    read_on(f, in_ring);
    notify(*f.link, f.slot, f.peer->control.tx_arm); // there is room now
    return true;
}

uint64_t already_came(int fd, const File &f) noexcept {
    Came came{};
    const BackState state = back_state(f.mine->credit.back.load(std::memory_order_acquire));
    if ((state != BackState::claimed && state != BackState::given) || !ask_came(fd, &came))
        return 0;
    // What was in the socket before may not all be there yet.
    const auto bytes = static_cast<int32_t>(static_cast<uint32_t>(came.least) - given_from(f));
    return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

// --- the sender

namespace {

constexpr unsigned kPiecesAtOnce = 64; ///< of one call

/// With the send token: where the peer stands, as it says. False: that cannot be.
bool start_at(const File &f, const BackWord &w, RxState *s, ring::Place *place) noexcept {
    const TxState &own = f.ofd->tx.s;
    const uint64_t consumed = f.peer->credit.consumed.load(std::memory_order_acquire);
    const uint64_t position = consumed - (w.read ? 8 + w.read : 0);
    if (consumed < own.credit || consumed > own.tail || position > consumed || (position & 7) != 0 ||
        w.cls >= kRingClasses || w.offset >= kRingSize[w.cls] || (w.read >= w.length && w.read != 0) ||
        w.length > ring::kMaxRecord || 8 + ring::pad8(w.length) + 8 > kRingSize[w.cls] ||
        place->settle(w.cls) < 0)
        return false;
    *s = {};
    s->head = position;
    s->base = position - w.offset;
    s->cls = static_cast<uint16_t>(w.cls);
    // Of a record that was read in part, the header may be another's by now
    s->part = w.read ? ring::part_word(position, w.length, w.read) : 0;
    return true;
}

/// Is that the end of what was sent?
bool is_at_tail(const File &f, const RxState &s) noexcept {
    const TxState &own = f.ofd->tx.s;
    return s.head == own.tail && s.cls == own.cls && !ring::inside(s) &&
           ((s.head - s.base - (own.tail - own.base)) & (kRingSize[own.cls] - 1)) == 0;
}

/// Writes what lies from `s` on to the socket, as much as it takes; `s` is behind it then.
void write_unread(int fd, RxState &s, const ring::Place &place) noexcept {
    std::atomic<uint64_t> scratch{0};
    for (const uint64_t start = s.head; s.head - start <= ring::kMostUnread;) {
        iovec pieces[kPiecesAtOnce];
        msghdr m{};
        m.msg_iov = pieces;
        size_t bytes = 0;
        RxState ahead = s;
        ring::Record rec{};
        while (m.msg_iovlen + 2 <= kPiecesAtOnce && ring::next_record(ahead, place, scratch, &rec) == 1 &&
               ring::if_reachable(ahead, place, 1) == 1) {
            m.msg_iovlen += ring::pieces_of(ahead, place, rec, pieces + m.msg_iovlen);
            bytes += static_cast<size_t>(ring::skip(ahead, rec, rec.length));
        }
        const long r = bytes ? sys::call(SYS_sendmsg, fd, sys::arg(&m), MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        if (r > 0)
            ring::walk_over(s, place, static_cast<uint64_t>(r));
        if (r <= 0 || static_cast<size_t>(r) < bytes)
            return;
    }
}

/// Is all from `s` on data, and has the socket room for it?
bool fits_socket(int fd, const File &f, RxState s, const ring::Place &place) noexcept {
    int most = 0;
    socklen_t n = sizeof most;
    const uint64_t bytes = ring::walk_over(s, place, ring::kMostUnread);
    const long queued = ask_count(fd, SIOCOUTQ);
    return is_at_tail(f, s) && queued >= 0 && sys::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, &n) == 0 &&
           bytes + static_cast<uint64_t>(queued) <= static_cast<uint64_t>(most);
}

} // namespace

Giving give_back(int fd, File &f, bool *tell) noexcept {
    Ofd &o = *f.ofd;
    auto &word = f.peer->credit.back;
    uint64_t back = word.load(std::memory_order_acquire);
    if (back == 0 || rdma::is_remote(*f.link) || sandboxed()) [[likely]]
        return Giving::nothing;
    if (back_state(back) == BackState::given) {
        const ring::At to = unpack_given(back);
        return to.read == 0 && to.position == o.tx.s.tail ? Giving::all : Giving::rest;
    }
    const bool counts_syn = f.side == 0 && !((o.opt.*kPathStays).load(relaxed) & kNoSyn);
    const int64_t so_far = written(fd, counts_syn, true);
    const bool claimed = back_state(back) == BackState::claimed; // by one that was killed
    const Giving not_now = claimed ? Giving::rest : Giving::nothing;
    RxState s;
    ring::Place place = f.tx_place; // nothing is remembered in the File's
    if (so_far < 0 || (o.tx_block.load(relaxed) & kTxReset) || !start_at(f, unpack_back(back), &s, &place))
        return not_now;
    auto &offer = f.mine->credit.path.offer;
    if (!claimed) {
        *tell |= uncork(f);
        if (!fits_socket(fd, f, s, place))
            return not_now;
        offer.store(static_cast<uint64_t>(so_far) << 32 | static_cast<uint32_t>(offer.load(relaxed)),
                    std::memory_order_release);
        const uint64_t mine = (back & ~uint64_t{3}) | static_cast<uint64_t>(BackState::claimed);
        if (!word.compare_exchange_strong(back, mine, std::memory_order_acq_rel))
            return not_now;
        back = mine;
    }
    const uint32_t before = static_cast<uint32_t>(so_far) - static_cast<uint32_t>(offer.load(relaxed) >> 32);
    if (ring::walk_over(s, place, before) != before)
        return Giving::rest;
    write_unread(fd, s, place);
    std::atomic<uint64_t> scratch{0};
    ring::Record rec{};
    (void)ring::next_record(s, place, scratch, &rec); // behind changes of ring
    *tell = true;
    if (!word.compare_exchange_strong(back, pack_given(ring::at(s)), std::memory_order_acq_rel))
        return Giving::rest;
    return is_at_tail(f, s) ? Giving::all : Giving::rest;
}

} // namespace sd
