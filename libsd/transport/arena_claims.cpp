// Counting what a process can be charged for arenas.
#include "libsd/transport/arena_claims.hpp"
#include "libsd/control/client.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

std::atomic<uint64_t> arena_claims{0};

namespace {

constexpr uint64_t kLeastOpened = kRingSize[2];
constexpr uint64_t kShareOfOne = 256; ///< of the bound, what one stranger is opened at once

uint64_t bound() noexcept { return control::profile.arenas.load(relaxed); }

} // namespace

bool arena_to_be_claimed(uint64_t bytes) noexcept {
    const uint64_t most = bound();
    return most == control::kArenasUnbounded || arena_claims.load(relaxed) + bytes <= most;
}

void claim_arena_in_any_case(LinkMap &l, uint64_t bytes) noexcept {
    arena_claims.fetch_add(bytes, relaxed);
    l.claimed.fetch_add(bytes, relaxed);
}

bool claim_arena(LinkMap &l, uint64_t bytes) noexcept {
    const uint64_t most = bound();
    uint64_t now = arena_claims.load(relaxed);
    do {
        if (most != control::kArenasUnbounded && now + bytes > most)
            return false;
    } while (!arena_claims.compare_exchange_weak(now, now + bytes, relaxed));
    l.claimed.fetch_add(bytes, relaxed);
    return true;
}

void unclaim_arena(LinkMap &l, uint64_t bytes) noexcept {
    l.claimed.fetch_sub(bytes, relaxed);
    arena_claims.fetch_sub(bytes, relaxed);
}

bool claim_strangers_arena(LinkMap &l, uint64_t end) noexcept {
    uint64_t now = l.strangers_claimed.load(relaxed);
    while (now < end) {
        const uint64_t more = end - now;
        if (!claim_arena(l, more))
            return false;
        if (l.strangers_claimed.compare_exchange_strong(now, end, relaxed))
            return true;
        unclaim_arena(l, more); // another thread was quicker
    }
    return true;
}

uint64_t opened_at_first(uint64_t most) noexcept {
    const uint64_t all = bound();
    if (all == control::kArenasUnbounded)
        return most;
    const uint64_t share = all / kShareOfOne / kLeastOpened * kLeastOpened;
    return share < kLeastOpened ? kLeastOpened : share < most ? share : most;
}

void unclaim_arenas(LinkMap &l) noexcept {
    arena_claims.fetch_sub(l.claimed.exchange(0, relaxed), relaxed);
    l.strangers_claimed.store(0, relaxed);
}

} // namespace sd
