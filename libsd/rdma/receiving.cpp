// What has arrived becomes part of the links: the progress step. Only who has Host::polling is in here.
#include "libsd/layout/record.hpp"
#include "libsd/rdma/state.hpp"
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <initializer_list>

namespace sd::rdma {

namespace {

uint8_t *incoming_ring(const Remote &r, uint32_t slot, uint32_t cls) noexcept {
    const unsigned sender = 1 - r.side;
    return cls == 0 ? r.view.slot(slot).ring[sender] : r.calls.ring(r.user, slot, sender, cls);
}

/// The records at `from`, which the peer may change meanwhile: each header is read once, and looked at. Its
/// header is stored last, so that the program sees a record when it is whole. False: no honest side sends
/// that.
bool put_records(Remote &r, uint32_t slot, SlotState &s, const uint8_t *from, uint32_t bytes,
                 uint64_t corked) noexcept {
    using namespace ring;
    Carried &c = s.in;
    const auto &consumed = r.view.slot(slot).side[r.side].credit.consumed;
    uint8_t *to = incoming_ring(r, slot, c.cls);
    while (bytes >= 8 && to) {
        uint64_t h;
        memcpy(&h, from, 8);
        const uint32_t size = kRingSize[c.cls], mask = size - 1, n = header_length(h);
        const auto at = static_cast<uint32_t>(c.position - c.base) & mask;
        if (!header_valid(h, c.position))
            return false;
        uint32_t used = 8;
        if (header_kind(h) == RecordKind::change) {
            uint8_t *next = n < kRingClasses && n != c.cls ? incoming_ring(r, slot, n) : nullptr;
            if (!next)
                return false;
            ring::word(next, 0).store(0, std::memory_order_relaxed);
            ring::word(to, at).store(h, std::memory_order_release);
            c.base = c.position += 8;
            c.cls = n;
            to = next;
        } else {
            const auto body = static_cast<uint32_t>(pad8(n));
            used = 8 + body;
            if (n > kMaxRecord || 16 + body > size || used > bytes)
                return false;
            // Nothing over what the program has not taken yet.
            const uint64_t taken = consumed.load(std::memory_order_acquire);
            if (c.position + used + 8 - (taken > c.base ? taken : c.base) > size)
                return false;
            const uint32_t begin = (at + 8) & mask, first = body < size - begin ? body : size - begin;
            memcpy(to + begin, from + 8, first);
            memcpy(to, from + 8 + first, body - first);
            ring::word(to, (at + 8 + body) & mask).store(0, std::memory_order_relaxed);
            if (h == corked && s.in_corked.header == 0)
                s.in_corked = {h, c.position, c.cls, at};
            else
                ring::word(to, at).store(h, std::memory_order_release);
            c.position += used;
        }
        from += used;
        bytes -= used;
    }
    return bytes == 0;
}

void store_changed(std::atomic<uint64_t> &word, uint64_t now) noexcept {
    if (word.load(std::memory_order_relaxed) != now)
        word.store(now, std::memory_order_release);
}

/// What its sender held back is shown, unless this side has done that by itself, since it took too long.
void show_corked(Remote &r, uint32_t slot, SlotState &s, uint64_t as) noexcept {
    const CorkedRecord corked = s.in_corked;
    s.in_corked = {};
    const auto &credit = r.view.slot(slot).side[r.side].credit;
    uint8_t *ring = incoming_ring(r, slot, corked.cls);
    if (!ring || credit.shown.load(std::memory_order_acquire) == corked.header ||
        credit.consumed.load(std::memory_order_acquire) > corked.position)
        return;
    const bool sound = ring::header_valid(as, corked.position) &&
                       ring::header_kind(as) == ring::header_kind(corked.header) &&
                       ring::header_length(as) == ring::header_length(corked.header);
    ring::word(ring, corked.offset).store(sound ? as : corked.header, std::memory_order_release);
}

uint64_t now_ns() noexcept {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

/// Does who waits for room want to be woken for that much? As peers on one host ask (wake_armed()): what it
/// wants is written before it arms.
bool is_enough(const SlotSide::Control &waiter, uint64_t consumed) noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return waiter.tx_arm.load(std::memory_order_acquire) != 0 &&
           consumed >= waiter.tx_want.load(std::memory_order_relaxed);
}

bool put_message(Remote &r, uint32_t slot, const Message &m, const Words *w, const uint8_t *records) noexcept {
    SlotSide &theirs = r.view.slot(slot).side[1 - r.side];
    SlotState &s = r.slot[slot];
    if (m.use != s.in_use) [[unlikely]] {
        if (static_cast<int32_t>(m.use - s.in_use) < 0)
            return true; // of a connection that is over
        recycle_in(r, slot, m.use);
    }
    bool data = m.records != 0;
    if (w) {
        for (unsigned cls = 1; cls < kRingClasses; ++cls)
            r.view.piece(slot, 1 - r.side, cls).store(w->piece[cls], std::memory_order_release);
        store_changed(theirs.control.oob, w->oob);
        if (s.in_corked.header != 0 && w->corked != s.in_corked.header)
            show_corked(r, slot, s, w->shown_as);
    }
    if (m.records &&
        (m.position != s.in.position || !put_records(r, slot, s, records, m.records, w ? w->corked : 0)))
        return false;
    bool room = theirs.credit.consumed.load(std::memory_order_relaxed) != m.consumed;
    theirs.credit.consumed.store(m.consumed, std::memory_order_release);
    room = room && is_enough(r.view.slot(slot).side[r.side].control, m.consumed);
    if (w) {
        Corked &back = theirs.control.back;
        const uint64_t corked = s.in_corked.header; // what has not come is not held back
        if (back.header.load(std::memory_order_relaxed) != corked && corked != 0)
            back.since.store(now_ns(), std::memory_order_relaxed);
        store_changed(back.where, w->cork_place);
        store_changed(back.header, corked);
        store_changed(theirs.credit.shown, w->shown);
        store_changed(theirs.credit.path.from, w->from);
        store_changed(theirs.credit.path.offer, w->offer);
        store_changed(theirs.credit.path.taken, w->taken);
        theirs.control.ended_at.store(w->ended_at, std::memory_order_relaxed);
        theirs.control.flags.fetch_or(w->flags, std::memory_order_seq_cst);
        data = true;
    }
    r.calls.wake(r.user, slot, data, room || w);
    return true;
}

} // namespace

bool take_message(Peer &p, uint32_t at, uint32_t bytes) noexcept {
    const uint32_t size = p.host->limits.mailbox_bytes;
    uint64_t read = p.emptied.load(std::memory_order_relaxed);
    const uint32_t expected = static_cast<uint32_t>(read) & (size - 1);
    if (at >= size / kUnit || (at * kUnit != expected && at != 0))
        return false;
    if (at * kUnit != expected)
        read += size - expected; // its sender has left the rest out
    const uint8_t *from = p.mailbox + at * kUnit;
    Message m;
    if (bytes < sizeof m || bytes > size - at * kUnit)
        return false;
    memcpy(&m, from, sizeof m); // what follows looks at this copy
    const uint8_t *const records = from + sizeof m;
    const uint32_t rest = bytes - static_cast<uint32_t>(sizeof m);
    Words w;
    const uint32_t words = m.flags & kHasWords ? sizeof w : 0;
    if (m.records > rest || rest - m.records != words)
        return false;
    if (words)
        memcpy(&w, records + m.records, sizeof w);
    // Credit that nobody gave does no harm: its sender would only spoil what it sends, or what it is sent.
    if (m.emptied - p.their_emptied.load(std::memory_order_relaxed) <= size)
        p.their_emptied.store(m.emptied, std::memory_order_release);
    p.their_receives.store(m.receives, std::memory_order_release);
    p.received.fetch_add(1, std::memory_order_relaxed);
    bool sound = true;
    if (m.link == kNoLink)
        p.credits.fetch_add(1, std::memory_order_relaxed);
    else if (m.slot >= kLinkSlots)
        sound = false;
    else if (Remote *r = m.link < p.links.size() ? p.links[m.link] : nullptr) // else it has been detached
        sound = put_message(*r, m.slot, m, words ? &w : nullptr, records);
    p.emptied.store(read + uint64_t{in_units(bytes)} * kUnit, std::memory_order_release);
    return sound;
}

namespace {

constexpr int kLook = 32;

/// One completion. True: the peer has something to send now, or may have.
bool take_completion(const ibv_wc &wc) noexcept {
    Peer &p = *peer_of(wc.wr_id);
    const auto kind = static_cast<Kind>(wc.wr_id & kKinds);
    if (kind == kLastWork) {
        p.drained = true;
        return false;
    }
    if (kind == kReceive)
        ++p.receives_done;
    if (wc.status != IBV_WC_SUCCESS || p.over) {
        mark_ended(p);
        return false;
    }
    if (kind == kWork) { // it, and those before it that asked for no completion
        p.work_done.fetch_add(kSignalEach, std::memory_order_release);
        return true;
    }
    if (!(wc.wc_flags & IBV_WC_WITH_IMM) || !take_message(p, wc.imm_data, wc.byte_len)) {
        mark_ended(p);
        return false;
    }
    if (++p.receives_owed >= p.host->limits.receives / 8) {
        if (p.state.load(std::memory_order_relaxed) == PeerState::open && post_receives(p, p.receives_owed))
            p.receives_owed = 0;
    }
    return true;
}

} // namespace

void recycle_in(Remote &r, uint32_t slot, uint32_t use) noexcept {
    SlotState &s = r.slot[slot];
    if (s.in_use == use)
        return;
    s.in = {};
    s.in_corked = {};
    s.in_use = use;
    SlotSide &theirs = r.view.slot(slot).side[1 - r.side];
    theirs.control.oob.store(0, std::memory_order_relaxed);
    theirs.control.ended_at.store(0, std::memory_order_relaxed);
    theirs.control.back.header.store(0, std::memory_order_relaxed);
    theirs.credit.consumed.store(0, std::memory_order_relaxed);
    theirs.credit.shown.store(0, std::memory_order_relaxed);
    for (auto *word : {&theirs.credit.path.offer, &theirs.credit.path.from, &theirs.credit.path.taken})
        word->store(0, std::memory_order_relaxed);
    ring::word(r.view.slot(slot).ring[1 - r.side], 0).store(0, std::memory_order_relaxed);
    theirs.control.flags.store(0, std::memory_order_release);
}

/// What its sender still holds back, and is not shown here, comes again with its header.
Arrived arrived(const Remote &r, uint32_t slot) noexcept {
    const SlotState &s = r.slot[slot];
    const CorkedRecord &corked = s.in_corked;
    const auto &credit = r.view.slot(slot).side[r.side].credit;
    const bool hidden = corked.header != 0 && corked.cls == s.in.cls &&
                        credit.shown.load(std::memory_order_acquire) != corked.header &&
                        credit.consumed.load(std::memory_order_acquire) <= corked.position;
    return {s.in.cls, hidden ? corked.position : s.in.position, s.in.base, s.in_use};
}

namespace {

/// There may be room in the peer's mailbox now: those who were told that there was none look again.
void wake_waiting(Peer &p) noexcept {
    p.starved.store(false, std::memory_order_seq_cst);
    for (Remote *r : p.links)
        for (uint64_t words = r ? r->waiting_words.exchange(0, std::memory_order_seq_cst) : 0; words;
             words &= words - 1) {
            const auto word = static_cast<uint32_t>(std::countr_zero(words));
            for (uint64_t slots = r->waiting[word].exchange(0, std::memory_order_seq_cst); slots;
                 slots &= slots - 1)
                r->calls.wake(r->user, word * 64 + static_cast<uint32_t>(std::countr_zero(slots)), false, true);
        }
}

/// With `polling`: until nothing is left.
unsigned take_completions(Host *h) noexcept {
    unsigned sum = 0;
    ibv_wc wc[kLook];
    for (int n = kLook; n == kLook;) {
        n = ibv_poll_cq(h->queue, kLook, wc);
        Peer *to_serve[kLook];
        unsigned peers = 0;
        for (int i = 0; i < n; ++i) {
            Peer *p = peer_of(wc[i].wr_id);
            if (take_completion(wc[i]) && (peers == 0 || to_serve[peers - 1] != p))
                to_serve[peers++] = p;
        }
        // Still with `polling`: nobody drops a peer meanwhile.
        for (unsigned i = 0; i < peers; ++i) {
            serve(*to_serve[i]);
            if (to_serve[i]->starved.load(std::memory_order_seq_cst)) [[unlikely]]
                wake_waiting(*to_serve[i]);
        }
        sum += n > 0 ? static_cast<unsigned>(n) : 0;
    }
    return sum;
}

} // namespace

unsigned progress(Host *h) {
    const int saved = errno;
    unsigned sum = 0;
    // As in serve(): what came after the owner's last look is not left by who looks meanwhile.
    h->wanted.store(true, std::memory_order_seq_cst);
    while (h->wanted.load(std::memory_order_seq_cst) && h->polling.get()) {
        h->wanted.store(false, std::memory_order_seq_cst);
        const unsigned n = take_completions(h);
        sum += n;
        // Who answers what it has read does so soon, and the answer takes the credit along; a call may look
        // once for each connection before that. Who sleeps may not look again for long.
        h->idle_looks = n ? 0 : h->idle_looks + 1;
        if (h->tells.exchange(false, std::memory_order_seq_cst) || h->idle_looks >= kLooksBeforeTelling)
            for (Peer *p : h->peers)
                tell_owed(*p);
        h->polling.let_go();
    }
    errno = saved;
    return sum;
}

void take_all(Host *h) {
    const int saved = errno;
    h->polling.wait();
    take_completions(h);
    h->polling.let_go();
    progress(h); // for who came meanwhile
    errno = saved;
}

} // namespace sd::rdma
