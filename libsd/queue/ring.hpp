// The byte ring of one direction: records written back to back, found by their header word.
//
// Layout of a record: 8-byte header, payload, padding to 8. The header holds the payload length, the kind, and the low bits of its own position as a
// check. A header word of 0 means "nothing here yet": the sender zeroes the word after a record before it publishes the
// record itself, with a release store (a plain store on x86).
//
//   sender:   zero next header; payload; header (release)      receiver: header (acquire); payload; `consumed` (release)
//
// Why this is safe with one sender and one receiver (the tokens see to that): the sender writes only positions p with
// p + 8 <= consumed + size, where `consumed` was read with acquire, so the receiver has finished with what lay there. The
// receiver reads payload only after it has seen the header, which was stored after the payload. Nothing else is shared.
//
// The peer is not trusted: the receiver checks each header once, in a register; the sender checks `consumed`
// against its own positions. Copies may then read rubbish that a hostile peer writes meanwhile, but never leave the ring.
//
// A sender that wants another ring size leaves a switch record; the new ring starts with the next position.
// Room for it is kept because the zeroed header word after the last record always exists.
#pragma once
#include "libsd/queue/copy.hpp"
#include "libsd/queue/state.hpp"
#include "libsd/transport/link_layout.hpp"
#include <cerrno>
#include <sys/uio.h>

namespace sd::ring {

enum class Kind : uint32_t { data = 1, change = 2, urgent = 3 /* one byte of payload */ };

constexpr uint32_t kMaxRecord = 64u << 10;
constexpr uint32_t kCheckSalt = 0x5dc0ffee;

constexpr uint64_t make_header(Kind k, uint32_t len, uint64_t pos) {
    return uint64_t{(static_cast<uint32_t>(pos >> 3)) ^ kCheckSalt} << 32 | static_cast<uint32_t>(k) << 28 | len;
}
constexpr uint32_t header_length(uint64_t h) { return h & 0x0fffffff; }
constexpr Kind header_kind(uint64_t h) { return static_cast<Kind>((h >> 28) & 0xf); }
constexpr bool header_valid(uint64_t h, uint64_t pos) {
    return static_cast<uint32_t>(h >> 32) == (static_cast<uint32_t>(pos >> 3) ^ kCheckSalt);
}
constexpr uint64_t pad8(uint64_t n) { return (n + 7) & ~uint64_t{7}; }

/// Where the rings of one direction are in this process: class 0 is inline in the slot, the others in the region.
struct Place {
    uint8_t *inline_ring;
    uint8_t *region;
    uint8_t *at(uint32_t cls) const noexcept { return cls == 0 ? inline_ring : region + kRingSize[cls]; }
};

inline std::atomic<uint64_t> &word(uint8_t *ring, uint64_t offset) noexcept {
    return *reinterpret_cast<std::atomic<uint64_t> *>(ring + offset);
}

/// Takes the peer's `consumed`; false when it is not a value an honest peer could have written.
[[nodiscard]] inline bool refresh_credit(TxState &s, const std::atomic<uint64_t> &consumed) noexcept {
    uint64_t c = consumed.load(std::memory_order_acquire);
    if (c < s.credit || c > s.tail)
        return false;
    s.credit = c;
    return true;
}

/// Ring bytes that could be filled now, as far as the sender knows; the word for the next header is already set apart.
inline uint64_t room(const TxState &s) noexcept {
    uint64_t from = s.credit > s.base ? s.credit : s.base;
    return kRingSize[s.cls] - 8 - (s.tail - from);
}

/// Publishes one record of at most kMaxRecord bytes; the caller made sure that room() >= 8 + pad8(n).
/// 0, or -EFAULT when the source cannot be read: nothing is published then.
[[nodiscard]] inline long put(TxState &s, const Place &p, const void *from, uint32_t n) noexcept {
    const uint32_t size = kRingSize[s.cls], mask = size - 1;
    uint8_t *ring = p.at(s.cls);
    uint32_t off = (s.tail - s.base) & mask;
    uint32_t at = (off + 8) & mask;
    uint32_t first = size - at;
    if (n <= first) [[likely]] {
        if (sd_copy(ring + at, from, n))
            return -EFAULT;
    } else if (sd_copy(ring + at, from, first) ||
               sd_copy(ring, static_cast<const uint8_t *>(from) + first, n - first)) {
        return -EFAULT;
    }
    uint64_t next = s.tail + 8 + pad8(n);
    word(ring, (next - s.base) & mask).store(0, std::memory_order_relaxed);
    word(ring, off).store(make_header(Kind::data, n, s.tail), std::memory_order_release);
    s.tail = next;
    s.bytes += n;
    return 0;
}

/// Publishes a single urgent byte. The caller made sure that room() >= 16.
inline void put_urgent(TxState &s, const Place &p, unsigned char byte) noexcept {
    const uint32_t mask = kRingSize[s.cls] - 1;
    uint8_t *ring = p.at(s.cls);
    ring[((s.tail - s.base) + 8) & mask] = byte;
    const uint64_t next = s.tail + 16;
    word(ring, (next - s.base) & mask).store(0, std::memory_order_relaxed);
    word(ring, (s.tail - s.base) & mask).store(make_header(Kind::urgent, 1, s.tail), std::memory_order_release);
    s.tail = next;
    ++s.bytes;
}

/// Where the payload of the next record will lie; two pieces where the ring wraps.
struct Space {
    iovec piece[2];
    int count;
};

/// Room for a payload of up to `n` bytes that something else than sd_copy fills in, such as a read from a file. The caller made
/// sure that room() >= 8 + pad8(n). Nothing can be seen until commit(), which may be left out.
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
    const uint32_t mask = kRingSize[s.cls] - 1;
    uint8_t *ring = p.at(s.cls);
    const uint64_t next = s.tail + 8 + pad8(n);
    word(ring, (next - s.base) & mask).store(0, std::memory_order_relaxed);
    word(ring, (s.tail - s.base) & mask).store(make_header(Kind::data, n, s.tail), std::memory_order_release);
    s.tail = next;
    s.bytes += n;
}

