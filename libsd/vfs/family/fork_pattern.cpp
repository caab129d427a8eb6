#include "libsd/vfs/family/fork_pattern.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

SD_FORK_STATE bool channel_left_out = false;

namespace {

constexpr uint32_t kFromKernel = UINT32_MAX;
/// Children made in turn with connections from the kernel before one is left without a channel.
constexpr uint32_t kKernelRow = 8;

/// The link over which the last connection was accepted: its index and 1; kFromKernel; 0: none, or a child
/// was made since. Threads that accept and fork at the same time have it say less, and nothing wrong.
SD_FORK_STATE std::atomic<uint32_t> last_accepted_on{0};
SD_FORK_STATE std::atomic<uint32_t> kernel_row{0};

std::atomic<uint32_t> &flags_of(LinkMap &l) noexcept { return l.view.header().side[1].flags; }

/// The last connection had no child made for it.
[[gnu::noinline]] void end_row(uint32_t before) noexcept {
    kernel_row.store(0, std::memory_order_relaxed);
    LinkMap *l = before != kFromKernel ? link_by_index(before - 1) : nullptr;
    if (!l || l->forks_after_accept == 0 || !link_use(*l))
        return;
    if (l->side == 1) {
        l->forks_after_accept = 0;
        flags_of(*l).fetch_and(~kLinkForks, std::memory_order_relaxed);
    }
    link_unuse(*l);
}

} // namespace

void note_accepted(LinkMap *link) noexcept {
    const uint32_t before = last_accepted_on.load(std::memory_order_relaxed);
    last_accepted_on.store(link ? link->index + 1 : kFromKernel, std::memory_order_relaxed);
    if (before != 0) [[likely]] {
        if (kernel_row.load(std::memory_order_relaxed) != 0 ||
            (before != kFromKernel && link_by_index(before - 1) &&
             link_by_index(before - 1)->forks_after_accept != 0)) [[unlikely]]
            end_row(before);
    }
}

void fetch_bells_for_child() noexcept {
    constexpr unsigned kMostBells = 4; ///< of a client with more threads than that the child asks
    const uint32_t index = last_accepted_on.exchange(0, std::memory_order_relaxed);
    if (index != kFromKernel)
        kernel_row.store(0, std::memory_order_relaxed);
    else if (kernel_row.load(std::memory_order_relaxed) < kKernelRow)
        kernel_row.fetch_add(1, std::memory_order_relaxed);
    LinkMap *l = index != 0 && index != kFromKernel ? link_by_index(index - 1) : nullptr;
    if (!l || l->side != 1 || l->forks_after_accept > 1 || sandboxed() || !control::connected() || !link_use(*l))
        return;
    // A client that comes once would never be rung with what is fetched now.
    if (++l->forks_after_accept == 2) {
        flags_of(*l).fetch_or(kLinkForks, std::memory_order_relaxed);
        unsigned fetched = 0;
        for (unsigned id = kFirstDoorbell; id <= kLastDoorbell && fetched < kMostBells; ++id)
            if (l->far.header().bell_generation[0][id].load(std::memory_order_acquire) != 0 &&
                l->peer_bell[id].fd.load(std::memory_order_relaxed) == LinkMap::PeerBell::kUnknown) {
                l->peer_bell[id].fd.store(LinkMap::PeerBell::kRung, std::memory_order_relaxed);
                (void)upward.fetch_peer_bell(*l, id);
                ++fetched;
            }
    }
    link_unuse(*l);
}

bool child_needs_no_channel() noexcept {
    return kernel_row.load(std::memory_order_relaxed) >= kKernelRow && !sandboxed() && holds_nothing();
}

void ensure_channel() noexcept {
    channel_left_out = false;
    Cause why;
    (void)control::ensure(&why); // without one the sleep asks again
}

} // namespace sd
