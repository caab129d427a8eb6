#include "libsd/vfs/paths/short_lived.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/connections/address.hpp"
#include <atomic>

namespace sd {

namespace {

constexpr uint32_t kKnown = 64;    ///< destinations
constexpr uint32_t kRow = 32;      ///< so many short ones, one after the other, before any is left out
constexpr uint32_t kOneIn = 16;    ///< is marked then
constexpr uint32_t kTickBits = 23; ///< of a tick: 8 ms
constexpr uint32_t kGap = 3;       ///< ticks without one end the row

/// destination << 32 | ticks << 8 | how many in a row
constinit std::atomic<uint64_t> table[kKnown]{};

struct Row {
    uint32_t destination, when, count;
};

std::atomic<uint64_t> &word_of(uint32_t destination) noexcept { return table[destination % kKnown]; }

uint32_t ticks() noexcept { return static_cast<uint32_t>(sys::coarse_now_ns() >> kTickBits) & 0xffffff; }

Row row_of(uint32_t destination, uint32_t now) noexcept {
    const uint64_t word = word_of(destination).load(std::memory_order_relaxed);
    const Row row{static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 8) & 0xffffff,
                  static_cast<uint32_t>(word & 255)};
    const bool is_going_on = row.destination == destination && ((now - row.when) & 0xffffff) <= kGap;
    return is_going_on ? row : Row{destination, now, 0};
}

void keep(uint32_t destination, uint32_t now, uint32_t count) noexcept {
    word_of(destination)
        .store(uint64_t{destination} << 32 | uint64_t{now} << 8 | (count < 255 ? count : 255),
               std::memory_order_relaxed);
}

} // namespace

uint32_t destination_of(const SlotAddress &to) noexcept {
    return (static_cast<uint32_t>(hash_of(to) >> 32) + to.port * 2654435761u) | 1u << 31;
}

bool is_worth_marking(uint32_t destination) noexcept {
    static constinit std::atomic<uint32_t> turn{0};
    const uint32_t now = ticks();
    const Row row = row_of(destination, now);
    if (row.count < kRow)
        return true;
    keep(destination, now, row.count); // also those that are left out keep the row going
    return turn.fetch_add(1, std::memory_order_relaxed) % kOneIn == 0;
}

void note_short_lived(uint32_t destination) noexcept {
    if (destination == 0)
        return;
    const uint32_t now = ticks();
    keep(destination, now, row_of(destination, now).count + 1);
}

void note_lasting(uint32_t destination) noexcept {
    if (destination != 0)
        keep(destination, ticks(), 0);
}

} // namespace sd
