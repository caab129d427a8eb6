// Counting what a process can be charged for arenas.
#include "libsd/transport/arena_claims.hpp"
#include "libsd/control/client.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

std::atomic<uint64_t> arena_claims{0};

namespace {

static_assert(kLeastOpened == wire::kArenasUnit, "as the monitor bounds the number of links");

/// Half of what the monitor lets the process have: the other half is for what each link has at least.
uint64_t bound() noexcept { return control::profile.arenas.load(relaxed) / 2; }
bool is_bounded() noexcept { return control::profile.arenas.load(relaxed) != control::kArenasUnbounded; }

/// `free`: what has to be left for others.
bool claim(LinkMap &l, uint64_t bytes, uint64_t free) noexcept {
    uint64_t now = arena_claims.load(relaxed);
    do {
        if (is_bounded() && now + bytes + free > bound())
            return false;
    } while (!arena_claims.compare_exchange_weak(now, now + bytes, relaxed));
    l.claimed.fetch_add(bytes, relaxed);
    return true;
}

} // namespace

bool claim_arena(LinkMap &l, uint64_t bytes) noexcept {
    if (bytes > kAlwaysHad)
        return claim(l, bytes, 0);
    arena_claims.fetch_add(bytes, relaxed);
    l.claimed.fetch_add(bytes, relaxed);
    return true;
}

bool arena_to_be_claimed(uint64_t bytes) noexcept {
    return bytes <= kAlwaysHad || !is_bounded() || arena_claims.load(relaxed) + bytes <= bound();
}

void unclaim_arena(LinkMap &l, uint64_t bytes) noexcept {
    l.claimed.fetch_sub(bytes, relaxed);
    arena_claims.fetch_sub(bytes, relaxed);
}

bool claim_strangers_arena(LinkMap &l, uint64_t end) noexcept {
    uint64_t now = l.strangers_claimed.load(relaxed);
    while (now < end) {
        const uint64_t more = end - now;
        if (!claim(l, more, end))
            return false;
        if (l.strangers_claimed.compare_exchange_strong(now, end, relaxed))
            return true;
        unclaim_arena(l, more); // another thread was quicker
    }
    return true;
}

uint64_t opened_at_first(uint64_t most) noexcept {
    return is_bounded() && most > kLeastOpened ? kLeastOpened : most;
}

void unclaim_arenas(LinkMap &l) noexcept {
    arena_claims.fetch_sub(l.claimed.exchange(0, relaxed), relaxed);
    l.strangers_claimed.store(kLeastOpened, relaxed);
}

} // namespace sd
