// What this side has written of its links becomes messages, and they are posted: as many at once as there
// are.
#include "libsd/layout/record.hpp"
#include "libsd/rdma/state.hpp"
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace sd::rdma {

namespace {

uint8_t *outgoing_ring(const Remote &r, uint32_t slot, uint32_t cls) noexcept {
    return cls == 0 ? r.view.slot(slot).ring[r.side] : r.calls.ring(r.user, slot, r.side, cls);
}

/// The sender has shown what it held back: what its header is now.
void note_uncorked(const Remote &r, uint32_t slot, SlotState &s, Words &w) noexcept {
    const auto &back = r.view.slot(slot).side[r.side].control.back;
    if (s.corked.header == 0 || back.header.load(std::memory_order_acquire) == s.corked.header)
        return;
    uint8_t *ring = outgoing_ring(r, slot, s.corked.cls);
    const uint64_t now = ring ? ring::word(ring, s.corked.offset).load(std::memory_order_acquire) : 0;
    w.shown_as = now != 0 && ring::header_valid(now, s.corked.position) ? now : s.corked.header;
    s.corked = {};
}

/// Copies the records from where the last ones ended, whole ones, at most `room` bytes. The program's own
/// memory: what makes no sense there is not sent, and nothing after it. Its sender does not use the place
/// again before the other side has consumed it.
uint32_t collect(const Remote &r, uint32_t slot, SlotState &s, uint8_t *to, uint32_t room,
                 uint64_t *count) noexcept {
    using namespace ring;
    Carried &c = s.out;
    uint32_t used = 0;
    uint8_t *from = outgoing_ring(r, slot, c.cls);
    while (from && room - used >= 8) {
        const uint32_t size = kRingSize[c.cls], mask = size - 1;
        const auto at = static_cast<uint32_t>(c.position - c.base) & mask;
        uint64_t h = ring::word(from, at).load(std::memory_order_acquire);
        const bool held_back = h == 0 && s.corked.header == 0;
        if (held_back)
            h = r.view.slot(slot).side[r.side].control.back.header.load(std::memory_order_acquire);
        const uint32_t n = header_length(h);
        if (h == 0 || !header_valid(h, c.position))
            break;
        if (header_kind(h) == RecordKind::change) {
            if (n >= kRingClasses || n == c.cls)
                break;
            memcpy(to + used, &h, 8);
            used += 8;
            c.base = c.position += 8;
            c.cls = n;
            from = outgoing_ring(r, slot, n);
            continue;
        }
        const auto bytes = static_cast<uint32_t>(pad8(n));
        if (n > kMaxRecord || 16 + bytes > size || 8 + bytes > room - used)
            break;
        memcpy(to + used, &h, 8);
        const uint32_t begin = (at + 8) & mask, first = bytes < size - begin ? bytes : size - begin;
        memcpy(to + used + 8, from + begin, first);
        memcpy(to + used + 8 + first, from, bytes - first);
        if (held_back)
            s.corked = {h, c.position, c.cls, at};
        used += 8 + bytes;
        std::atomic_ref(c.position).store(c.position + 8 + bytes, std::memory_order_relaxed);
        ++*count;
    }
    return used;
}

/// What the next record takes in a message; 0: there is none.
uint32_t next_size(const Remote &r, uint32_t slot, const SlotState &s) noexcept {
    const Carried &c = s.out;
    uint8_t *from = outgoing_ring(r, slot, c.cls);
    const uint32_t mask = kRingSize[c.cls] - 1;
    uint64_t h =
        from ? ring::word(from, static_cast<uint32_t>(c.position - c.base) & mask).load(std::memory_order_acquire)
             : 0;
    if (from && h == 0)
        h = r.view.slot(slot).side[r.side].control.back.header.load(std::memory_order_acquire);
    if (h == 0 || !ring::header_valid(h, c.position) || ring::header_length(h) > ring::kMaxRecord)
        return 0;
    return ring::header_kind(h) == ring::RecordKind::change
               ? 8
               : 8 + static_cast<uint32_t>(ring::pad8(ring::header_length(h)));
}

/// What a write is made of until it is posted.
struct Batch {
    ibv_send_wr request[kBatch];
    ibv_sge piece[kBatch];
    unsigned n = 0;
};

uint64_t room_in_mailbox(const Peer &p) noexcept {
    return p.theirs.mailbox_bytes - (p.sent - p.their_emptied.load(std::memory_order_acquire));
}
uint32_t credit(const Peer &p) noexcept {
    return p.their_receives.load(std::memory_order_acquire) - p.messages;
}
uint64_t under_way(const Peer &p) noexcept {
    return p.work_posted - p.work_done.load(std::memory_order_acquire);
}

/// With `sending`, as all that writes what may_send() reads.
void advance(Peer &p, uint64_t bytes) noexcept {
    p.sent.store(p.sent.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

void flush(Peer &p, Batch &b) noexcept {
    if (b.n == 0)
        return;
    for (unsigned i = 0; i < b.n; ++i) {
        b.request[i].sg_list = &b.piece[i];
        b.request[i].next = i + 1 < b.n ? &b.request[i + 1] : nullptr;
    }
    ibv_send_wr *bad;
    if (ibv_post_send(p.pair, b.request, &bad) != 0)
        mark_ended(p);
    ++p.counts.posts;
    b.n = 0;
}

/// Posts the message that lies in staging at the next place, which is `bytes` long.
void send(Peer &p, Batch &b, uint32_t bytes) noexcept {
    const uint32_t offset = static_cast<uint32_t>(p.sent) & (p.theirs.mailbox_bytes - 1);
    ibv_send_wr &w = b.request[b.n];
    ibv_sge &s = b.piece[b.n];
    w = {};
    s.addr = reinterpret_cast<uint64_t>(p.staging + offset);
    s.length = bytes;
    s.lkey = p.staging_memory->lkey;
    w.wr_id = work_id(&p, kWork);
    w.num_sge = 1;
    w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    w.imm_data = offset / kUnit;
    w.wr.rdma.remote_addr = p.theirs.mailbox_address + offset;
    w.wr.rdma.rkey = p.theirs.mailbox_key;
    unsigned flags = IBV_SEND_SOLICITED;
    if (bytes <= p.max_inline)
        flags |= IBV_SEND_INLINE;
    p.work_posted.store(p.work_posted.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (++p.since_signal == kSignalEach) {
        flags |= IBV_SEND_SIGNALED;
        p.since_signal = 0;
    }
    w.send_flags = flags;
    advance(p, uint64_t{in_units(bytes)} * kUnit);
    p.messages.store(p.messages.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    ++p.counts.messages;
    if (++b.n == kBatch)
        flush(p, b);
}

/// Room in one piece for a message of at least `least` bytes, and for one of credit behind it: how many
/// bytes; 0: there is none now.
uint32_t place(Peer &p, uint32_t least) noexcept {
    const uint32_t size = p.theirs.mailbox_bytes;
    const uint64_t room = room_in_mailbox(p);
    const uint32_t to_end = size - (static_cast<uint32_t>(p.sent) & (size - 1));
    const uint64_t needed = uint64_t{in_units(least)} * kUnit + kUnit;
    if (to_end < least) { // the rest is left out
        if (room < to_end + needed)
            return 0;
        advance(p, to_end);
        return place(p, least);
    }
    if (room < needed)
        return 0;
    const uint64_t here = room - kUnit < to_end ? room - kUnit : to_end;
    return here < kMaxMessage ? static_cast<uint32_t>(here) : kMaxMessage;
}

/// Rides along with each message.
void give_credit(Peer &p, Message &m) noexcept {
    m.emptied = p.told_emptied = p.emptied.load(std::memory_order_acquire);
    m.receives = p.told_receives = p.receives.load(std::memory_order_acquire);
}

/// With `sending`; is_told() reads it without.
void remember(Words &told, const Words &w) noexcept {
    const auto whole = std::bit_cast<std::array<uint64_t, sizeof w / 8>>(w);
    for (size_t i = 0; i < whole.size(); ++i)
        std::atomic_ref(reinterpret_cast<uint64_t *>(&told)[i]).store(whole[i], std::memory_order_relaxed);
}

enum class Sent { all, more, no_room };

Sent send_slot(Peer &p, Batch &b, Remote &r, uint32_t slot) noexcept {
    constexpr uint32_t kFront = sizeof(Message) + sizeof(Words);
    if (credit(p) <= 2 || under_way(p) >= kSendDepth - 1)
        return Sent::no_room;
    SlotState &s = r.slot[slot];
    const SlotSide &mine = r.view.slot(slot).side[r.side];
    // Before the records: what these say was so before them.
    Words w{};
    w.flags = mine.control.flags.load(std::memory_order_acquire);
    w.ended_at = mine.control.ended_at.load(std::memory_order_acquire);
    w.oob = mine.control.oob.load(std::memory_order_acquire);
    const uint32_t room = place(p, kFront + next_size(r, slot, s));
    if (room == 0)
        return Sent::no_room;
    uint8_t *at = p.staging + (static_cast<uint32_t>(p.sent) & (p.theirs.mailbox_bytes - 1));
    Message m{};
    m.link = r.number;
    m.slot = static_cast<uint16_t>(slot);
    m.use = s.use;
    w.shown_as = s.words.shown_as;
    note_uncorked(r, slot, s, w);
    m.position = s.out.position;
    uint64_t count = 0;
    m.records = collect(r, slot, s, at + sizeof m, room - kFront, &count);
    if (next_size(r, slot, s) != 0) { // an end is none before the last record
        w.flags = s.words.flags;
        w.ended_at = s.words.ended_at;
    }
    for (unsigned cls = 1; cls < kRingClasses; ++cls)
        w.piece[cls] = r.view.piece(slot, r.side, cls).load(std::memory_order_acquire);
    w.offer = mine.credit.path.offer.load(std::memory_order_acquire);
    w.from = mine.credit.path.from.load(std::memory_order_acquire);
    w.taken = mine.credit.path.taken.load(std::memory_order_acquire);
    w.corked = s.corked.header;
    w.cork_place = w.corked ? mine.control.back.where.load(std::memory_order_acquire) : 0;
    w.shown = mine.credit.shown.load(std::memory_order_acquire);
    m.consumed = mine.credit.consumed.load(std::memory_order_acquire);
    uint32_t bytes = sizeof m + m.records;
    const bool words = memcmp(&w, &s.words, sizeof w) != 0;
    if (words) {
        m.flags |= kHasWords;
        memcpy(at + bytes, &w, sizeof w);
        bytes += sizeof w;
        remember(s.words, w);
    }
    if (!words && m.records == 0 && m.consumed == s.consumed)
        return Sent::all;
    std::atomic_ref(s.consumed).store(m.consumed, std::memory_order_relaxed);
    r.owing[slot / 64].fetch_and(~(uint64_t{1} << slot % 64), std::memory_order_relaxed);
    give_credit(p, m);
    memcpy(at, &m, sizeof m);
    p.counts.records += count;
    p.counts.bytes += m.records;
    send(p, b, bytes);
    // What is put there from here on is published after it.
    return m.records && next_size(r, slot, s) != 0 ? Sent::more : Sent::all;
}

/// The other side hears of room and receives when a quarter of either is used up, if nothing else goes there.
void send_credit(Peer &p, Batch &b) noexcept {
    const uint64_t emptied = p.emptied.load(std::memory_order_acquire) - p.told_emptied;
    const uint32_t receives = p.receives.load(std::memory_order_acquire) - p.told_receives;
    const Limits &l = p.host->limits;
    if ((emptied < l.mailbox_bytes / 4 && receives < l.receives / 4) || credit(p) == 0 ||
        room_in_mailbox(p) < kUnit || under_way(p) >= kSendDepth)
        return;
    Message m{};
    m.link = kNoLink;
    give_credit(p, m);
    memcpy(p.staging + (static_cast<uint32_t>(p.sent) & (p.theirs.mailbox_bytes - 1)), &m, sizeof m);
    send(p, b, sizeof m);
}

/// With `sending`.
void send_all(Peer &p) noexcept {
    Batch b;
    const size_t n = p.links.size();
    for (size_t k = 0; k < n && p.state.load(std::memory_order_acquire) == PeerState::open; ++k) {
        Remote *r = p.links[(p.next_link + k) % n];
        for (uint64_t words; r && (words = r->dirty_words.exchange(0, std::memory_order_seq_cst)) != 0;)
            for (; words; words &= words - 1) {
                const auto word = static_cast<uint32_t>(std::countr_zero(words));
                uint64_t bits = r->dirty[word].exchange(0, std::memory_order_seq_cst);
                for (; bits; bits &= bits - 1) {
                    Sent s;
                    do
                        s = send_slot(p, b, *r, word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
                    while (s == Sent::more);
                    if (s == Sent::all)
                        continue;
                    // All that is left waits for credit; progress() comes back to it.
                    r->dirty[word].fetch_or(bits, std::memory_order_seq_cst);
                    r->dirty_words.fetch_or(words, std::memory_order_seq_cst);
                    p.next_link = (p.next_link + k) % n;
                    ++p.counts.waits;
                    flush(p, b);
                    send_credit(p, b);
                    return flush(p, b);
                }
            }
    }
    send_credit(p, b);
    flush(p, b);
}

} // namespace

void serve(Peer &p) noexcept {
    p.wanted.store(true, std::memory_order_seq_cst);
    while (p.wanted.load(std::memory_order_seq_cst) && p.sending.get()) {
        p.wanted.store(false, std::memory_order_seq_cst);
        if (p.state.load(std::memory_order_acquire) == PeerState::open)
            send_all(p);
        p.sending.let_go();
    }
}

namespace {

/// Has the other side been told of all but credit and records? Any thread: what is told just now may count.
bool is_told(const Remote &r, uint32_t slot) noexcept {
    const SlotSide &mine = r.view.slot(slot).side[r.side];
    const auto is = [](const auto &told, const auto &word) {
        using T = std::remove_cvref_t<decltype(told)>;
        return std::atomic_ref(const_cast<T &>(told)).load(std::memory_order_relaxed) ==
               word.load(std::memory_order_relaxed);
    };
    const Words &w = r.slot[slot].words;
    return is(w.flags, mine.control.flags) && is(w.oob, mine.control.oob) && is(w.shown, mine.credit.shown) &&
           is(w.offer, mine.credit.path.offer) && is(w.from, mine.credit.path.from) &&
           is(w.taken, mine.credit.path.taken);
}

} // namespace

bool publish(Remote *r, uint32_t slot, bool credit_alone) {
    if (credit_alone && is_told(*r, slot)) {
        // What is told here is read without a lock, and may be old: then it is told once more, or when
        // nothing else is to do.
        const SlotState &s = r->slot[slot];
        const uint64_t consumed =
            r->view.slot(slot).side[r->side].credit.consumed.load(std::memory_order_relaxed);
        const uint32_t cls = std::atomic_ref(const_cast<uint32_t &>(s.in.cls)).load(std::memory_order_relaxed);
        const uint64_t told =
            std::atomic_ref(const_cast<uint64_t &>(s.consumed)).load(std::memory_order_relaxed);
        if (consumed - told < may_owe(cls < kRingClasses ? cls : 0)) {
            if (!has_slot(r->owing, slot))
                add_slot(r->owing_words, r->owing, slot);
            return true;
        }
    }
    add_slot(r->dirty_words, r->dirty, slot);
    serve(*r->peer);
    if (has_slot(r->dirty, slot)) [[unlikely]]
        progress(r->peer->host); // what it waits for may have come
    return !has_slot(r->dirty, slot);
}

void tell_owed(Peer &p) noexcept {
    bool any = false;
    for (Remote *r : p.links)
        for (uint64_t words = r && r->owing_words.load(std::memory_order_relaxed)
                                  ? r->owing_words.exchange(0, std::memory_order_seq_cst)
                                  : 0;
             words; words &= words - 1) {
            const auto word = static_cast<uint32_t>(std::countr_zero(words));
            if (const uint64_t slots = r->owing[word].exchange(0, std::memory_order_seq_cst)) {
                r->dirty[word].fetch_or(slots, std::memory_order_seq_cst);
                r->dirty_words.fetch_or(uint64_t{1} << word, std::memory_order_seq_cst);
                any = true;
            }
        }
    if (any)
        serve(p);
}

bool may_send(Remote *r, uint32_t slot) {
    // A record, and what one call gathers before it publishes
    constexpr uint32_t kEnough = sizeof(Message) + sizeof(Words) + kMostAtOnce + (16u << 10);
    Peer &p = *r->peer;
    const auto enough = [&] {
        const uint64_t room = room_in_mailbox(p), sent = p.sent.load(std::memory_order_relaxed);
        const uint64_t to_end = p.theirs.mailbox_bytes - (sent & (p.theirs.mailbox_bytes - 1));
        const uint64_t most = room > to_end && room - to_end > to_end ? room - to_end
                              : room < to_end                         ? room
                                                                      : to_end;
        return p.state.load(std::memory_order_acquire) == PeerState::open && most >= kEnough &&
               credit(p) > 4 && under_way(p) < kSendDepth - 3 && !has_slot(r->dirty, slot);
    };
    if (enough()) [[likely]]
        return true;
    progress(p.host);
    if (enough())
        return true;
    // First the mark, then another look: who makes room after that sees the mark.
    add_slot(r->waiting_words, r->waiting, slot);
    p.starved.store(true, std::memory_order_seq_cst);
    return enough();
}

void recycle_out(Remote &r, uint32_t slot, uint32_t use) noexcept {
    SlotState &s = r.slot[slot];
    if (s.use == use)
        return;
    s.out = {};
    std::atomic_ref(s.consumed).store(0, std::memory_order_relaxed);
    remember(s.words, {});
    s.corked = {};
    s.use = use;
}

bool post_receives(Peer &p, uint32_t n) noexcept {
    ibv_recv_wr request[kBatch], *bad;
    while (n > 0) {
        const uint32_t now = n < kBatch ? n : kBatch;
        for (uint32_t i = 0; i < now; ++i) {
            request[i] = {};
            request[i].wr_id = work_id(&p, kReceive);
            request[i].next = i + 1 < now ? &request[i + 1] : nullptr;
        }
        if (ibv_post_recv(p.pair, request, &bad) != 0)
            return false;
        p.receives.fetch_add(now, std::memory_order_release);
        n -= now;
    }
    return true;
}

} // namespace sd::rdma
