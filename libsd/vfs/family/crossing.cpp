// Becoming somebody else: a process that gives up rights must not be able to write afterwards what those have
// who keep them.
//
// A forked child works on its parent's records, and over the same links: it could write the records of its
// parent's other connections, and what its parent sends. So before the change the process parts from all
// that others have as well, and from those of its domain at the other ends of its links. Connections in such
// a segment, or over such a link, become kernel sockets, for all who hold them (moved.hpp); a bridge of the
// domain that the process still belongs to carries them. Then nothing is left there that is its own, and it
// unmaps segments and links. Listeners stay what they are: the kernel's socket and a segment of few words,
// each of which may hold anything (docs/security.md); links are asked for anew, once the process is what it
// becomes, and are given to that.
//
// What others have is told by the records in the segment and by the monitor's notes in the link. Those who
// could lie there, to make this process keep what it should part from, would do so to themselves: the
// members of a family, and the client at the other end of the link.
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

std::atomic<uint32_t> crossings{0};

using Marks = uint32_t; ///< bit per mapped segment
static_assert(kMaxSegments <= 32);

/// Is somebody else in the segment, or about to come with a connection that was passed to him?
bool is_shared(const MappedSegment &m) noexcept {
    const SegmentView v = m.view;
    for (uint32_t i = 0, n = v.header().proc_high.load(std::memory_order_acquire); i < n && i < kSegProcs; ++i)
        if (i != m.proc && i != kParcelProc && v.proc(i).state.load(std::memory_order_acquire) == 1)
            return true;
    const uint32_t words = (v.header().ofd_high.load(std::memory_order_acquire) + 63) / 64;
    for (uint32_t w = 0; w < words && w < kOfds / 64; ++w)
        if (v.proc(kParcelProc).held[w].load(std::memory_order_relaxed))
            return true;
    return false;
}

/// Who has a side of a link, as the monitor notes it.
struct Holders {
    bool me = false;
    unsigned others = 0;

    Holders(const LinkMap &l, unsigned side) noexcept {
        const auto own = static_cast<uint32_t>(sys::getpid());
        for (const auto &holder : l.view.header().holder[side & 1]) {
            const uint32_t pid = holder.pid.load(std::memory_order_relaxed);
            me |= pid == own;
            others += pid != 0 && pid != own;
        }
    }
};

/// Has somebody else the same side of the link? The monitor may count processes otherwise than we do.
/// `noted`: the monitor has answered this process. Else it may not have noted yet that it was forked.
bool is_shared(const LinkMap &l, bool noted) noexcept {
    const Holders here(l, l.side);
    return here.others > (here.me || !noted ? 0 : 1);
}

/// Does the other side belong to others of the domain that this process is about to leave? They take the link
/// for one within it (LinkPeer::own) ever after: they would wait for a lock of its file that somebody else
/// keeps, and this process has the eventfds that they sleep on.
bool leads_to_own(const LinkMap &l) noexcept {
    if (l.foreign.load(std::memory_order_relaxed) || rdma::is_remote(l))
        return false;
    return Holders(l, 1 - (l.side & 1)).others != 0;
}

/// Must the process not have the link afterwards?
bool is_to_be_left(const LinkMap &l, bool noted) noexcept { return is_shared(l, noted) || leads_to_own(l); }

Marks shared_segments() noexcept {
    Marks marks = 0;
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
        if (segments[i].fd >= 0 && is_shared(segments[i]))
            marks |= Marks{1} << i;
    return marks;
}

unsigned links_to_be_left(bool noted) noexcept {
    unsigned found = 0;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i); l && link_use(*l)) {
            found += l->id != 0 && is_to_be_left(*l, noted);
            link_unuse(*l);
        }
    return found;
}

/// The segments of connections that are to become kernel sockets because of their links: those who carry them
/// come to share the segment. With the monitor's answer.
Marks over_links_to_be_left() noexcept {
    Marks marks = 0;
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd)
        if (const File *f = fd_table[fd].load(std::memory_order_acquire);
            f && f->kind == FileKind::stream && is_to_be_left(*f->link, true))
            marks |= Marks{1} << f->seg;
    return marks;
}

