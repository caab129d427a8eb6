// sdctl detach and memory of the zero-copy device: it becomes anonymous memory at a call that the process
// makes after it was detached, and stays that. libsd-pages.so does it, with the program's threads running.
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// What could not be had is tried again at a later call, and not at each.
constexpr int64_t kAgainNs = 50'000'000;
/// When; 0: at once. The largest: there is nothing left.
constinit std::atomic<int64_t> not_before{0};
constexpr int64_t kNothingLeft = INT64_MAX;

} // namespace

void leave_pages() noexcept {
    int64_t before = not_before.load(std::memory_order_relaxed);
    if (before == kNothingLeft || vfs::in_vfork() || sandboxed())
        return;
    const PageCalls *calls = page_calls();
    if (!calls || calls->size < sizeof(PageCalls))
        return;
    const int64_t now = sys::now_ns();
    // Of several threads one does it. The others go on: what they write to waits where it must.
    if (now < before || !not_before.compare_exchange_strong(before, now + kAgainNs, std::memory_order_relaxed))
        return;
    stop_own_channels();
    if (calls->leave() == 0)
        not_before.store(kNothingLeft, std::memory_order_relaxed);
}

} // namespace sd
