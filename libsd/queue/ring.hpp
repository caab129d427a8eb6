// The byte ring of one direction: records written back to back, found by their header word.
//
// Layout of a record: 8-byte header, payload, padding to 8. The header holds the payload length, the kind,
// and the low bits of its own position as a check, and when it was sent in the order of its thread's sends
// (epoll reports in that order). A header word of 0 means "nothing here yet": the sender zeroes the word
// after a record before it publishes the record itself, with a release store.
//
//   sender:    zero next header; payload; header (release)
//   receiver:  header (acquire); payload; `consumed` (release)
//
// Why this is safe with one sender and one receiver (the tokens see to that): the sender writes only
// positions p with p + 8 <= consumed + size, where `consumed` was read with acquire, so the receiver has
// finished with what lay there. The receiver reads payload only after it has seen the header, which was
// stored after the payload. Nothing else is shared.
//
// The peer is not trusted: the receiver checks each header once, in a register; the sender checks `consumed`
// against its own positions. Copies may then read rubbish that a hostile peer writes meanwhile, but never
// leave the ring.
//
// Either side can be killed anywhere: recover_tx() and recover_rx() below say what the next owner of the
// token does about it.
//
// A sender that wants another ring size leaves a switch record; the new ring starts with the next position.
// Room for it is kept because the zeroed header word after the last record always exists.
#pragma once
#include "libsd/control/assert.hpp"
#include "libsd/cpu/copy.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/record.hpp"
#include "libsd/layout/state.hpp"
#include "libsd/transport/arena.hpp"
#include <cerrno>
#include <sys/uio.h>

namespace sd::ring {

inline constinit thread_local uint32_t send_count = 0;
/// For what is no record: takes its place behind what this thread sent before. Never 0.
inline uint32_t order_now() noexcept { return (++send_count & kOrderMask) | (kOrderMask + 1); }

/// Where the rings of one direction are in this process. The larger one that is in use is remembered by who
/// has the token (settle()); others look it up, and remember nothing, because the Place may be another
/// connection's by then.
struct Place {
    uint8_t *inline_ring;            ///< class 0
    mutable uint64_t remembered = 0; ///< address of a larger ring | its class

