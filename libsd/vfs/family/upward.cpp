// base/upward.hpp says who calls each, and when.
#include "libsd/vfs/family/upward.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/kernel_sockets/kernel_listener.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

bool identity(control::Identity *id, int greeting) noexcept {
    long dummy = dummy_socket();
    int own = -1;
    while (own < 0) { // another thread may have left it just then
        if (dummy < 0 || !own_segment(greeting))
            return false;
        own = own_segment_index.load(std::memory_order_acquire);
    }
    *id = {segments[own].fd, static_cast<int>(dummy), segments[own].proc};
    return true;
}

void restore() noexcept {
    for (uint32_t i = 0, n = segment_count.load(); i < n; ++i)
        if (static_cast<int>(i) != own_segment_index.load() && segments[i].fd >= 0 &&
            segments[i].proc < kSegProcs) {
            wire::Segment msg{segments[i].proc, 0, segments[i].owner_client};
            control::request(wire::Op::segment, &msg, sizeof msg, &segments[i].fd, 1);
        }
    retire_client_links(); // existing connections go on; new ones use links the new monitor made
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i)) {
            wire::Adopt msg{l->id, l->side, {}};
            control::request(wire::Op::adopt_link, &msg, sizeof msg, &l->memfd, 1);
        }
    rdma::monitor_has_changed();
    restore_pools();
    restore_listeners();
    restore_bells();
    // Whom we could not wake while there was no monitor for us may have found it again before we did.
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i))
            ring_sleepers(*l);
}

void have_monitor_ring(LinkMap &l, unsigned id) noexcept {
    const wire::BellRef ref{l.id, 1u - l.side, id};
    control::tell(wire::Op::ring, &ref, sizeof ref);
}

long peer_bell(LinkMap &l, unsigned id) noexcept {
    using PeerBell = LinkMap::PeerBell;
    wire::BellRef ref{l.id, 1u - l.side, id};
    uint32_t generation = l.far.header().bell_generation[1 - l.side][id].load(std::memory_order_acquire);
    control::Reply r;
    r.status = -EMFILE;
    Cause why;
    if (!control::connected())
        (void)control::ensure(&why); // the waiter may rely on a monitor that we have given up
    auto &cached = l.peer_bell[id];
    // The first time the monitor rings, and nobody waits for a descriptor that a program which soon ends
    // would not use again.
    if (int none = PeerBell::kUnknown;
        control::connected() && cached.fd.compare_exchange_strong(none, PeerBell::kRung)) {
        have_monitor_ring(l, id);
        return -EAGAIN;
    }
    if (int before = cached.fd.load(std::memory_order_relaxed);
        before <= PeerBell::kNotOurs && before > PeerBell::kAskAgain &&
        cached.generation.load(std::memory_order_relaxed) == generation) {
        cached.fd.compare_exchange_strong(before, before - 1);
        have_monitor_ring(l, id);
        return -EAGAIN;
    }
    if (!sandboxed())
        r = control::request(wire::Op::peer_bell, &ref, sizeof ref);
    if (r.status == -EMFILE) { // we cannot have it, so the monitor rings in our place
        control::request(wire::Op::ring, &ref, sizeof ref);
        return r.status;
    }
    const auto keep = [&](int what) {
        cached.generation.store(generation, std::memory_order_relaxed);
        if (const int old = cached.fd.exchange(what, std::memory_order_acq_rel); old >= 0)
            close_hidden(old & ~PeerBell::kSocket);
    };
    if (r.status == -EXDEV) { // a waiter of another trust domain
        keep(PeerBell::kNotOurs);
        have_monitor_ring(l, id);
        return r.status;
    }
    if (r.status < 0 || r.fds != 1) {
        control::close_received(r);
        return r.status < 0 ? r.status : -EPROTO;
    }
    long fd = hide_fd(r.fd[0]);
    if (fd < 0) {
        have_monitor_ring(l, id);
        return fd;
    }
    int type = 0;
    socklen_t length = sizeof type;
    if (sys::getsockopt(static_cast<int>(fd), SOL_SOCKET, SO_TYPE, &type, &length) == 0)
        fd |= PeerBell::kSocket;
    keep(static_cast<int>(fd));
    return fd;
}

void descriptor_moved(int from, int to) noexcept {
    dummy_moved(from, to);
    control::channel_moved(from, to);
    control::kernel_listener_moved(from, to);
    bells_moved(from, to);
    links_moved(from, to);
    rdma::descriptors_moved(from, to);
    listeners_moved(from, to);
    pools_moved(from, to);
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
        if (segments[i].fd == from)
            segments[i].fd = to;
    upward.presence_moved(from, to);
}

bool register_and_watch(unsigned seg) noexcept {
    watch_this_thread();
    upward.expect_faults_here();
    return register_in_segment(seg);
}

} // namespace

SD_START_CODE void fill_upward(const vfs::ApiCalls &api) noexcept {
    upward = {
        .run_deferred = api.run_deferred,
        .expect_faults = api.expect_faults,
        .expect_faults_here = api.expect_faults_here,
        .presence_moved = api.presence_moved,
        .reset_in_child = api.reset_in_child,
        .open_plugin = api.open_plugin,
        .take_events = rdma::take_events,
        .register_thread = register_and_watch,
        .watch_thread = watch_this_thread,
        .repair = repair_direction,
        .fetch_peer_bell = peer_bell,
        .ring_through_monitor = have_monitor_ring,
        .hidden_moved = descriptor_moved,
        .identity = identity,
        .network = dummy_socket,
        .restore = restore,
    };
}

} // namespace sd
