// Mapping links, and waking the other side.
#include "libsd/transport/link.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/answer.hpp"
#include "libsd/layout/fake_layout.hpp"
#include "libsd/transport/arena_claims.hpp"
#include <initializer_list>
#include <linux/membarrier.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<LinkMap> link_pool;
SD_FORK_STATE constinit Lock table_lock;
std::atomic<LinkMap *> link_table[kMaxLinks];
std::atomic<uint32_t> table_high{0};
std::atomic<uint64_t> emptied{0}; ///< bytes of address space kept by empty()

/// Rings a waiter of another trust domain, who has made the socket and may have done anything to it: nothing
/// here depends on its flags. When its queue is full the waiter is rung already (see Bell), and when the
/// waiter has ended it the monitor tries.
[[gnu::noinline]] void ring_foreign(LinkMap &l, unsigned id, int fd) noexcept {
    const char ring = 1;
    const long r = sandboxed()
                       ? -EPERM // a sandbox of ours knows write only
                       : sys::call(SYS_sendto, fd, sys::arg(&ring), 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
    if (r < 0 && r != -EAGAIN)
        upward.ring_through_monitor(l, id);
}

/// Rings one waiter of the other side.
void ring_bell(LinkMap &l, unsigned id) noexcept {
    SD_PROBE3(wake, l.id, 1 - l.side, id);
    auto &cached = l.peer_bell[id];
    uint32_t now = l.far.header().bell_generation[1 - l.side][id].load(std::memory_order_acquire);
    int fd = cached.fd.load(std::memory_order_acquire);
    if (fd < 0 || cached.generation.load(std::memory_order_relaxed) != now) {
        fd = static_cast<int>(upward.fetch_peer_bell(l, id));
        if (fd < 0)
            return; // without a monitor the waiter does not rely on being woken: it sleeps in short steps
    }
    if (fd & LinkMap::PeerBell::kSocket) [[unlikely]] {
        ring_foreign(l, id, fd & ~LinkMap::PeerBell::kSocket);
        return;
    }
    uint64_t one = 1;
    sys::write(fd, &one, sizeof one);
}

/// Or would be locked into memory.
bool space_is_limited() noexcept {
    rlimit limit{};
    if (sandboxed()) // a sandbox may end us for the question
        return mappings_are_locked.load(std::memory_order_relaxed);
    return mappings_are_locked.load(std::memory_order_relaxed) ||
           sys::call(SYS_prlimit64, 0, RLIMIT_AS, 0, sys::arg(&limit)) < 0 || limit.rlim_cur != RLIM_INFINITY;
}

/// Takes what is mapped away; the next link takes the place of the empty memory.
void empty(LinkMap &l) noexcept {
    const bool kept = put_empty_memory(l.view.base, kLinkMapped);
    unmap_arenas(l, kept);
    if (kept) {
        emptied.fetch_add(kLinkMapped, std::memory_order_relaxed);
        return;
    }
    sys::munmap(l.view.base, kLinkMapped);
    l.view.base = nullptr;
}

} // namespace

bool put_empty_memory(void *at, size_t bytes) noexcept {
    if (space_is_limited() ||
        !sys::mmap(at, bytes, PROT_READ | PROT_WRITE, // private memory would count against RLIMIT_DATA
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0))
        return false;
    sys::madvise(at, bytes, MADV_DONTDUMP);
    return true;
}

bool is_empty_memory(uint64_t from, uint64_t to) noexcept {
    bool found = false;
    link_pool.for_each([&](LinkMap &l) {
        auto within = [&](const uint8_t *p, uint64_t bytes) {
            const auto at = reinterpret_cast<uint64_t>(p);
            return p && from >= at && to <= at + bytes;
        };
        found = found || within(l.view.base, kLinkMapped);
        for (auto &side : l.former_part)
            for (unsigned k = 1; k < kArenaParts; ++k)
                found = found || within(side[k], kFirstArena << (k - 1));
    });
    return found;
}

uint64_t mapped_link_bytes() noexcept {
    uint64_t bytes =
        emptied.load(std::memory_order_relaxed) + mapped_arena_bytes.load(std::memory_order_relaxed);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (link_by_index(i))
            bytes += kLinkMapped;
    return bytes;
}

std::atomic<bool> mappings_are_locked{false};