    /// The ring, if it is remembered; or nullptr.
    uint8_t *known(uint32_t cls) const noexcept {
        if (cls == 0)
            return inline_ring;
        const uint64_t r = __atomic_load_n(&remembered, __ATOMIC_RELAXED);
        return (r & 7) == cls ? reinterpret_cast<uint8_t *>(r - cls) : nullptr;
    }
    /// The ring; nullptr when this process has no address space for it, or there is none.
    uint8_t *at(uint32_t cls) const noexcept {
        uint8_t *ring = known(cls);
        return ring ? ring : larger_ring(inline_ring, cls, nullptr);
    }
    /// With the token: remembers the ring. 0; -ENOMEM: as above; -EPROTO: there is none.
    [[nodiscard]] long settle(uint32_t cls) const noexcept {
        if (known(cls)) [[likely]]
            return 0;
        long error = 0;
        const uint8_t *ring = larger_ring(inline_ring, cls, &error);
        if (ring)
            __atomic_store_n(&remembered, reinterpret_cast<uint64_t>(ring) | cls, __ATOMIC_RELAXED);
        return error;
    }
};
static_assert(kRingClasses <= 8 && sizeof(Place) == 16);

/// Stands for the word of a ring that cannot be reached: whoever looks finds that there is something, and who
/// then reads learns why he cannot.
inline constinit std::atomic<uint64_t> unreachable_word{~uint64_t{0}};
/// For a look that may be without the token.
inline std::atomic<uint64_t> &word_at(const Place &p, uint32_t cls, uint64_t offset) noexcept {
    uint8_t *ring = p.at(cls);
    return ring ? word(ring, offset) : unreachable_word;
}

/// It is what a process that takes over from a killed one relies on.
using cpu::in_order;

/// Whether what another process has written about a direction can be worked with: no position leads out of a
/// ring of a class that exists.
[[nodiscard]] inline bool sound(const TxState &s) noexcept {
    return s.cls < kRingClasses && s.changing <= kRingClasses && ((s.tail | s.base) & 7) == 0;
}

/// Takes the peer's `consumed`; false when it is not a value an honest peer could have written.
[[nodiscard]] inline bool refresh_credit(TxState &s, const std::atomic<uint64_t> &consumed) noexcept {
    uint64_t c = consumed.load(std::memory_order_acquire);
    if (c < s.credit || c > s.tail)
        return false;
    s.credit = c;
    return true;
}

/// For who has just published a record that began at `before`: looks at the peer's `consumed` each time half
/// of the ring has been filled, while nothing waits for the answer. In a conversation the peer has then taken
/// all but the last message, so that the next sends need not fetch that line between two messages, where it
/// would cost both ends a round trip's time.
inline void look_ahead(TxState &s, uint64_t before, const std::atomic<uint64_t> &consumed) noexcept {
    if (((s.tail ^ before) & kRingSize[s.cls] / 2) != 0 && s.stalls == 0) [[unlikely]]
        (void)refresh_credit(s, consumed); // what is not honest is left to whoever needs the room
}

/// Ring bytes that could be filled now, as far as the sender knows; the word for the next header is already
/// set apart.
inline uint64_t room(const TxState &s) noexcept {
    uint64_t from = s.credit > s.base ? s.credit : s.base;
    return kRingSize[s.cls] - 8 - (s.tail - from);
}

/// Shows a record whose payload is in place, and only then counts it: a sender killed in between leaves a
/// header at `tail`, which recover_tx() steps over.
inline void publish(TxState &s, uint8_t *ring, uint32_t mask, RecordKind kind, uint32_t n) noexcept {
    SD_ASSERT(s.changing == 0 && s.base <= s.tail && s.credit <= s.tail);
    SD_ASSERT(n != 0 && n <= kMaxRecord && 8 + pad8(n) <= room(s));
    const uint64_t next = s.tail + 8 + pad8(n);
    word(ring, (next - s.base) & mask).store(0, std::memory_order_relaxed);
    word(ring, (s.tail - s.base) & mask)
        .store(make_header(kind, n | (++send_count & kOrderMask) << kOrderShift, s.tail),
               std::memory_order_release);
    in_order();
    s.tail = next;
    s.bytes += n;
}

/// Copies a payload to offset `at` of a ring. 0, or -EFAULT when the source cannot be read.
[[nodiscard]] inline long fill(uint8_t *ring, uint32_t size, uint32_t at, const void *from, uint32_t n) noexcept {
    uint32_t first = size - at;
    if (n <= first) [[likely]] {
        if (sd_copy(ring + at, from, n))
            return -EFAULT;
    } else if (sd_copy(ring + at, from, first) ||
               sd_copy(ring, static_cast<const uint8_t *>(from) + first, n - first)) {
        return -EFAULT;
    }
    return 0;
}

/// Publishes one record of at most kMaxRecord bytes; the caller made sure that room() >= 8 + pad8(n).
/// 0, or -EFAULT when the source cannot be read: nothing is published then.
[[nodiscard]] inline long put(TxState &s, const Place &p, const void *from, uint32_t n) noexcept {
    const uint32_t size = kRingSize[s.cls], mask = size - 1;
    uint8_t *ring = p.at(s.cls);
    if (fill(ring, size, ((s.tail - s.base) + 8) & mask, from, n) < 0)
        return -EFAULT;
    publish(s, ring, mask, RecordKind::data, n);
    return 0;
}

/// The first half of that: nothing can be seen until commit() or the like.
[[nodiscard]] inline long copy_in(const TxState &s, const Place &p, const void *from, uint32_t n) noexcept {
    const uint32_t size = kRingSize[s.cls];
    return fill(p.at(s.cls), size, ((s.tail - s.base) + 8) & (size - 1), from, n);
}

/// Publishes a single urgent byte. The caller made sure that room() >= 16.
inline void put_urgent(TxState &s, const Place &p, unsigned char byte) noexcept {
    const uint32_t mask = kRingSize[s.cls] - 1;
    uint8_t *ring = p.at(s.cls);
    ring[((s.tail - s.base) + 8) & mask] = byte;
    publish(s, ring, mask, RecordKind::urgent, 1);
}

constexpr uint32_t kHandleFootprint = 8 + sizeof(HandleRecord);

/// Publishes a handle of `n` bytes, at most kMaxHandle. The caller made sure that room() >= kHandleFootprint.
/// As publish(): the header is last, and a sender killed before it has handed over nothing.
inline void put_handle(TxState &s, const Place &p, const HandleRecord &where, uint32_t n) noexcept {
    SD_ASSERT(s.changing == 0 && s.base <= s.tail && s.credit <= s.tail);
    SD_ASSERT(n != 0 && n <= kMaxHandle && kHandleFootprint <= room(s));
    const uint32_t mask = kRingSize[s.cls] - 1;
    uint8_t *ring = p.at(s.cls);
    const uint64_t at = s.tail - s.base;
    word(ring, (at + kHandleFootprint) & mask).store(0, std::memory_order_relaxed);
    word(ring, (at + 8) & mask).store(where.pool, std::memory_order_relaxed);
    word(ring, (at + 16) & mask).store(where.place, std::memory_order_relaxed);
    word(ring, at & mask)
        .store(make_header(RecordKind::handle, n | (++send_count & kOrderMask) << kOrderShift, s.tail),
               std::memory_order_release);
    in_order();
    s.tail += kHandleFootprint;
    s.bytes += n;
}

/// Where the payload of the next record will lie; two pieces where the ring wraps.
struct Space {
    iovec piece[2];
    int count;
};

/// Room for a payload of up to `n` bytes that something else than sd_copy fills in, such as a read from a
/// file. The caller made sure that room() >= 8 + pad8(n). Nothing can be seen until commit(), which may be
/// left out.
inline Space reserve(const TxState &s, const Place &p, uint32_t n) noexcept {
    const uint32_t size = kRingSize[s.cls], mask = size - 1;
    uint8_t *ring = p.at(s.cls);
    const uint32_t at = ((s.tail - s.base) + 8) & mask, first = size - at;
    if (n <= first)
        return {{{ring + at, n}, {nullptr, 0}}, 1};
    return {{{ring + at, first}, {ring, n - first}}, 2};
}

/// Publishes a record of the first `n` (at least 1) reserved bytes.
inline void commit(TxState &s, const Place &p, uint32_t n) noexcept {
    publish(s, p.at(s.cls), kRingSize[s.cls] - 1, RecordKind::data, n);
}

// A change of ring: `position` is the sender's `tail` or the receiver's `head`, and stands at the change
// record. The stores are in an order that tells the next owner of the token how many were done: `base` is in
// front of `position` from the first of them to the last.
template <class State> inline void begin_change(State &s, uint32_t cls) noexcept {
    s.changing = static_cast<uint16_t>(cls + 1);
    in_order();
}
template <class State> inline void finish_change(State &s, uint64_t &position, uint32_t cls) noexcept {
    s.base = position + 8;
    in_order();
    s.cls = static_cast<decltype(s.cls)>(cls);
    in_order();
    position = s.base;
    in_order();
    s.changing = 0;
}
/// Of one that may have been killed in it.
template <class State> inline void recover_change(State &s, uint64_t &position) noexcept {
    const uint32_t c = s.changing;
    if (c == 0)
        return;
    if (s.base > position) {
        s.cls = static_cast<decltype(s.cls)>(c - 1 < kRingClasses ? c - 1 : s.cls);
        in_order();
        position = s.base;
        in_order();
    }
    s.changing = 0;
}

/// A ring that went back to the smallest class has left a change record in a larger ring. The receiver may
/// stand there still, and that ring must not be written before it has passed the record.
inline bool may_grow(const TxState &s) noexcept { return s.cls != 0 || s.credit >= s.base; }

/// Moves to ring class `cls`, in which nothing unread lies: it is larger than any in use, or everything was
/// consumed. False: there is no such ring. The present ring is looked up before the other is remembered in
/// its place: the table where it could be looked up again is the peer's to spoil.
[[nodiscard]] inline bool change_class(TxState &s, const Place &p, uint32_t cls) noexcept {
    SD_ASSERT(cls < kRingClasses && cls != s.cls && s.changing == 0 && s.base <= s.tail);
    SD_ASSERT(cls > s.cls ? may_grow(s) : s.credit == s.tail);
    uint8_t *const left = p.at(s.cls);
    if (!left || p.settle(cls) < 0) [[unlikely]]
        return false;
    uint32_t off = (s.tail - s.base) & (kRingSize[s.cls] - 1);
    begin_change(s, cls);
    word(p.known(cls), 0).store(0, std::memory_order_relaxed);
    word(left, off) // in the order it has the place of the record that follows
        .store(make_header(RecordKind::change, cls | ((send_count + 1) & kOrderMask) << kOrderShift, s.tail),
               std::memory_order_release);
    in_order();
    finish_change(s, s.tail, cls);
    return true;
}

/// Has the receiver, who says that it got up to `consumed`, taken everything that was sent? A change of ring
/// that nothing has followed is not data. A hint without the token.
[[nodiscard]] inline bool all_taken(const TxState &s, uint64_t consumed) noexcept {
    const uint64_t tail = s.tail, base = s.base;
    return consumed >= (base != 0 && tail == base ? tail - 8 : tail);
}

/// For the thread that takes the token of a sender that may have been killed anywhere in put(), put_urgent(),
/// commit() or change_class().
///
/// Killed before its header was stored: nothing of the record can be seen; `tail` and the zeroed word there
/// are as they were. Killed after that: the header stands at `tail`, and is stepped over, since the receiver
/// has seen it or will. In change_class() the step is three stores, and `base` > `tail` tells that the first
/// of them was done; `changing` then says the rest. A killed sender had at most one record under way. The
/// ring can be rewritten by the peer, so the header is believed only as far as a record could be that long: a
/// lie shifts what the liar receives, nothing else. Doing all this again, or when there is nothing to do,
/// changes nothing. The header of the first record that is held back is in `back` instead (cork.hpp), until
/// it is shown.
inline void recover_tx(TxState &s, const Place &p, const Corked &back) noexcept {
    if (s.cls >= kRingClasses) [[unlikely]]
        s.cls = 0; // never written by a sender: whatever comes of it stays in the slot
    if (((s.tail | s.base) & 7) != 0) [[unlikely]] {
        s.tail &= ~uint64_t{7}; // nor that: a header would end outside of the ring
        s.base &= ~uint64_t{7};
    }
    recover_change(s, s.tail);
    // In this order: who shows what is held back stores to the ring before it clears the other.
    const uint64_t corked = back.header.load(std::memory_order_acquire);
    uint64_t h = word_at(p, s.cls, (s.tail - s.base) & (kRingSize[s.cls] - 1)).load(std::memory_order_acquire);
    if (h == 0 && header_kind(corked) == RecordKind::data)
        h = corked;
    if (h == 0 || !header_valid(h, s.tail))
        return;
    const uint32_t n = header_length(h);
    if (header_kind(h) == RecordKind::change) {
        if (n >= kRingClasses || n == s.cls)
            return;
        begin_change(s, n);
        finish_change(s, s.tail, n);
    } else if (header_kind(h) == RecordKind::handle) {
        if (n != 0 && n <= kMaxHandle && kHandleFootprint <= room(s)) {
            s.tail += kHandleFootprint;
            s.bytes += n;
        }
    } else if (n != 0 && n <= kMaxRecord && 8 + pad8(n) <= room(s)) {
        s.tail += 8 + pad8(n);
        if (header_kind(h) != RecordKind::pad)
            s.bytes += n;
    }
}

inline std::atomic<uint64_t> &next_header(const RxState &s, const Place &p) noexcept {
    return word_at(p, s.cls, (s.head - s.base) & (kRingSize[s.cls] - 1));
}

/// The receiver's next header word, 0 when there is none. May be called without the token as a hint.
inline uint64_t peek_header(const RxState &s, const Place &p) noexcept {
    return next_header(s, p).load(std::memory_order_acquire);
}

/// Is there nothing between the receiver and a position but changes of ring, which are no data and which it
/// may not have followed yet? A hint without the token.
[[nodiscard]] inline bool leads_to(const RxState &s, const Place &p, uint64_t position) noexcept {
    constexpr unsigned kMostChanges = 16; // no honest sender leaves so many behind each other
    uint64_t at = *const_cast<const volatile uint64_t *>(&s.head), base = s.base;
    uint32_t cls = s.cls;
    for (unsigned n = 0; at < position && n < kMostChanges && cls < kRingClasses; ++n) {
        const uint64_t h = word_at(p, cls, (at - base) & (kRingSize[cls] - 1)).load(std::memory_order_acquire);
        if (h == 0 || header_kind(h) != RecordKind::change)
            return false;
        cls = header_length(h);
        at += 8;
        base = at;
    }
    return at == position;
}

/// For looks without the token: where the receiver, or the sender, is at this moment.
inline uint64_t head_now(const RxState &s) noexcept {
    return *const_cast<const volatile uint64_t *>(&s.head);
}
/// And how many bytes were read by then.
inline uint64_t bytes_now(const RxState &s) noexcept {
    return *const_cast<const volatile uint64_t *>(&s.bytes);
}
inline uint64_t tail_now(const TxState &s) noexcept {
    return *const_cast<const volatile uint64_t *>(&s.tail);
}
/// May what was read of `s` since its head was at `head` be of two moments? The receiver stores `changing`
/// first and last, and the head in between.
[[nodiscard]] inline bool moved(const RxState &s, uint64_t head) noexcept {
    in_order();
    if (*const_cast<const volatile uint16_t *>(&s.changing) != 0)
        return true;
    in_order();
    return head_now(s) != head;
}

// A record that is read in parts: RxState::part holds its length, how much was read, and bits of its
// position. So one store says that more was read, and the one store that moves `head` to the next record also
// ends the validity of `part`: there is no moment at which the two contradict each other. (`part` is cleared
// after that, long before the bits of the position come back.)
// The length of a handle, whose bytes lie elsewhere, stands there with kMaxRecord added.
constexpr uint64_t part_tag(uint64_t head) { return head >> 3 << 34; }
constexpr uint64_t part_word(uint64_t head, uint32_t length, uint32_t read) {
    return part_tag(head) | uint64_t{length} << 17 | read;
}
static_assert(kMaxRecord + kMaxHandle < 1u << 17);

/// A record that is being read, for as long as the token is held.
struct Record {
    uint32_t length;
    uint32_t read;          ///< less than length
    bool elsewhere = false; ///< a handle: its bytes are not in the ring
    /// What it takes in the ring.
    constexpr uint32_t footprint() const {
        return 8 +
               (elsewhere ? static_cast<uint32_t>(sizeof(HandleRecord)) : static_cast<uint32_t>(pad8(length)));
    }
    constexpr uint64_t part(uint64_t head, uint32_t now_read) const {
        return part_word(head, length + (elsewhere ? kMaxRecord : 0), now_read);
    }
};

/// Is the record at `head` partly read?
[[nodiscard]] inline bool inside(const RxState &s) noexcept {
    return s.part != 0 && (s.part >> 34 << 34) == part_tag(s.head);
}
constexpr Record part_in(uint64_t part) {
    constexpr uint32_t kMask = (1u << 17) - 1;
    const uint32_t length = static_cast<uint32_t>(part >> 17) & kMask, read = static_cast<uint32_t>(part) & kMask;
    return length > kMaxRecord ? Record{length - kMaxRecord, read, true} : Record{length, read};
}
inline Record part_of(const RxState &s) noexcept { return part_in(s.part); }
/// As sound() of a TxState. A part is one word, so that what is read of it is of one moment.
[[nodiscard]] inline bool sound(const RxState &s) noexcept {
    const uint64_t part = *const_cast<const volatile uint64_t *>(&s.part);
    const Record r = part_in(part);
    return s.cls < kRingClasses && s.changing <= kRingClasses && ((s.head | s.base) & 7) == 0 &&
           (part == 0 || (r.read < r.length && r.length <= kMaxRecord));
}
/// Up to where everything was read: what the sender is told.
inline uint64_t read_up_to(const RxState &s) noexcept {
    if (s.part == 0 || !inside(s)) [[likely]]
        return s.head;
    const Record r = part_of(s);
    return r.elsewhere ? s.head : s.head + 8 + r.read;
}

constexpr int kUrgentNext = 2;
constexpr int kHandleNext = 3;

/// `next`, once this process has the ring that `s` is in; or an error of next_record(). What was remembered
/// may be the ring that a peek went on to, and the peer may have taken this one out of its table since.
[[nodiscard, gnu::cold]] inline int if_reachable(const RxState &s, const Place &p, int next) noexcept {
    const long error = p.settle(s.cls);
    return error == 0 ? next : error == -ENOMEM ? -ENOMEM : -EPROTO;
}

/// 1: `*r` is a record with something to read; 0: the ring is empty; -EPROTO: the peer wrote rubbish;
/// -ENOMEM: it goes on in a ring for which this process has no address space;
/// kUrgentNext: `head` is at an urgent record, which the caller reads with urgent_record() or leaves out with
/// skip_urgent(). kHandleNext: as 1, but the bytes are where handle_at() says.
[[nodiscard]] inline int next_record(RxState &s, const Place &p, std::atomic<uint64_t> &consumed,
                                     Record *r) noexcept {
    if (s.part != 0) [[unlikely]] {
        if (inside(s)) {
            *r = part_of(s);
            return if_reachable(s, p, r->elsewhere ? kHandleNext : 1);
        }
        s.part = 0; // its reader was killed just before it did this
    }
    for (;;) {
        uint64_t h = peek_header(s, p);
        if (h == 0)
            return 0;
        if (!header_valid(h, s.head)) [[unlikely]]
            return -EPROTO;
        uint32_t n = header_length(h);
        if (header_kind(h) == RecordKind::data) [[likely]] {
            if (n == 0 || n > kMaxRecord || 8 + pad8(n) + 8 > kRingSize[s.cls]) [[unlikely]]
                return -EPROTO;
            *r = {n, 0};
            return 1;
        }
        if (header_kind(h) == RecordKind::urgent && n == 1)
            return kUrgentNext;
        if (header_kind(h) == RecordKind::pad && n <= kMaxRecord && 8 + pad8(n) + 8 <= kRingSize[s.cls]) {
            s.head += 8 + pad8(n); // the sender hears of it with what follows
            continue;
        }
        if (header_kind(h) == RecordKind::handle && n != 0 && n <= kMaxHandle) {
            *r = {n, 0, true};
            return if_reachable(s, p, kHandleNext);
        }
        if (header_kind(h) != RecordKind::change || n >= kRingClasses || n == s.cls)
            return -EPROTO;
        if (const long error = p.settle(n); error < 0) [[unlikely]]
            return error == -ENOMEM ? -ENOMEM : -EPROTO;
        begin_change(s, n);
        finish_change(s, s.head, n);
        consumed.store(s.head, std::memory_order_release);
    }
}

/// Passes over up to n bytes of the record. Bytes passed. This is the moment at which they count as received.
[[nodiscard]] inline long skip(RxState &s, Record &r, uint64_t n) noexcept {
    SD_ASSERT(r.read < r.length && r.length <= kMaxRecord);
    const uint32_t left = r.length - r.read;
    const uint32_t m = n < left ? static_cast<uint32_t>(n) : left;
    in_order();
    if (m == left) [[likely]] {
        s.head += r.footprint();
        in_order();
        if (r.read != 0) [[unlikely]]
            s.part = 0;
    } else {
        s.part = r.part(s.head, r.read + m);
    }
    r.read += m;
    s.bytes += m;
    return m;
}

/// After kHandleNext: where the bytes of the record at `head` are, as the peer says, who may say it
/// differently the next time.
inline HandleRecord handle_at(const RxState &s, const Place &p) noexcept {
    const uint32_t mask = kRingSize[s.cls] - 1;
    uint8_t *ring = p.at(s.cls);
    const uint64_t at = s.head - s.base;
    return {word(ring, (at + 8) & mask).load(std::memory_order_relaxed),
            word(ring, (at + 16) & mask).load(std::memory_order_relaxed)};
}

constexpr Record urgent_record() { return {1, 0}; }
inline void skip_urgent(RxState &s) noexcept { s.head += 16; }

/// Copies up to n bytes of the record out and passes over them. Bytes taken, or -EFAULT (nothing taken).
[[nodiscard]] inline long take(RxState &s, const Place &p, Record &r, void *to, uint64_t n) noexcept {
    const uint32_t size = kRingSize[s.cls], mask = size - 1;
    const uint32_t left = r.length - r.read;
    const uint32_t m = n < left ? static_cast<uint32_t>(n) : left;
    uint8_t *ring = p.at(s.cls);
    uint32_t at = (s.head - s.base + 8 + r.read) & mask;
    uint32_t first = size - at;
    if (m <= first) [[likely]] {
        if (sd_copy(to, ring + at, m))
            return -EFAULT;
    } else if (sd_copy(to, ring + at, first) || sd_copy(static_cast<uint8_t *>(to) + first, ring, m - first)) {
        return -EFAULT;
    }
    return skip(s, r, m);
}

/// For the thread that takes the token of a receiver that may have been killed anywhere. What it had copied
/// to its memory and not counted yet is delivered again, to somebody who lives; what it had counted it had
/// received. Only its last notes can be missing: the end of a change of ring, and how far the sender may go.
/// As with recover_tx(), once too often does no harm.
inline void recover_rx(RxState &s, std::atomic<uint64_t> &consumed) noexcept {
    if (s.cls >= kRingClasses) [[unlikely]]
        s.cls = 0;
    if (((s.head | s.base) & 7) != 0) [[unlikely]] {
        s.head &= ~uint64_t{7};
        s.base &= ~uint64_t{7};
    }
    if (const Record r = part_of(s);
        s.part != 0 && (r.read >= r.length || r.length > kMaxRecord || 8 + r.footprint() > kRingSize[s.cls]))
        s.part = 0; // no receiver writes that: nothing longer than its ring is read
    recover_change(s, s.head);
    consumed.store(read_up_to(s), std::memory_order_release);
}

/// Payload bytes waiting, at most `limit` (counting stops there, and before the urgent record at `stop_at`).
/// As next_record() on errors. Needs the receive token, or is a hint.
[[nodiscard]] inline long available(const RxState &state, Place p, uint64_t limit,
                                    uint64_t stop_at = ~uint64_t{0}) noexcept {
    RxState s = state;
    std::atomic<uint64_t> scratch{0};
    uint64_t sum = 0, start = s.head;
    for (;;) {
        // A hostile peer could chain rings in a circle; an honest one has less than two of the largest rings
        // unread.
        if (sum >= limit || s.head - start > 2 * uint64_t{kRingSize[kRingClasses - 1]})
            return static_cast<long>(sum);
        Record rec{};
        int r = next_record(s, p, scratch, &rec);
        if (r < 0)
            return r;
        if (r == 0 || (r == kUrgentNext && s.head == stop_at))
            return static_cast<long>(sum);
        if (r == kUrgentNext)
            rec = urgent_record();
        sum += static_cast<uint64_t>(skip(s, rec, rec.length));
    }
}

} // namespace sd::ring
