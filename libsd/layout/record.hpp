// The header word of a record, as it stands in a ring (queue/ring.hpp says how rings work).
//
//   63..32  low bits of the record's own position, with a salt: a check
//   31..28  kind
//   27..17  when it was sent, in the order of its thread's sends
//   16..0   length of the payload
#pragma once
#include <atomic>
#include <cstdint>

namespace sd::ring {

enum class RecordKind : uint32_t {
    data = 1,
    change = 2, ///< the ring goes on in another class, which stands in place of a length
    urgent = 3, ///< one byte of payload
    pad = 4,    ///< nothing: what follows begins where its sender wants it
    path = 5,   ///< has a meaning for none yet, and ends the connection: a change of path
    /// Bytes of the stream that lie in a pool of the sender (layout/pool_layout.hpp). The header has their
    /// number; the payload is a HandleRecord
    handle = 6,
};

/// Where the bytes of a handle are.
struct HandleRecord {
    uint64_t pool;  ///< the monitor's name for it
    uint64_t place; ///< offset in the pool | number of the buffer << kHandleOffsetBits
};
constexpr unsigned kHandleOffsetBits = 48;
/// Bytes of the stream that one record hands over at most, a multiple of the page.
constexpr uint32_t kMaxHandle = 60u << 10;

/// The word at a place of a ring, where records begin: a multiple of 8.
inline std::atomic<uint64_t> &word(uint8_t *ring, uint64_t offset) noexcept {
    return *reinterpret_cast<std::atomic<uint64_t> *>(ring + offset);
}

constexpr uint32_t kMaxRecord = 64u << 10;
constexpr uint32_t kCheckSalt = 0x5dc0ffee;

/// Low bits of a count of the sending thread's records: two connections that one thread wrote to can be told
/// apart by who was first.
constexpr uint32_t kOrderShift = 17, kOrderMask = (1u << 11) - 1;
static_assert(kMaxRecord < 1u << kOrderShift);

constexpr uint64_t make_header(RecordKind k, uint32_t len, uint64_t pos) { // `len` may have an order above it
    return uint64_t{(static_cast<uint32_t>(pos >> 3)) ^ kCheckSalt} << 32 | static_cast<uint32_t>(k) << 28 | len;
}
constexpr uint32_t header_length(uint64_t h) { return h & ((1u << kOrderShift) - 1); }
constexpr uint32_t header_order(uint64_t h) { return static_cast<uint32_t>(h) >> kOrderShift & kOrderMask; }
/// Was `a` sent before `b`? Of one thread's records, as long as not too many lie between them.
constexpr bool earlier(uint32_t a, uint32_t b) { return a != b && ((b - a) & kOrderMask) <= kOrderMask / 2; }
constexpr RecordKind header_kind(uint64_t h) { return static_cast<RecordKind>((h >> 28) & 0xf); }
constexpr bool header_valid(uint64_t h, uint64_t pos) {
    return static_cast<uint32_t>(h >> 32) == (static_cast<uint32_t>(pos >> 3) ^ kCheckSalt);
}
constexpr uint64_t pad8(uint64_t n) { return (n + 7) & ~uint64_t{7}; }

} // namespace sd::ring
