// RDMA as a transport: what libsd does with the plugin.
#include "libsd/rdma/transport.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/layout/discovery_word.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/rdma/root.hpp"
#include "libsd/transport/slots.hpp"
#include <cstring>

namespace sd::rdma {

namespace {

SD_FORK_STATE constinit Lock opening;
std::atomic<bool> tried{false};
const Plugin *plugin = nullptr; ///< as `device`: nothing before `tried`, then it stays
std::atomic<Host *> device{nullptr};

std::atomic<bool> wanted_by_test{false};

bool is_wanted() noexcept {
    const Directory *d = control::directory();
    return wanted_by_test.load(std::memory_order_relaxed) ||
           (d && (d->discovery.load(std::memory_order_relaxed) & kDiscoveryRdma) != 0);
}

/// What a link of the table is in the plugin.
struct Attached {
    Peer *peer;
    Remote *remote;
    enum Step : uint8_t {
        none,
        greeted, ///< our Hello is at the monitor
        joined,  ///< and we have theirs
        running, ///< they can receive as well
        over
    };
    std::atomic<Step> step;
};
constinit Attached attached[kMaxLinks]{};
/// Links whose step is greeted or joined
std::atomic<uint32_t> unsettled{0};
std::atomic<uint32_t> endings_seen{0};
SD_FORK_STATE constinit Lock settling;

Remote *remote_of(const LinkMap &l) noexcept { return attached[l.index].remote; }

// For LinkCalls.
uint8_t *ring(void *link, uint32_t slot, unsigned sender, unsigned cls) noexcept {
    return larger_ring(static_cast<LinkMap *>(link)->view.slot(slot).ring[sender], cls, nullptr);
}

/// As wake_armed(), for waiters of our own side.
void wake(void *link, uint32_t slot, bool data, bool room) noexcept {
    LinkMap &l = *static_cast<LinkMap *>(link);
    auto &c = l.view.slot(slot).side[l.side].control;
    cpu::in_order_for_membarrier(); // A before B of queue/sleeper.hpp
    uint64_t ids = 0;
    if (data && c.rx_arm.load(std::memory_order_relaxed))
        ids = c.rx_arm.exchange(0, std::memory_order_seq_cst);
    if (room && c.tx_arm.load(std::memory_order_relaxed))
        ids |= c.tx_arm.exchange(0, std::memory_order_seq_cst);
    ids &= kUsableDoorbells;
    for (uint64_t m = ids; m; m &= m - 1) {
        const auto id = static_cast<unsigned>(__builtin_ctzll(m));
        l.view.ready_word(l.side, id, slot / 64).fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
        l.view.ready_summary(l.side, id).fetch_or(uint64_t{1} << slot / 64, std::memory_order_seq_cst);
    }
    ids &= l.view.header().side[l.side].sleep_mask.load(std::memory_order_seq_cst);
    if (ids)
        ring_own(l, slot, ids);
}

wire::GreetingReply greet(const LinkMap &l, uint32_t step, const Hello *ours) noexcept {
    wire::Greeting g{l.id, l.side, step, {}};
    static_assert(sizeof g.hello == sizeof *ours && offsetof(Hello, address) == wire::kHelloAddress);
    if (ours)
        memcpy(g.hello, ours, sizeof g.hello);
    control::Reply r = control::request(wire::Op::greet, &g, sizeof g);
    control::close_received(r);
    return r.status < 0 || r.length != sizeof(wire::GreetingReply) ? wire::GreetingReply{}
                                                                   : r.as<wire::GreetingReply>();
}

void count_settled(Attached &a, Attached::Step now) noexcept {
    a.step.store(now, std::memory_order_seq_cst);
    unsettled.fetch_sub(1, std::memory_order_seq_cst);
}

/// The next steps that the other side's make possible. With `settling`.
void advance(LinkMap &l, Attached &a, wire::GreetingReply theirs) noexcept {
    if (a.step.load() == Attached::greeted && theirs.step != wire::kNotGreeted) {
        Hello hello;
        memcpy(&hello, theirs.hello, sizeof hello);
        if (plugin->join(a.peer, hello) != 0) {
            count_settled(a, Attached::over);
            return;
        }
        a.step.store(Attached::joined);
        theirs = greet(l, wire::kCanReceive, nullptr);
    }
    if (a.step.load() == Attached::joined && theirs.step == wire::kCanReceive) {
        count_settled(a, Attached::running);
        plugin->start(a.peer);
    }
}

/// Has the other side gone on, as the link's flags say?
void settle_links() noexcept {
    if (!settling.try_lock_unmasked())
        return;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        LinkMap *l = link_by_index(i);
        Attached &a = attached[i];
        if (!l || !is_remote(*l))
            continue;
        const uint32_t flags = l->view.header().side[1 - l->side].flags.load(std::memory_order_acquire);
        const auto step = a.step.load();
        if ((step == Attached::greeted && (flags & kLinkGreeted)) ||
            (step == Attached::joined && (flags & kLinkJoined)))
            advance(*l, a, greet(*l, wire::kAsks, nullptr));
    }
    settling.unlock_unmasked();
}

/// The queue pair has ended, and not because the other process has: all that it carried is reset. Nothing
/// goes back to the kernel's sockets yet.
void end_link(LinkMap &l, Attached &a) noexcept {
    plugin->end(a.peer);
    control::request(wire::Op::ends, nullptr, 0); // of those who have ended the monitor says so
    for (uint32_t slot = 0; slot < kLinkSlots; ++slot) {
        Slot &s = l.view.slot(slot);
        constexpr uint32_t kOver = kFlagClosed | kFlagDead | kFlagReleased;
        if (s.identity.state.load(std::memory_order_relaxed) != static_cast<uint32_t>(SlotState::accepted) ||
            (s.side[l.side].control.flags.load(std::memory_order_relaxed) & kFlagReleased))
            continue;
        auto &flags = s.side[1 - l.side].control.flags;
        if ((flags.load(std::memory_order_relaxed) & kOver) == 0)
            flags.fetch_or(kFlagReset | kFlagClosed | kFlagDead, std::memory_order_seq_cst);
        else
            flags.fetch_or(kFlagDead, std::memory_order_seq_cst);
        wake(&l, slot, true, true);
    }
}

void end_links() noexcept {
    if (!settling.try_lock_unmasked())
        return;
    const uint32_t now = plugin->endings(device.load())->load(std::memory_order_seq_cst);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        LinkMap *l = link_by_index(i);
        Attached &a = attached[i];
        if (!l || !is_remote(*l) || !a.peer || a.step.load() == Attached::over ||
            plugin->state(a.peer) != PeerState::ended)
            continue;
        if (a.step.exchange(Attached::over) < Attached::running)
            unsettled.fetch_sub(1);
        end_link(*l, a);
    }
    endings_seen.store(now);
    settling.unlock_unmasked();
}