bool is_part(const File &f, Marks which) noexcept {
    return f.kind == FileKind::stream && (which >> f.seg & 1);
}

/// Calls of other threads hold connections and links while they are blocked. Those on a connection that has
/// moved were woken by that, and those on a listener by us; each lets go at its next look, and goes on with
/// the kernel's socket. Waits for that, for a second: one on a number that was closed meanwhile does not.
/// False: it was in vain.
bool wait_for_blocked_calls(Marks which) noexcept {
    constexpr int64_t kPatience = 1'000'000'000;
    const auto is_held = [which] {
        for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
            if ((which >> i & 1) && segments[i].fd >= 0 && holds_any(i))
                return true;
        return links_to_be_left(true) != 0;
    };
    for (const int64_t end = sys::now_ns() + kPatience; is_held(); sys::nap(500'000))
        if (sys::now_ns() >= end)
            return false;
    return true;
}

/// What cannot become a kernel socket stays, and its segment with it.
void leave_connections(Marks which) noexcept {
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd) {
        File *f = fd_table[fd].load(std::memory_order_acquire);
        if (!f || f->kind != FileKind::stream || !take_reference(*f))
            continue;
        if (is_part(*f, which))
            (void)move_to_kernel(*f, Cause::crossed);
        release_file(f);
    }
}

/// True: it has parted from something, or tried to. `crossings` counts it then.
bool part(bool everything) noexcept {
    if (!vfs::enabled() || vfs::in_vfork())
        return false;
    end_capture(CaptureEnd::credentials);
    end_own_pools();
    if (sandboxed())
        return false;
    CleanupStack::drop_abandoned();
    // An image that was started for a client that waits has not looked at its listener yet, and who started
    // it will not accept.
    look_for_links();
    if (!everything && !shared_segments() && !links_to_be_left(false))
        return false;
    Cause why;
    const bool heard =
        control::ensure(&why) && control::request(wire::Op::ends).status == 0; // the dead share nothing
    if (!everything && !shared_segments() && !links_to_be_left(heard))
        return false;
    crossings.fetch_add(1);
    if (heard) {
        const bool others_wait = pinned.load(std::memory_order_acquire) != 0;
        // First: a bridge that carries who waited there has our segment, too. A thread that waits for
        // clients has the kernel's queue from now on.
        const bool acceptors_wait = others_wait && is_any_listener_waited_on();
        if (acceptors_wait)
            withdraw_listeners(false);
        else
            ask_for_links_anew();
        constexpr unsigned kRounds = 3; // again for what another thread had begun before it knew
        for (unsigned round = 0; round < kRounds; ++round) {
            const Marks which = everything ? ~Marks{0} : shared_segments() | over_links_to_be_left();
            leave_connections(which);
            retire_client_links();
            if (acceptors_wait)
                ring_all_own();
            const bool hopeful = (!others_wait || wait_for_blocked_calls(which)) && !one_thread();
            for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
                if (which >> i & 1)
                    (void)leave_segment(i); // what stays is counted below
            if (!hopeful || (!shared_segments() && !links_to_be_left(true)))
                break;
        }
    }
    if (shared_segments() || links_to_be_left(heard))
        count_fallback(Cause::still_shared, nullptr);
    return true;
}

} // namespace

bool crossing_under_way() noexcept { return crossings.load(std::memory_order_relaxed) != 0; }

SD_FORK_CODE void crossing_fork_child() noexcept { crossings.store(0, std::memory_order_relaxed); }

namespace vfs {

Crossing::Crossing(bool is_one, bool everything) noexcept : parted_(is_one && part(everything)) {}

Crossing::~Crossing() {
    // Who sleeps at an epoll instance with a listener has its links when it has looked once more.
    if (parted_ && crossings.fetch_sub(1) == 1 && pinned.load(std::memory_order_acquire) != 0)
        ring_all_own();
}

} // namespace vfs

} // namespace sd
