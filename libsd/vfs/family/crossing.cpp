// Becoming somebody else: a process that gives up rights must not be able to write afterwards what those have
// who keep them.
//
// A forked child works on its parent's records. A worker that has no connection yet, and that is when daemons
// become another user, needs none of them: it leaves the segments that it inherited, and its client links,
// which its parent uses as well. Listeners stay what they are: the kernel's socket and a segment of few
// words, each of which may hold anything (docs/security.md). A segment in which the process does hold
// connections stays.
#include "libsd/control/client.hpp"
#include "libsd/control/confine.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

bool has_part_in(unsigned seg) noexcept {
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd)
        if (const File *f = fd_table[fd].load(std::memory_order_acquire);
            f && f->kind == FileKind::stream && f->seg == seg)
            return true;
    return false;
}

} // namespace

namespace vfs {

void before_crossing() noexcept {
    if (!enabled() || borrowing() || confined() || pinned.load(std::memory_order_acquire) != 0)
        return; // a call of another thread may be about to work there
    bool left = false;
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
        if (segments[i].fd >= 0 && !has_part_in(i))
            left |= leave_segment(i);
    if (!left)
        return;
    retire_client_links();
    ask_for_links_anew();
}

} // namespace vfs

} // namespace sd