// A child has its parent's links without the device. What it has to say about a slot it marks in the ready
// bits of the other side, which nobody uses in this memory, and the parent says it.

std::atomic<bool> inherited_by_children{false};

void leave_to_parent(LinkMap &l, uint32_t slot) noexcept {
    const unsigned far = 1u - l.side;
    l.view.ready_word(far, 0, slot / 64).fetch_or(uint64_t{1} << slot % 64, std::memory_order_seq_cst);
    l.view.ready_summary(far, 0).fetch_or(uint64_t{1} << slot / 64, std::memory_order_seq_cst);
    ring_own(l, slot, l.view.header().side[l.side].sleep_mask.load(std::memory_order_seq_cst));
}

void take_from_children() noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        const LinkMap *l = link_by_index(i);
        Remote *r = l && is_remote(*l) ? attached[i].remote : nullptr;
        const unsigned far = r ? 1u - l->side : 0;
        for (uint64_t words = r && l->view.ready_summary(far, 0).load(std::memory_order_relaxed)
                                  ? l->view.ready_summary(far, 0).exchange(0, std::memory_order_seq_cst)
                                  : 0;
             words; words &= words - 1) {
            const auto word = static_cast<unsigned>(__builtin_ctzll(words));
            for (uint64_t slots = l->view.ready_word(far, 0, word).exchange(0, std::memory_order_seq_cst);
                 slots; slots &= slots - 1)
                plugin->publish(r, word * 64 + static_cast<unsigned>(__builtin_ctzll(slots)), false);
        }
    }
}

} // namespace