/// Moves to ring class `cls`. The caller made sure nothing unread lies there: it is a class larger than any in use, or
/// everything was consumed.
inline void change_class(TxState &s, const Place &p, uint32_t cls) noexcept {
    uint8_t *old = p.at(s.cls);
    uint32_t off = (s.tail - s.base) & (kRingSize[s.cls] - 1);
    word(p.at(cls), 0).store(0, std::memory_order_relaxed);
    word(old, off).store(make_header(Kind::change, cls, s.tail), std::memory_order_release);
    s.tail += 8;
    s.base = s.tail;
    s.cls = cls;
}

/// The receiver's next header word, 0 when there is none. May be called without the token as a hint.
inline uint64_t peek_header(const RxState &s, const Place &p) noexcept {
    return word(p.at(s.cls), (s.head - s.base) & (kRingSize[s.cls] - 1)).load(std::memory_order_acquire);
}

constexpr int kUrgentNext = 2;

/// Makes `left` > 0 if any payload is there. 1: yes; 0: the ring is empty; -EPROTO: the peer wrote rubbish; kUrgentNext: `head` is at an
/// urgent record, which the caller takes in with accept_urgent() or leaves out with skip_urgent().
[[nodiscard]] inline int next_record(RxState &s, const Place &p, std::atomic<uint64_t> &consumed) noexcept {
    while (s.left == 0) {
        uint64_t h = peek_header(s, p);
        if (h == 0)
            return 0;
        if (!header_valid(h, s.head)) [[unlikely]]
            return -EPROTO;
        uint32_t n = header_length(h);
        if (header_kind(h) == Kind::data) [[likely]] {
            if (n == 0 || n > kMaxRecord || 8 + pad8(n) + 8 > kRingSize[s.cls]) [[unlikely]]
                return -EPROTO;
            s.head += 8;
            s.left = n;
            s.pad_after = static_cast<uint32_t>(pad8(n) - n);
            return 1;
        }
        if (header_kind(h) == Kind::urgent && n == 1)
            return kUrgentNext;
        if (header_kind(h) != Kind::change || n >= kRingClasses || n == s.cls)
            return -EPROTO;
        s.head += 8;
        s.base = s.head;
        s.cls = n;
        consumed.store(s.head, std::memory_order_release);
    }
    return 1;
}

/// Passes over up to n bytes of the present record (left > 0). Bytes passed.
inline long skip(RxState &s, uint64_t n) noexcept {
    uint32_t m = n < s.left ? static_cast<uint32_t>(n) : s.left;
    s.head += m;
    s.left -= m;
    s.bytes += m;
    if (s.left == 0)
        s.head += s.pad_after;
    return m;
}

inline void accept_urgent(RxState &s) noexcept {
    s.head += 8;
    s.left = 1;
    s.pad_after = 7;
}
inline void skip_urgent(RxState &s) noexcept { s.head += 16; }

/// Copies up to n bytes of the present record (left > 0) out and passes over them. Bytes taken, or -EFAULT (nothing taken).
[[nodiscard]] inline long take(RxState &s, const Place &p, void *to, uint64_t n) noexcept {
    const uint32_t size = kRingSize[s.cls], mask = size - 1;
    uint32_t m = n < s.left ? static_cast<uint32_t>(n) : s.left;
    uint8_t *ring = p.at(s.cls);
    uint32_t at = (s.head - s.base) & mask;
    uint32_t first = size - at;
    if (m <= first) [[likely]] {
        if (sd_copy(to, ring + at, m))
            return -EFAULT;
    } else if (sd_copy(to, ring + at, first) || sd_copy(static_cast<uint8_t *>(to) + first, ring, m - first)) {
        return -EFAULT;
    }
    return skip(s, m);
}

/// Payload bytes waiting, at most `limit` (counting stops there, and before the urgent record at `stop_at`). -EPROTO on rubbish. Needs the
/// receive token.
[[nodiscard]] inline long available(const RxState &state, const Place &p, uint64_t limit,
                                    uint64_t stop_at = ~uint64_t{0}) noexcept {
    RxState s = state;
    std::atomic<uint64_t> scratch{0};
    uint64_t sum = 0, start = s.head;
    for (;;) {
        sum += s.left;
        // A hostile peer could chain rings in a circle; an honest one has less than two of the largest rings unread.
        if (sum >= limit || s.head - start > 2 * uint64_t{kRingSize[kRingClasses - 1]})
            return static_cast<long>(sum);
        s.head += s.left + (s.left ? s.pad_after : 0);
        s.left = 0;
        int r = next_record(s, p, scratch);
        if (r < 0)
            return r;
        if (r == 0 || (r == kUrgentNext && s.head == stop_at))
            return static_cast<long>(sum);
        if (r == kUrgentNext)
            accept_urgent(s);
    }
}

} // namespace sd::ring
