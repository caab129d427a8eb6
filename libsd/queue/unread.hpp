// Looks at what lies unread in a ring, by its receiver or its sender, that take nothing.
#pragma once
#include "libsd/queue/ring.hpp"

namespace sd::ring {

/// A place in a direction: a record, and how much of it is before the place.
struct At {
    uint64_t position;
    uint32_t read;
    bool operator==(const At &) const = default;
};

inline At at(const RxState &s) noexcept { return {s.head, inside(s) ? part_of(s).read : 0}; }

/// A walk that has gone on for longer came from a chain of rings that no honest peer writes (available()).
constexpr uint64_t kMostUnread = 2 * uint64_t{kRingSize[kRingClasses - 1]};

/// Passes over data up to `target`; `*bytes` grows by what that is. False: no data leads there.
[[nodiscard]] inline bool walk_to(RxState &s, const Place &p, std::atomic<uint64_t> &consumed,
                                  const At &target, uint64_t *bytes) noexcept {
    const uint64_t start = s.head;
    for (;;) {
        if (at(s) == target)
            return true;
        Record rec{};
        const int r = next_record(s, p, consumed, &rec); // changes of ring are passed here
        if (at(s) == target)
            return true;
        if (r != 1 || s.head - start > kMostUnread)
            return false;
        const bool last = s.head == target.position;
        if (last && (target.read <= rec.read || target.read >= rec.length))
            return false;
        *bytes += static_cast<uint64_t>(skip(s, rec, last ? target.read - rec.read : rec.length));
    }
}

/// Passes over `bytes` of data, or as many as there are; how many.
inline uint64_t walk_over(RxState &s, const Place &p, uint64_t bytes) noexcept {
    const uint64_t start = s.head;
    std::atomic<uint64_t> scratch{0};
    uint64_t done = 0;
    for (;;) {
        Record rec{};
        if (next_record(s, p, scratch, &rec) != 1 || done == bytes || s.head - start > kMostUnread)
            return done;
        done += static_cast<uint64_t>(skip(s, rec, bytes - done));
    }
}

/// Where the bytes of a record lie of which next_record() and if_reachable() have just said 1; one piece, or
/// two where the ring wraps.
inline unsigned pieces_of(const RxState &s, const Place &p, const Record &r, iovec *to) noexcept {
    const uint32_t size = kRingSize[s.cls], left = r.length - r.read;
    uint8_t *ring = p.known(s.cls);
    SD_ASSERT(ring);
    const auto begin = static_cast<uint32_t>(s.head - s.base + 8 + r.read) & (size - 1), first = size - begin;
    if (left <= first) {
        to[0] = {ring + begin, left};
        return 1;
    }
    to[0] = {ring + begin, first};
    to[1] = {ring, left - first};
    return 2;
}

} // namespace sd::ring
