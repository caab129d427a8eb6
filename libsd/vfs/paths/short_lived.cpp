#include "libsd/vfs/paths/short_lived.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/connections/address.hpp"
#include <atomic>

namespace sd {

namespace {

constexpr uint32_t kLifeTickBits = 23; ///< of a tick: 8 ms
/// What an accelerated connection to a forked child may have sent, and carried both ways, and still be short:
/// a child costs some 200 us more than with the kernel, a request 40 to 60 us less, 100 KB 20 us less.
constexpr uint64_t kShortSends = 6, kShortBytes = 1u << 17;

/// Rows of short connections, by destination.
class Rows {
  public:
    /// `one_in`: is left in after a row of kRow; `gap`: ticks without a connection that end the row.
    constexpr Rows(uint32_t one_in, uint32_t gap) : one_in_(one_in), gap_(gap) {}

    bool is_left_out(uint32_t destination) noexcept {
        const uint64_t word = word_of(destination).load(std::memory_order_relaxed);
        if (word == 0) [[likely]]
            return false;
        const uint32_t now = ticks();
        const uint32_t count = count_of(word, destination, now);
        if (count < kRow)
            return false;
        keep(destination, now, count); // also those that are left out keep the row going
        return turn_.fetch_add(1, std::memory_order_relaxed) % one_in_ != 0;
    }
    bool is_known(uint32_t destination) noexcept {
        return word_of(destination).load(std::memory_order_relaxed) >> 32 == destination;
    }
    void note_short(uint32_t destination) noexcept {
        const uint32_t now = ticks();
        keep(destination, now,
             count_of(word_of(destination).load(std::memory_order_relaxed), destination, now) + 1);
    }
    void note_lasting(uint32_t destination) noexcept { keep(destination, ticks(), 0); }

  private:
    static constexpr uint32_t kKnown = 64; ///< destinations
    static constexpr uint32_t kRow = 32; ///< so many short ones, one after the other, before any is left out

    static uint32_t ticks() noexcept {
        return static_cast<uint32_t>(sys::coarse_now_ns() >> kLifeTickBits) & 0xffffff;
    }
    std::atomic<uint64_t> &word_of(uint32_t destination) noexcept { return table_[destination % kKnown]; }
    uint32_t count_of(uint64_t word, uint32_t destination, uint32_t now) const noexcept {
        const uint32_t when = static_cast<uint32_t>(word >> 8) & 0xffffff;
        const bool is_going_on = word >> 32 == destination && ((now - when) & 0xffffff) <= gap_;
        return is_going_on ? word & 255 : 0;
    }
    void keep(uint32_t destination, uint32_t now, uint32_t count) noexcept {
        word_of(destination)
            .store(uint64_t{destination} << 32 | uint64_t{now} << 8 | (count < 255 ? count : 255),
                   std::memory_order_relaxed);
    }

    const uint32_t one_in_, gap_;
    std::atomic<uint32_t> turn_{0};
    /// destination << 32 | ticks << 8 | how many in a row
    std::atomic<uint64_t> table_[kKnown]{};
};

constinit Rows unoffered(16, 3), forked(64, 32);

} // namespace

constinit std::atomic<bool> any_forks{false};

uint32_t destination_of(const SlotAddress &to) noexcept {
    return (static_cast<uint32_t>(hash_of(to) >> 32) + to.port * 2654435761u) | 1u << 31;
}

bool is_worth_marking(uint32_t destination) noexcept { return !unoffered.is_left_out(destination); }

void note_short_lived(uint32_t destination) noexcept {
    if (destination != 0)
        unoffered.note_short(destination);
}

void note_lasting(uint32_t destination) noexcept {
    if (destination != 0)
        unoffered.note_lasting(destination);
}

bool is_worth_forking(const SlotAddress &to) noexcept {
    return !any_forks.load(std::memory_order_relaxed) || !forked.is_left_out(destination_of(to));
}

void note_forking(const SlotAddress &to, bool forks, uint64_t sends, uint64_t bytes) noexcept {
    any_forks.store(true, std::memory_order_relaxed);
    const uint32_t destination = destination_of(to);
    if (forks && sends <= kShortSends && bytes <= kShortBytes)
        forked.note_short(destination);
    else if (forked.is_known(destination))
        forked.note_lasting(destination);
}

} // namespace sd