bool links_can_be_mapped() noexcept {
    rlimit limit{};
    if (mappings_are_locked.load(std::memory_order_relaxed))
        return false;
    return sys::call(SYS_prlimit64, 0, RLIMIT_AS, 0, sys::arg(&limit)) < 0 ||
           limit.rlim_cur > mapped_link_bytes() + kLinkMapped;
}

LinkMap *map_link(int memfd, uint64_t id, unsigned side, uint8_t reach, LinkPeer peer, long *error) noexcept {
    *error = -EPROTO;
    struct stat st;
    long seals = sys::fcntl(memfd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
        return nullptr;
    if (sys::call(SYS_fstat, memfd, sys::arg(&st)) < 0)
        return nullptr;
    // Nobody can change the size, so it is what tells which kind of link this is.
    const bool fake = static_cast<size_t>(st.st_size) == kFakeBytes;
    const bool remote = static_cast<size_t>(st.st_size) == kTwoHalves;
    if (!fake && !remote && static_cast<size_t>(st.st_size) != kLinkBytes)
        return nullptr;
    const size_t begins_at = fake || remote ? fake_half(side) : 0;
    *error = -ENOMEM;
    LinkMap *l = mappings_are_locked.load(std::memory_order_relaxed) ? nullptr : link_pool.allocate();
    if (!l)
        return nullptr;
    uint8_t *const former = l->view.base;
    void *p =
        sys::mmap(former, kLinkMapped, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_NORESERVE | (former ? MAP_FIXED : 0), memfd, static_cast<long>(begins_at));
    if (!p) {
        link_pool.release(l);
        return nullptr;
    }
    if (former)
        emptied.fetch_sub(kLinkMapped, std::memory_order_relaxed);
    sys::madvise(p, kLinkMapped, MADV_DONTDUMP);
    const LinkView v{static_cast<uint8_t *>(p)};
    l->view = l->far = v;
    __atomic_store_n(&l->side, static_cast<uint8_t>(side), __ATOMIC_RELAXED);
    l->memfd = memfd;
    l->begins_at = begins_at;
    l->transport = fake ? &fake_transport : remote ? &rdma_transport : &shm_transport;
    cpu::choose_look();
    // What the header says is not asked: a server that found a link to be none would refuse everybody's.
    if (l->transport->open(*l)) {
        LockGuard g(table_lock);
        for (uint32_t i = 0; i < kMaxLinks; ++i) {
            if (link_table[i].load(std::memory_order_relaxed))
                continue;
            l->id = id;
            l->index = i;
            l->listener_id = v.header().listener_id;
            l->reach = reach;
            l->users.store(reach != 0 ? 2 : 1, std::memory_order_relaxed);
            l->slot_high = 0;
            l->retired.store(reach == 0, std::memory_order_relaxed);
            l->narrow.store(false, std::memory_order_relaxed);
            // One that leads to another host is this process's and its monitor's alone.
            const bool foreign = peer != LinkPeer::own && !remote;
            l->foreign.store(foreign, std::memory_order_relaxed);
            l->inherited.store(false, std::memory_order_relaxed);
            l->forks_after_accept = 0;
            l->in_vain.store(0, std::memory_order_relaxed);
            l->syn_tail = 0;
            l->listens.store(0, std::memory_order_relaxed);
            for (auto &word : l->agreed)
                word.store(0, std::memory_order_relaxed);
            l->idle_slots.truncate(0);
            l->zombie_slots.truncate(0);
            l->zombie_first = 0;
            for (auto &b : l->peer_bell)
                b.fd.store(LinkMap::PeerBell::kUnknown, std::memory_order_relaxed);
            unclaim_arenas(*l);
            link_table[i].store(l, std::memory_order_release);
            if (space_is_limited())
                narrow_arena(*l);
            else if (foreign)
                hold_senders_to_mapped(*l);
            if (i >= table_high.load(std::memory_order_relaxed))
                table_high.store(i + 1, std::memory_order_release);
            return l;
        }
        l->transport->close(*l);
    }
    l->memfd = -1;
    empty(*l);
    link_pool.release(l);
    return nullptr;
}

void links_moved(int from, int to) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i)) {
            if (l->memfd == from)
                l->memfd = to;
            for (auto &b : l->peer_bell) {
                for (const int kind : {0, LinkMap::PeerBell::kSocket}) {
                    int expected = from | kind;
                    b.fd.compare_exchange_strong(expected, to | kind);
                }
            }
        }
}