std::atomic<uint32_t> remote_links{0};

void read_test_transport(const char *text) noexcept {
    wanted_by_test.store(text && strcmp(text, "rdma") == 0, std::memory_order_relaxed);
}

void open_device() noexcept {
    if (tried.load(std::memory_order_acquire) || !is_wanted())
        return;
    const PutOff quiet; // a handler that connects would wait for its own thread
    const LockGuard g(opening);
    if (tried.load(std::memory_order_relaxed))
        return;
    Host *h = nullptr;
    SpareNumbers spare;
    const auto *p = is_root_as_ever() ? static_cast<const Plugin *>(upward.open_plugin(kPluginVersion)) : nullptr;
    if (p && p->open(kUsualLimits, &h) == 0) {
        int *number[8];
        for (unsigned i = 0, n = p->descriptors(h, number, 8); i < n; ++i)
            if (const long hidden = hide_fd(*number[i]); hidden >= 0)
                *number[i] = static_cast<int>(hidden);
        plugin = p;
        device.store(h, std::memory_order_release);
    }
    tried.store(true, std::memory_order_release);
}

bool begin(LinkMap &l) noexcept {
    Host *h = device.load(std::memory_order_acquire);
    if (!h)
        return false;
    const PutOff quiet;
    Attached &a = attached[l.index];
    Hello ours{};
    SpareNumbers spare;
    if (plugin->peer(h, &ours, &a.peer) != 0) {
        a.peer = nullptr;
        return false;
    }
    const LinkCalls calls = {ring, wake};
    if (plugin->attach(a.peer, 0, l.view, l.side, calls, &l, &a.remote) != 0) {
        plugin->end(a.peer);
        plugin->drop(a.peer);
        a.peer = nullptr;
        a.remote = nullptr;
        return false;
    }
    const LockGuard g(settling);
    a.step.store(Attached::greeted);
    unsettled.fetch_add(1);
    remote_links.fetch_add(1);
    advance(l, a, greet(l, wire::kGreets, &ours));
    return true;
}

void progress_now() noexcept {
    Host *h = device.load(std::memory_order_acquire);
    if (!h)
        return;
    const PutOff quiet;
    plugin->progress(h);
    if (inherited_by_children.load(std::memory_order_relaxed)) [[unlikely]]
        take_from_children();
    if (unsettled.load(std::memory_order_relaxed)) [[unlikely]]
        settle_links();
    if (plugin->endings(h)->load(std::memory_order_relaxed) != endings_seen.load(std::memory_order_relaxed))
        [[unlikely]]
        end_links();
}

void take_events() noexcept {
    Host *h = device.load(std::memory_order_acquire);
    if (!h)
        return;
    const PutOff quiet;
    plugin->take_events(h);
    progress_now();
}

void take_all() noexcept {
    const PutOff quiet; // so that the lock is never our own thread's
    if (Host *h = device.load(std::memory_order_acquire))
        plugin->take_all(h);
}

bool may_send(LinkMap &l, uint32_t slot) noexcept {
    Remote *r = remote_of(l);
    const PutOff quiet;
    return !r || plugin->may_send(r, slot);
}

void tell(LinkMap &l, uint32_t slot) noexcept {
    const PutOff quiet;
    if (Remote *r = remote_of(l))
        plugin->publish(r, slot, false);
    else
        leave_to_parent(l, slot);
}

void before_fork() noexcept {
    if (remote_links.load(std::memory_order_relaxed) != 0)
        inherited_by_children.store(true, std::memory_order_relaxed);
}

void descriptors_moved(int from, int to) noexcept {
    Host *h = device.load(std::memory_order_acquire);
    int *number[8];
    for (unsigned i = 0, n = h ? plugin->descriptors(h, number, 8) : 0; i < n; ++i)
        if (*number[i] == from)
            *number[i] = to;
}

