#include "monitor/peers/far_records.hpp"
#include "libsd/layout/record.hpp"
#include "libsd/transport/fake_copier.hpp"

#include <algorithm>
#include <cstring>

namespace sd::monitor {

namespace {

using fake::ring_in;

/// Flags that a side says of itself between hosts.
constexpr uint32_t kSaid = kFlagWriteShut | kFlagReadShut | kFlagClosed | kFlagReset | kFlagDead |
                           kFlagReleased | kFlagHome | kFlagTellsLeaving | kFlagHasLeft;

uint32_t place_in_ring(const RingPlace &at) {
    return static_cast<uint32_t>(at.position - at.base) & (kRingSize[at.cls] - 1);
}

bool is_change(uint64_t header) { return ring::header_kind(header) == ring::RecordKind::change; }

/// Can a record with this header stand there?
bool is_sound(uint64_t header, const RingPlace &at) {
    const uint32_t length = ring::header_length(header);
    return ring::header_valid(header, at.position) &&
           (is_change(header) ? length < kRingClasses && length != at.cls
                              : length <= ring::kMaxRecord && 16 + ring::pad8(length) <= kRingSize[at.cls]);
}

void store_changed(std::atomic<uint64_t> &word, uint64_t now) {
    if (word.load(std::memory_order_relaxed) != now) {
        word.store(now, std::memory_order_release);
    }
}

} // namespace

RecordsRead read_records(LinkView view, uint32_t slot, unsigned sender, RingPlace from, size_t most) {
    RecordsRead read;
    const Corked &back = view.slot(slot).side[sender].control.back;
    const auto append = [&](const void *bytes, size_t size) {
        read.bytes.append(static_cast<const char *>(bytes), size);
    };
    while (read.bytes.size() < most) {
        uint8_t *ring = from.cls < kRingClasses ? ring_in(view, slot, sender, from.cls) : nullptr;
        if (ring == nullptr) {
            read.sound = false;
            return read;
        }
        const uint32_t at = place_in_ring(from);
        uint64_t header = ring::word(ring, at).load(std::memory_order_acquire);
        if (const uint64_t held = back.header.load(std::memory_order_acquire);
            header == 0 && held != 0 && ring::header_valid(held, from.position)) {
            header = held;
        }
        if (header == 0) {
            read.all = true;
            return read;
        }
        if (!is_sound(header, from)) {
            read.sound = false;
            return read;
        }
        const uint32_t length = ring::header_length(header);
        append(&header, sizeof header);
        from.position += sizeof header;
        if (is_change(header)) {
            from.base = from.position;
            from.cls = length;
            continue;
        }
        const auto size = static_cast<uint32_t>(ring::pad8(length));
        const uint32_t begin = (at + 8) & (kRingSize[from.cls] - 1);
        const uint32_t first = std::min(size, kRingSize[from.cls] - begin);
        append(ring + begin, first);
        append(ring, size - first);
        from.position += size;
    }
    return read;
}

between_hosts::Words read_words(LinkView view, uint32_t slot, unsigned side) {
    const SlotSide &own = view.slot(slot).side[side];
    between_hosts::Words words;
    words.slot = slot;
    words.flags = own.control.flags.load(std::memory_order_acquire) & kSaid;
    words.ended_at = own.control.ended_at.load(std::memory_order_acquire);
    for (uint32_t cls = 1; cls < kRingClasses; ++cls) {
        words.piece[cls - 1] = view.piece(slot, side, cls).load(std::memory_order_acquire);
    }
    words.oob = own.control.oob.load(std::memory_order_acquire);
    // What is offered was written before the word that offers it.
    words.offer = own.credit.path.offer.load(std::memory_order_acquire);
    words.from = own.credit.path.from.load(std::memory_order_acquire);
    words.taken = own.credit.path.taken.load(std::memory_order_acquire);
    words.consumed = own.credit.consumed.load(std::memory_order_acquire);
    words.shown = own.credit.shown.load(std::memory_order_acquire);
    return words;
}

void put_first_words(LinkView view, uint32_t slot, unsigned side, const between_hosts::Words &words) {
    for (uint32_t cls = 1; cls < kRingClasses; ++cls) {
        view.piece(slot, side, cls).store(words.piece[cls - 1], std::memory_order_release);
    }
    store_changed(view.slot(slot).side[side].control.oob, words.oob);
}

void put_last_words(LinkView view, uint32_t slot, unsigned side, const between_hosts::Words &words) {
    SlotSide &to = view.slot(slot).side[side];
    store_changed(to.control.back.header, 0); // nothing is held back here
    store_changed(to.credit.shown, words.shown);
    store_changed(to.credit.consumed, words.consumed);
    store_changed(to.credit.path.from, words.from);
    store_changed(to.credit.path.offer, words.offer);
    store_changed(to.credit.path.taken, words.taken);
    to.control.ended_at.store(words.ended_at, std::memory_order_relaxed);
    to.control.flags.fetch_or(words.flags & kSaid, std::memory_order_seq_cst);
}

/// Its payload comes, or it has none.
bool RecordsWriter::begin(LinkView view, uint64_t header) {
    uint8_t *ring = ring_in(view, slot_, sender_, place_.cls);
    if (ring == nullptr || !is_sound(header, place_)) {
        return false;
    }
    const uint32_t at = place_in_ring(place_), length = ring::header_length(header);
    if (is_change(header)) {
        uint8_t *next = ring_in(view, slot_, sender_, length);
        if (next == nullptr) {
            return false;
        }
        ring::word(next, 0).store(0, std::memory_order_relaxed);
        ring::word(ring, at).store(header, std::memory_order_release);
        place_.base = place_.position += 8;
        place_.cls = length;
        return true;
    }
    const uint64_t taken = std::max(
        view.slot(slot_).side[1 - sender_].credit.consumed.load(std::memory_order_acquire), place_.base);
    if (place_.position + 16 + ring::pad8(length) - taken > kRingSize[place_.cls]) {
        return false;
    }
    header_ = header;
    done_ = 0;
    return true;
}

bool RecordsWriter::add(LinkView view, std::string_view bytes) {
    while (!bytes.empty() || (header_ != 0 && ring::header_length(header_) == 0)) {
        if (header_ == 0) {
            uint64_t header;
            memcpy(&header, bytes.data(), sizeof header);
            bytes.remove_prefix(sizeof header);
            if (!begin(view, header)) {
                return false;
            }
            continue;
        }
        uint8_t *ring = ring_in(view, slot_, sender_, place_.cls);
        if (ring == nullptr) {
            return false;
        }
        const auto size = static_cast<uint32_t>(ring::pad8(ring::header_length(header_)));
        const uint32_t mask = kRingSize[place_.cls] - 1, at = place_in_ring(place_),
                       begin = (at + 8 + done_) & mask;
        const auto n = std::min({size - done_, mask + 1 - begin, static_cast<uint32_t>(bytes.size())});
        memcpy(ring + begin, bytes.data(), n);
        bytes.remove_prefix(n);
        done_ += n;
        if (done_ == size) {
            ring::word(ring, (at + 8 + size) & mask).store(0, std::memory_order_relaxed);
            ring::word(ring, at).store(header_, std::memory_order_release);
            place_.position += 8 + size;
            header_ = 0;
        }
    }
    return true;
}

} // namespace sd::monitor