void unmap_link(LinkMap *l) noexcept {
    SD_ASSERT(l->users.load(std::memory_order_relaxed) == 0);
    {
        LockGuard g(table_lock);
        SD_ASSERT(link_table[l->index].load(std::memory_order_relaxed) == l);
        link_table[l->index].store(nullptr, std::memory_order_release);
    }
    for (auto &b : l->peer_bell)
        if (int fd = b.fd.exchange(-1); fd >= 0)
            close_hidden(fd & ~LinkMap::PeerBell::kSocket);
    l->transport->close(*l);
    unclaim_arenas(*l);
    close_hidden(l->memfd);
    l->memfd = -1;
    l->id = 0;
    empty(*l);
    link_pool.release(l);
}

SD_FORK_CODE LinkMap *link_by_index(uint32_t index) noexcept {
    return index < kMaxLinks ? link_table[index].load(std::memory_order_acquire) : nullptr;
}
SD_FORK_CODE uint32_t link_table_high() noexcept { return table_high.load(std::memory_order_acquire); }

LinkMap *find_link(uint64_t id, unsigned side) noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i); l && l->id == id && l->side == side)
            return l;
    return nullptr;
}

SD_FORK_CODE void reset_link_locks_in_child() noexcept {
    table_lock.reset();
    link_pool.reset_lock();
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i)) {
            l->slot_lock.reset();
            l->part_lock.reset();
        }
}

void notify_slow(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    l.transport->publish(l, slot, arm);
}

namespace {

/// C of queue/sleeper.hpp: the ids, taken out of the word. Any thread.
uint64_t take_armed(LinkMap &l, std::atomic<uint64_t> &arm) noexcept {
    constexpr uint8_t kInVain = 16;
    const uint64_t word = arm.fetch_and(kArmFenced, std::memory_order_seq_cst), ids = word & kUsableDoorbells;
    if (ids) {
        l.in_vain.store(0, std::memory_order_relaxed);
    } else if (const uint8_t n = l.in_vain.load(std::memory_order_relaxed); n < kInVain) {
        l.in_vain.store(static_cast<uint8_t>(n + 1), std::memory_order_relaxed);
    } else if (uint64_t fenced = kArmFenced; word == kArmFenced) {
        arm.compare_exchange_strong(fenced, 0, std::memory_order_seq_cst); // not if it was armed since
    }
    return ids;
}

} // namespace

// What a sender does for sleepers (A to D in queue/sleeper.hpp, where the argument is).
void wake_armed(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &arm) noexcept {
    const uint64_t ids = take_armed(l, arm);
    if (!ids)
        return;
    const unsigned peer = 1u - l.side;
    for (uint64_t m = ids; m; m &= m - 1) {
        unsigned id = static_cast<unsigned>(__builtin_ctzll(m));
        // Word first, then summary: a waiter clears the summary before it collects the words.
        l.far.ready_word(peer, id, slot / 64).fetch_or(uint64_t{1} << (slot % 64), std::memory_order_seq_cst);
        l.far.ready_summary(peer, id).fetch_or(uint64_t{1} << (slot / 64), std::memory_order_seq_cst);
    }
    uint64_t asleep = l.far.header().side[peer].sleep_mask.load(std::memory_order_seq_cst) & ids;
    for (; asleep; asleep &= asleep - 1)
        ring_bell(l, static_cast<unsigned>(__builtin_ctzll(asleep)));
}

void ring_sleepers(LinkMap &l) noexcept {
    cpu::in_order_for_membarrier();
    uint64_t asleep =
        l.far.header().side[1 - l.side].sleep_mask.load(std::memory_order_seq_cst) & kUsableDoorbells;
    for (; asleep; asleep &= asleep - 1)
        ring_bell(l, static_cast<unsigned>(__builtin_ctzll(asleep)));
}

void notify_acceptors(LinkMap &l) noexcept {
    auto &side = l.far.header().side[1];
    cpu::in_order_for_membarrier();
    if (side.syn_arm.load(std::memory_order_seq_cst) == 0)
        return;
    uint64_t ids = take_armed(l, side.syn_arm);
    ids &= side.sleep_mask.load(std::memory_order_seq_cst);
    for (; ids; ids &= ids - 1)
        ring_bell(l, static_cast<unsigned>(__builtin_ctzll(ids)));
}

void heavy_barrier() noexcept {
    if (sys::membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) < 0) {
        sys::membarrier(MEMBARRIER_CMD_GLOBAL); // slower (a grace period), for kernels before 4.16
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
}

SD_START_CODE void register_barrier() noexcept {
    sys::membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    sys::membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

} // namespace sd