SD_FORK_CODE void device_in_child() noexcept {
    opening.reset();
    settling.reset();
    Host *h = device.load(std::memory_order_relaxed);
    if (!h)
        return;
    int *number[8];
    for (unsigned i = 0, n = plugin->descriptors(h, number, 8); i < n; ++i)
        close_hidden(*number[i]);
    device.store(nullptr, std::memory_order_relaxed);
    tried.store(false, std::memory_order_relaxed);
    remote_links.store(0, std::memory_order_relaxed);
    inherited_by_children.store(false, std::memory_order_relaxed);
    unsettled.store(0, std::memory_order_relaxed);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (attached[i].peer) {
            attached[i].peer = nullptr;
            attached[i].remote = nullptr;
            attached[i].step.store(Attached::over, std::memory_order_relaxed);
        }
}

void always_arm(LinkMap &l, uint32_t slot) noexcept {
    auto &theirs = l.view.slot(slot).side[1 - l.side].control;
    theirs.rx_arm.store(kAlwaysArmed, std::memory_order_relaxed);
    theirs.tx_arm.store(kAlwaysArmed, std::memory_order_relaxed);
}

void attach_for_test(LinkMap &l, const Plugin *with, Host *h, Remote *remote) noexcept {
    plugin = with;
    device.store(h);
    attached[l.index].remote = remote;
    l.transport = &rdma_transport;
}

namespace {

bool open(LinkMap &) noexcept {
    return true;
} // the rest is begin()'s: what a link is called is not known yet

void close(LinkMap &l) noexcept {
    Attached &a = attached[l.index];
    if (!a.peer)
        return;
    const PutOff quiet;
    if (a.step.exchange(Attached::over) < Attached::running)
        unsettled.fetch_sub(1);
    plugin->end(a.peer);
    plugin->detach(a.remote);
    plugin->drop(a.peer);
    a.peer = nullptr;
    a.remote = nullptr;
    remote_links.fetch_sub(1);
}

// Connections between hosts begin as the kernel's.
Offer offer(LinkMap &, uint32_t, uint32_t) noexcept { return Offer::gone; }
int64_t take(LinkMap &, std::atomic<uint32_t> &, uint32_t, uint32_t) noexcept { return -1; }

void publish(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    Remote *r = remote_of(l);
    if (!r) {
        leave_to_parent(l, slot);
        return;
    }
    const PutOff quiet;
    const Slot &s = l.view.slot(slot);
    const bool credit_alone = &arm == &s.side[1 - l.side].control.tx_arm &&
                              s.side[l.side].control.flags.load(std::memory_order_relaxed) == 0;
    plugin->publish(r, slot, credit_alone);
}

void announce(LinkMap &l, unsigned id) noexcept {
    shm_transport.announce(l, id);
    if (Host *h = device.load(std::memory_order_acquire)) {
        const PutOff quiet;
        plugin->arm(h);
    }
}
void withdraw(LinkMap &l, unsigned id) noexcept { shm_transport.withdraw(l, id); }

/// Of a slot that the monitor has given to a new connection, and written to in our memory.
void recycle(LinkMap &l, uint32_t slot) noexcept {
    always_arm(l, slot);
    const PutOff quiet;
    if (Remote *r = remote_of(l))
        plugin->recycle(r, slot, static_cast<uint32_t>(l.view.slot(slot).identity.arrival));
}

void release(LinkMap &l, uint32_t slot) noexcept {
    shm_transport.release(l, slot);
    tell(l, slot);
}

int sleep_on(LinkMap &) noexcept {
    Host *h = device.load(std::memory_order_acquire);
    return h ? plugin->event_fd(h) : -1;
}

} // namespace

} // namespace sd::rdma

namespace sd {

const Transport rdma_transport = {rdma::open,    rdma::close,   rdma::offer,    rdma::take,
                                  rdma::publish, provide_ring,  rdma::announce, rdma::withdraw,
                                  rdma::recycle, rdma::release, rdma::sleep_on};

} // namespace sd
