// Corked data: what TCP_CORK and MSG_MORE hold back in the ring.
//
// Records are written as ever, but the header of the first one that is held back is not stored in the ring:
// the receiver, who takes headers in order, finds the ring empty there, whatever has been written behind it.
// So recv, poll, epoll, FIONREAD and MSG_PEEK know nothing of it. The header waits in Corked, a part of the
// sender's words that the receiver looks at anyway when it finds nothing. To uncork what is held back is to
// store that header where it belongs, and then to say so: the sender clears the word, the receiver, who
// writes none of the sender's words, keeps a copy of it in its own (Credit::shown).
//
// Both ends may do that. The sender does it when it may (with its token). There is no thread of libsd that
// could do it when the program does not come back in time, so a receiver that waits does it then (with its
// own token): the sender rings for one that sleeps when it begins to hold back. No arbitration is needed,
// since both store the same word (but for its order) at the same place:
//   - the receiver stores only while it has the token and the word's position is the end of what it can see,
//     so nobody reads on meanwhile, and the sender, who has no credit for it, does not use the place again;
//   - a sender that is late stores at a position which it alone would write to next, and which the receiver
//     has behind it.
//
// Killed anywhere: before the header is in Corked nothing of the record was sent; after that it was
// (recover_tx). Between the two steps of uncorking, the word names a position that has been shown, which both
// recognise.
#pragma once
#include "libsd/queue/ring.hpp"

