// The order in which places are tried.
#include "libsd/rdma/choice.hpp"
#include <cstring>

namespace sd::rdma {

namespace {

unsigned shared_bits(const uint8_t *a, const uint8_t *b) noexcept {
    unsigned n = 0;
    for (unsigned i = 0; i < 16; ++i, n += 8)
        if (const auto differ = static_cast<unsigned>(a[i] ^ b[i]))
            return n + static_cast<unsigned>(__builtin_clz(differ)) - 24;
    return n;
}

struct Worth {
    unsigned first, second;
    bool is_more(const Worth &o) const noexcept {
        return first != o.first ? first > o.first : second > o.second;
    }
};

Worth worth_of(const Place &p, const Ends &ends) noexcept {
    const unsigned is_on_route = memcmp(p.address, ends.local, 16) == 0;
    const unsigned near = ends.theirs ? shared_bits(p.address, ends.theirs) : 0;
    const bool is_elsewhere = ends.theirs && memcmp(ends.theirs, ends.peer, 16) != 0;
    return is_elsewhere ? Worth{near, is_on_route} : Worth{is_on_route, near};
}

} // namespace

void order_by_route(Place *place, unsigned n, const Ends &ends) noexcept {
    for (unsigned i = 1; i < n; ++i) { // few, and equal ones keep their order
        const Place moved = place[i];
        const Worth worth = worth_of(moved, ends);
        unsigned at = i;
        for (; at > 0 && worth.is_more(worth_of(place[at - 1], ends)); --at)
            place[at] = place[at - 1];
        place[at] = moved;
    }
}

} // namespace sd::rdma
