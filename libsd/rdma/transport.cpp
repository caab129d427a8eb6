// RDMA as a transport: what libsd does with the plugin.
#include "libsd/rdma/transport.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/layout/discovery_word.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/rdma/devices.hpp"
#include "libsd/transport/slots.hpp"
#include <cerrno>
#include <cstring>
#include <utility>

namespace sd::rdma {

namespace {

/// When anybody last took what has come, by the cycle counter. It decides nothing but when to look again.
std::atomic<uint64_t> last_progress{0};

/// What a link of the table is in the plugin.
struct Attached {
    Host *host; ///< of the peer
    Peer *peer;
    Remote *remote;
    enum Step : uint8_t {
        none,
        greeted, ///< our Hello is at the monitor
        joined,  ///< and we have theirs
        running, ///< they can receive as well
        carried, ///< the queue pair has ended; what is left goes by way of the monitor
        over
    };
    std::atomic<Step> step;
};
constinit Attached attached[kMaxLinks]{};
/// Links whose step is greeted or joined
std::atomic<uint32_t> unsettled{0};
std::atomic<uint32_t> endings_seen[kMostDevices]{}; ///< of each device
/// Another monitor is there, which knows nothing of links that have ended.
std::atomic<bool> monitor_is_another{false};
SD_FORK_STATE constinit Lock settling;

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
    // Not this thread's own: who makes progress looks at all that it waits for before it sleeps. It makes
    // none between that look and the sleep, and where a handler does, the sleep does not begin
    // (sleep_in_kernel()), or the signal ends it.
    if (const Bell *own = self.bell)
        ids &= ~(uint64_t{1} << own->id[l.index]);
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

template <class Fn> void for_each_open(const LinkMap &l, Fn fn) noexcept {
    for (uint32_t slot = 0; slot < kLinkSlots; ++slot) {
        const Slot &s = l.view.slot(slot);
        if (s.identity.state.load(std::memory_order_relaxed) == static_cast<uint32_t>(SlotState::accepted) &&
            !(s.side[l.side].control.flags.load(std::memory_order_relaxed) & kFlagReleased))
            fn(slot);
    }
}

uint32_t count_open(const LinkMap &l) noexcept {
    uint32_t n = 0;
    for_each_open(l, [&](uint32_t) { ++n; });
    return n;
}

void end_link(LinkMap &l, Attached &a) noexcept;

/// The next steps that the other side's make possible. With `settling`.
void advance(LinkMap &l, Attached &a, wire::GreetingReply theirs) noexcept {
    if (a.step.load() == Attached::greeted && theirs.step != wire::kNotGreeted) {
        Hello hello;
        memcpy(&hello, theirs.hello, sizeof hello);
        if (plugin->join(a.peer, hello) != 0) {
            end_link(l, a); // it has never carried anything
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

// A queue pair that has ended. Each side says how far the other's records have come, and the monitor goes on
// from there, since it has both memories (monitor/hosts/lost_links.cpp). Both call the other one home,
// so that what is sent from here on goes over the socket, behind all that is in the ring.
//
// What is published meanwhile: who does not see the step below has written before it, and is carried here.

/// False: what is in the rings cannot go on.
bool ask_to_carry(const LinkMap &l, uint32_t slot, const Arrived *arrived) noexcept {
    wire::Carry c{l.id, l.side, slot, arrived != nullptr, 0, 0, 0};
    if (arrived) {
        c.cls = arrived->cls;
        c.position = arrived->position;
        c.base = arrived->base;
    }
    control::Reply r = control::request(wire::Op::carry, &c, sizeof c);
    control::close_received(r);
    return r.status >= 0;
}

/// Does what is sent go by the socket, and has its receiver followed? It stays so unless both say otherwise.
bool is_home(const SlotSide &sender, const SlotSide &receiver) noexcept {
    const auto offer = static_cast<uint32_t>(sender.credit.path.offer.load(std::memory_order_acquire));
    const uint32_t step = offer & 0xff;
    return (step == kPathNone || step == kPathKernel) &&
           static_cast<uint32_t>(receiver.credit.path.taken.load(std::memory_order_acquire)) == offer;
}

/// Where nobody carries, the connection ends as one whose network does not answer any more; but for one that
/// is back in its socket, or that the other side has ended. A dead one that has not is marked as closed by
/// the monitor. `ends`: a flag that says more.
void reset_slot_of(const LinkMap &l, uint32_t slot, uint32_t ends = 0) noexcept {
    Slot &s = l.view.slot(slot);
    if (is_home(s.side[0], s.side[1]) && is_home(s.side[1], s.side[0]))
        return;
    constexpr uint32_t kClosed = kFlagClosed | kFlagWriteShut;
    auto &flags = s.side[1 - l.side].control.flags;
    const uint32_t now = flags.load(std::memory_order_acquire);
    const bool over = (now & (kFlagReset | kFlagReleased | ends)) || (now & kClosed) == kClosed;
    flags.fetch_or(over ? kFlagDead : kFlagReset | kFlagClosed | kFlagDead | kFlagLost,
                   std::memory_order_seq_cst);
}

void say_arrived(LinkMap &l, const Attached &a, uint32_t slot) noexcept {
    l.view.slot(slot).side[l.side].control.flags.fetch_or(kFlagHome, std::memory_order_seq_cst);
    Arrived so_far = plugin->arrived(a.remote, slot);
    if (so_far.use != static_cast<uint32_t>(l.view.slot(slot).identity.arrival))
        so_far = {}; // of the connection before, and nothing has come of this one
    if (!ask_to_carry(l, slot, &so_far))
        reset_slot_of(l, slot);
    wake(&l, slot, true, true);
}

/// Has the other side ended it, or died, as the monitor says?
bool is_lost_there(const LinkMap &l) noexcept {
    return l.view.header().side[1 - l.side].flags.load(std::memory_order_acquire) &
           (kLinkLost | kLinkClientDead | kLinkServerDead);
}

/// With `settling`.
void end_link(LinkMap &l, Attached &a) noexcept {
    plugin->end(a.peer);
    lost_links.fetch_add(1, std::memory_order_relaxed);
    if (a.step.exchange(Attached::carried, std::memory_order_seq_cst) < Attached::running) {
        unsettled.fetch_sub(1);
        if (!is_lost_there(l)) // it has never carried anything
            refusals.fetch_add(count_open(l), std::memory_order_relaxed);
    }
    for_each_open(l, [&](uint32_t slot) { say_arrived(l, a, slot); });
}

bool is_lost_there(const LinkMap &l, const Attached &a) noexcept {
    const auto step = a.step.load(std::memory_order_relaxed);
    return step >= Attached::greeted && step <= Attached::running && is_lost_there(l);
}

uint32_t endings(unsigned i) noexcept {
    const Host *h = devices[i].load(std::memory_order_acquire);
    return h ? plugin->endings(h)->load(std::memory_order_seq_cst) : 0;
}

bool is_any_ended() noexcept {
    for (unsigned i = 0; i < kMostDevices && devices[i].load(std::memory_order_acquire); ++i)
        if (endings(i) != endings_seen[i].load())
            return true;
    return false;
}

bool is_any_lost() noexcept {
    if (is_any_ended() || monitor_is_another.load())
        return true;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (const LinkMap *l = link_by_index(i); l && is_remote(*l) && is_lost_there(*l, attached[i]))
            return true;
    return false;
}

/// With `settling`.
void end_lost_links() noexcept {
    uint32_t now[kMostDevices];
    for (unsigned i = 0; i < kMostDevices; ++i)
        now[i] = endings(i);
    const bool is_another = monitor_is_another.exchange(false);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        LinkMap *l = link_by_index(i);
        Attached &a = attached[i];
        if (!l || !is_remote(*l) || !a.peer)
            continue;
        const auto step = a.step.load();
        if (step < Attached::carried && (plugin->state(a.peer) == PeerState::ended || is_lost_there(*l, a)))
            end_link(*l, a);
        else if (step == Attached::carried && is_another)
            for_each_open(*l, [&](uint32_t slot) { say_arrived(*l, a, slot); });
    }
    for (unsigned i = 0; i < kMostDevices; ++i)
        endings_seen[i].store(now[i]);
}

/// After each call of the plugin's that takes completions: a sleeper's event may have brought it here in
/// vain, when another thread was at them. Who finds the lock taken leaves it to who has it, and looks once
/// more after that.
void end_links() noexcept {
    while (is_any_lost() && settling.try_lock_unmasked()) {
        end_lost_links();
        settling.unlock_unmasked();
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
}

/// Something of the slot has changed, and its queue pair does not say so any more.
[[gnu::cold]] void publish_carried(LinkMap &l, uint32_t slot) noexcept {
    if (!ask_to_carry(l, slot, nullptr)) {
        reset_slot_of(l, slot, kFlagDead); // what the dead had to say has come by now
        wake(&l, slot, true, true);
    }
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

void publish(LinkMap &l, uint32_t slot, bool credit_alone) noexcept {
    const Attached &a = attached[l.index];
    if (!a.remote) {
        const uint32_t flags = l.view.header().side[l.side].flags.load(std::memory_order_acquire);
        if (!(flags & kLinkLost) || !ask_to_carry(l, slot, nullptr))
            leave_to_parent(l, slot);
        return;
    }
    plugin->publish(a.remote, slot, credit_alone);
    if (is_any_ended()) [[unlikely]]
        end_links();
    if (a.step.load(std::memory_order_seq_cst) == Attached::carried) [[unlikely]] // after that, see above
        publish_carried(l, slot);
}

} // namespace

std::atomic<uint32_t> remote_links{0}, lost_links{0};
std::atomic<uint32_t> MaySleep::count{0};
std::atomic<bool> MaySleep::all_are{false}, MaySleep::some_are_not{false};
std::atomic<uint32_t> refusals{0};

// What is wanted is asked so that the threads of most programs that will open a device are counted from the
// first. It may change at any time; what decides is `all_are`.
bool MaySleep::is_to_be_counted() noexcept {
    const auto is_one = [] { return all_are.load(std::memory_order_seq_cst) || is_wanted(kDiscoveryRdma); };
    if (is_one())
        return true;
    if (!some_are_not.load(std::memory_order_seq_cst))
        some_are_not.store(true, std::memory_order_seq_cst);
    return is_one();
}

void MaySleep::count_all() noexcept {
    if (!all_are.exchange(true, std::memory_order_seq_cst) && some_are_not.load(std::memory_order_seq_cst))
        count.fetch_add(1, std::memory_order_seq_cst);
}

namespace {

/// Is the monitor content with the place's address?
bool may_use(const void *link, const Place &p) noexcept {
    if (!is_wanted(kDiscoveryRdma | kDiscoveryAsk))
        return true;
    const auto &l = *static_cast<const LinkMap *>(link);
    wire::Greeting g{l.id, l.side, wire::kMayUse, {}};
    memcpy(g.hello + wire::kHelloAddress, p.address, sizeof p.address);
    control::Reply r = control::request(wire::Op::greet, &g, sizeof g);
    control::close_received(r);
    return r.status >= 0;
}

bool make_pair(LinkMap &l, uint32_t slot) noexcept {
    Attached &a = attached[l.index];
    const auto &names = l.view.slot(slot).identity;
    Ends ends{l.side == 0 ? names.client.ip : names.server.ip,
              l.side == 0 ? names.server.ip : names.client.ip, nullptr};
    wire::GreetingReply known{};
    if (has_choice())
        known = greet(l, wire::kAsks, nullptr);
    if (known.step != wire::kNotGreeted)
        ends.theirs = known.hello + wire::kHelloAddress;
    Hello ours{};
    Host *host = nullptr;
    Remote *remote = nullptr;
    Peer *peer = make_peer(ends, &ours, &host, may_use, &l);
    if (!peer)
        return false;
    const LinkCalls calls = {ring, wake};
    if (plugin->attach(peer, 0, l.view, l.side, calls, &l, &remote) != 0) {
        plugin->end(peer);
        plugin->drop(peer);
        return false;
    }
    {
        const LockGuard g(settling); // others see both or neither
        a.host = host;
        a.peer = peer;
        a.remote = remote;
        a.step.store(Attached::greeted);
        unsettled.fetch_add(1);
        remote_links.fetch_add(1);
        advance(l, a, greet(l, wire::kGreets, &ours));
    }
    end_links();
    return true;
}

} // namespace

bool begin(LinkMap &l, uint32_t slot) noexcept {
    const PutOff quiet;
    const bool made = make_pair(l, slot);
    if (!made)
        greet(l, wire::kHasNoPair, nullptr); // the monitor asks no more for a while
    return made;
}

void progress_now() noexcept {
    if (!has_device())
        return;
    const PutOff quiet;
    last_progress.store(cpu::cycles(), std::memory_order_relaxed);
    bool idle = true;
    for_each_device([&](Host *h) { idle = plugin->progress(h) == 0 && idle; });
    if (inherited_by_children.load(std::memory_order_relaxed)) [[unlikely]]
        take_from_children();
    if (unsettled.load(std::memory_order_relaxed)) [[unlikely]]
        settle_links();
    if (idle || is_any_ended())
        end_links();
}

void progress_if_due() noexcept {
    constexpr uint64_t kDueTicks = 50'000; // some 20 us: a stream of small messages pays nothing
    if (cpu::cycles() - last_progress.load(std::memory_order_relaxed) > kDueTicks)
        progress();
}

void take_events() noexcept {
    if (!has_device())
        return;
    const PutOff quiet;
    for_each_device([](Host *h) {
        plugin->take_events(h);
        if (MaySleep::count.load(std::memory_order_seq_cst) != 0)
            plugin->arm(h);
    });
    progress_now();
}

void take_all() noexcept {
    const PutOff quiet; // so that the locks are never our own thread's
    if (!has_device())
        return;
    for_each_device([](Host *h) { plugin->take_all(h); });
    {
        const LockGuard g(settling);
        end_lost_links();
    }
    end_links();
}

void take_last() noexcept {
    const PutOff quiet;
    control::request(wire::Op::ends, nullptr, 0); // the monitor may not have seen it yet
    take_all();
}

void end(LinkMap &l) noexcept {
    const PutOff quiet;
    const LockGuard g(settling);
    if (Attached &a = attached[l.index]; a.peer && a.step.load() < Attached::carried)
        end_link(l, a);
}

bool may_send(LinkMap &l, uint32_t slot) noexcept {
    const Attached &a = attached[l.index];
    const PutOff quiet;
    const auto may = [&] {
        return !a.remote || a.step.load(std::memory_order_relaxed) == Attached::carried ||
               plugin->may_send(a.remote, slot);
    };
    if (may())
        return true;
    if (!is_any_lost()) // it has looked at the device itself: who has no room asks again and again
        return false;
    end_links();
    return may();
}

void monitor_has_changed() noexcept { monitor_is_another.store(true, std::memory_order_seq_cst); }

void tell(LinkMap &l, uint32_t slot) noexcept {
    const PutOff quiet;
    publish(l, slot, false);
}

void before_fork() noexcept {
    if (remote_links.load(std::memory_order_relaxed) != 0)
        inherited_by_children.store(true, std::memory_order_relaxed);
}

SD_FORK_CODE void device_in_child() noexcept {
    settling.reset();
    if (!has_device())
        return;
    for (auto &seen : endings_seen)
        seen.store(0, std::memory_order_relaxed);
    remote_links.store(0, std::memory_order_relaxed);
    lost_links.store(0, std::memory_order_relaxed);
    inherited_by_children.store(false, std::memory_order_relaxed);
    unsettled.store(0, std::memory_order_relaxed);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (attached[i].peer) {
            attached[i].host = nullptr;
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
    MaySleep::count_all();
    use_device_for_test(with, h);
    attached[l.index].host = h;
    attached[l.index].remote = remote;
    l.transport = &rdma_transport;
}

namespace {

bool open(LinkMap &) noexcept {
    return true;
} // the rest is begin()'s: what a link is called is not known yet

void close(LinkMap &l) noexcept {
    Attached &a = attached[l.index];
    const PutOff quiet;
    Peer *peer;
    Remote *remote;
    {
        const LockGuard g(settling); // who ends lost links has it while it uses them
        peer = std::exchange(a.peer, nullptr);
        remote = std::exchange(a.remote, nullptr);
        if (!peer)
            return;
        const auto former = a.step.exchange(Attached::over);
        if (former < Attached::running)
            unsettled.fetch_sub(1);
        if (former == Attached::carried)
            lost_links.fetch_sub(1, std::memory_order_relaxed);
    }
    plugin->end(peer);
    plugin->detach(remote);
    plugin->drop(peer);
    remote_links.fetch_sub(1);
    end_links();
}

// Connections between hosts begin as the kernel's.
Offer offer(LinkMap &, uint32_t, uint32_t) noexcept { return Offer::gone; }
int64_t take(LinkMap &, std::atomic<uint32_t> &, uint32_t, uint32_t) noexcept { return -1; }

void publish(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    const PutOff quiet;
    publish(l, slot, &arm == &l.view.slot(slot).side[1 - l.side].control.tx_arm);
}

void announce(LinkMap &l, unsigned id) noexcept {
    shm_transport.announce(l, id);
    if (Host *h = attached[l.index].host) {
        {
            const PutOff quiet;
            plugin->arm(h);
        }
        progress(); // the look that follows may find something without it
    }
}
void withdraw(LinkMap &l, unsigned id) noexcept { shm_transport.withdraw(l, id); }

/// Of a slot that the monitor has given to a new connection, and written to in our memory.
void recycle(LinkMap &l, uint32_t slot) noexcept {
    always_arm(l, slot);
    const PutOff quiet;
    Attached &a = attached[l.index];
    if (!a.remote)
        return;
    plugin->recycle(a.remote, slot, static_cast<uint32_t>(l.view.slot(slot).identity.arrival));
    if (a.step.load(std::memory_order_seq_cst) == Attached::carried) [[unlikely]]
        say_arrived(l, a, slot);
}

void release(LinkMap &l, uint32_t slot) noexcept {
    shm_transport.release(l, slot);
    tell(l, slot);
}

int sleep_on(LinkMap &l) noexcept {
    Host *h = attached[l.index].host;
    return h ? plugin->event_fd(h) : -1;
}

} // namespace

} // namespace sd::rdma

namespace sd {

const Transport rdma_transport = {rdma::open,    rdma::close,   rdma::offer,    rdma::take,
                                  rdma::publish, provide_ring,  rdma::announce, rdma::withdraw,
                                  rdma::recycle, rdma::release, rdma::sleep_on};

} // namespace sd