namespace sd::ring {

/// What the kernel on a loopback interface sends at once however it is told to wait: a whole segment, which
/// is half of the first window.
constexpr uint32_t kSegment = 32741;

/// Where the header belongs, as only the sender needs to know, and what was held back.
struct CorkPlace {
    uint32_t payload; ///< bytes held back; fits in 17 bits
    uint32_t offset;  ///< in its ring, a multiple of 8
    uint32_t cls;
    /// Up to where the sender had received, if everything had been: data that the peer sends after that ends
    /// what MSG_MORE alone holds back, and so does the end of it, since the kernel looks at its queue then.
    /// Low bits only; 0: held back whatever comes.
    uint32_t answered;
};
constexpr uint32_t kAnsweredBits = 24;
constexpr uint32_t answered_mark(uint64_t position) {
    return static_cast<uint32_t>(position >> 3 & ((1u << (kAnsweredBits - 1)) - 1)) << 1 | 1;
}
constexpr uint64_t pack(const CorkPlace &w) {
    return uint64_t{w.answered} << 40 | uint64_t{w.cls} << 36 | uint64_t{w.offset >> 3} << 17 | w.payload;
}
/// Of a word that the peer may have written: every field is one that can be used.
constexpr CorkPlace unpack(uint64_t word) {
    const uint32_t cls = static_cast<uint32_t>(word >> 36) & 15;
    const uint32_t safe = cls < kRingClasses ? cls : 0;
    return {static_cast<uint32_t>(word) & ((1u << 17) - 1),
            static_cast<uint32_t>(word >> 17) << 3 & (kRingSize[safe] - 1), safe,
            static_cast<uint32_t>(word >> 40)};
}
static_assert(kSegment + kMaxRecord < 1u << 17 && kRingSize[kRingClasses - 1] >> 3 <= 1u << 19);

/// Is something held back that the receiver, who says what it has shown, has not shown either?
inline bool is_corked(const Corked &b, const SlotSide::Credit &receiver) noexcept {
    const uint64_t h = b.header.load(std::memory_order_relaxed);
    return h != 0 && h != receiver.shown.load(std::memory_order_acquire);
}
inline CorkPlace cork_place(const Corked &b) noexcept {
    return unpack(b.where.load(std::memory_order_relaxed));
}

/// Publishes a record whose payload is in place, to be held back with all that follows it. With the send
/// token, while nothing is held back.
inline void cork(TxState &s, const Place &p, Corked &b, const SlotSide::Credit &receiver, uint32_t n,
                 int64_t now, uint32_t answered) noexcept {
    SD_ASSERT(n != 0 && n <= kMaxRecord && 8 + pad8(n) <= room(s) && s.changing == 0);
    const uint32_t mask = kRingSize[s.cls] - 1;
    const uint64_t next = s.tail + 8 + pad8(n);
    word(p.at(s.cls), (next - s.base) & mask).store(0, std::memory_order_relaxed);
    b.where.store(pack({n, static_cast<uint32_t>(s.tail - s.base) & mask, s.cls, answered}),
                  std::memory_order_relaxed);
    b.since.store(static_cast<uint64_t>(now), std::memory_order_relaxed);
    const auto header = [&] {
        return make_header(RecordKind::data, n | (++send_count & kOrderMask) << kOrderShift, s.tail);
    };
    uint64_t h = header();
    if (h == receiver.shown.load(std::memory_order_relaxed)) [[unlikely]]
        h = header(); // positions repeat in the check: this one would be taken for one that was shown
    b.header.store(h, std::memory_order_release);
    in_order();
    s.tail = next;
    s.bytes += n;
}

/// Notes that `n` more bytes were written behind the first record. Returns how many are held back.
inline uint32_t cork_more(Corked &b, uint32_t n, bool whatever_comes) noexcept {
    CorkPlace w = cork_place(b);
    w.payload = w.payload + n < 1u << 17 ? w.payload + n : (1u << 17) - 1;
    if (whatever_comes)
        w.answered = 0;
    b.where.store(pack(w), std::memory_order_relaxed);
    return w.payload;
}

/// Position of the record with this header, of which the sender was at `tail` later.
constexpr uint64_t position_of(uint64_t header, uint64_t tail) {
    const uint32_t back = static_cast<uint32_t>(tail >> 3) - (static_cast<uint32_t>(header >> 32) ^ kCheckSalt);
    return tail - (uint64_t{back} << 3);
}

/// For the sender, with its token: what was held back can be seen from now on. False: nothing was, or the
/// receiver has shown it.
inline bool uncork(const TxState &s, const Place &p, Corked &b, const SlotSide::Credit &receiver) noexcept {
    const uint64_t h = b.header.load(std::memory_order_acquire);
    if (h == 0)
        return false;
    if (h == receiver.shown.load(std::memory_order_acquire)) {
        b.header.store(0, std::memory_order_release);
        return false;
    }
    // Consumed: shown by somebody who did not get to say so. The place may be in a ring that was left since.
    if (receiver.consumed.load(std::memory_order_acquire) <= position_of(h, s.tail)) {
        const CorkPlace w = cork_place(b);
        constexpr uint64_t kOrder = uint64_t{kOrderMask} << kOrderShift; // it is sent now
        uint8_t *ring = p.at(w.cls);
        if (!ring) [[unlikely]]
            return false; // no address space left: once there is some
        word(ring, w.offset)
            .store((h & ~kOrder) | (uint64_t{++send_count & kOrderMask} << kOrderShift),
                   std::memory_order_release);
    }
    b.header.store(0, std::memory_order_release);
    return true;
}

/// The same for the receiver, with its token; `own` is where it says so.
inline void uncork_late(const RxState &state, Place p, const Corked &b, SlotSide::Credit &own) noexcept {
    const uint64_t h = b.header.load(std::memory_order_acquire);
    if (h == 0 || h == own.shown.load(std::memory_order_relaxed))
        return;
    RxState s = state;
    std::atomic<uint64_t> scratch{0};
    const uint64_t start = s.head;
    for (;;) {
        Record rec{};
        const int r = next_record(s, p, scratch, &rec);
        if (r == 0 && header_valid(h, s.head))
            next_header(s, p).store(h, std::memory_order_release);
        if (r == -ENOMEM)
            return; // once there is address space for it
        // A hostile peer could chain rings in a circle, see available().
        if (r <= 0 || s.head - start > 2 * uint64_t{kRingSize[kRingClasses - 1]})
            break;
        if (r == kUrgentNext)
            rec = urgent_record();
        (void)skip(s, rec, rec.length); // all of it
    }
    own.shown.store(h, std::memory_order_release);
}

/// all_taken() of what the receiver has been shown.
inline bool all_uncorked_taken(const TxState &s, const Corked &b, const SlotSide::Credit &receiver) noexcept {
    const uint64_t consumed = receiver.consumed.load(std::memory_order_acquire);
    const uint64_t h = is_corked(b, receiver) ? b.header.load(std::memory_order_acquire) : 0;
    const uint64_t position = h ? position_of(h, s.tail) : 0;
    if (h == 0 || position > s.tail)
        return all_taken(s, consumed);
    // The first record of its ring: a change of ring, which is not data, may stand before it.
    return consumed >= (cork_place(b).offset == 0 && position >= 8 ? position - 8 : position);
}

} // namespace sd::ring
