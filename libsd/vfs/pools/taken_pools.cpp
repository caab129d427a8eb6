// Pools of peers that are mapped here.
#include "libsd/base/upward.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/pool.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include <linux/futex.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<TakenPool> taken_pools;

TakenPool *find_pool(const File &f, uint64_t name) noexcept {
    for (TakenPool *p = f.stream.pools; p; p = p->next)
        if (p->name == name)
            return p;
    return nullptr;
}

unsigned count_pools(const File &f) noexcept {
    unsigned n = 0;
    for (const TakenPool *p = f.stream.pools; p; p = p->next)
        ++n;
    return n;
}

/// Shared memory whose size stays, with exactly these seals. Its size; 0: it is not that.
uint64_t sealed_size(int fd, int seals) noexcept {
    struct stat st {};
    struct statfs fs {};
    if (sys::fcntl(fd, F_GET_SEALS) != seals || sys::call(SYS_fstat, fd, sys::arg(&st)) < 0 ||
        sys::call(SYS_fstatfs, fd, sys::arg(&fs)) < 0 || fs.f_type != TMPFS_MAGIC || st.st_size <= 0)
        return 0;
    return static_cast<uint64_t>(st.st_size);
}

void wake_owner(PoolLedger &ledger) noexcept {
    // Before the look at `waiters`: the owner does the two in the other order.
    ledger.releases.fetch_add(1, std::memory_order_seq_cst);
    if (ledger.waiters.load(std::memory_order_seq_cst) != 0)
        sys::futex(&ledger.releases, FUTEX_WAKE, INT32_MAX);
}

void drop_reference(TakenPool &p) noexcept {
    const uint32_t refs = p.refs.fetch_sub(1, std::memory_order_acq_rel);
    SD_ASSERT(refs != 0);
    if (refs != 1)
        return;
    if (p.bytes)
        sys::munmap(const_cast<uint8_t *>(p.bytes), p.size);
    sys::munmap(p.ledger, sizeof(PoolLedger));
    p.bytes = nullptr;
    if (p.end_fd >= 0)
        close_hidden(p.end_fd);
    p.end_fd = -1;
    taken_pools.release(&p);
}

/// What is asked for: a channel is taken by who would map pages, a pool by who reads in place.
enum class Wanted { pool, channel, either };

/// What a pool and a channel that were just taken have in common.
TakenPool *begun(TakenPool *p, void *ledger, uint64_t name) noexcept {
    p->ledger = static_cast<PoolLedger *>(ledger);
    p->name = name;
    p->next = nullptr;
    p->refs.store(1, std::memory_order_relaxed);
    return p;
}

/// Takes a channel, as map_pool() does a pool.
TakenPool *open_channel(const control::Reply &r, uint64_t name, long *error) noexcept {
    *error = -ENOMEM;
    const long end = hide_copy(r.fd[0]);
    void *ledger =
        end < 0 ? nullptr
                : sys::mmap(nullptr, sizeof(ChannelLedger), PROT_READ | PROT_WRITE, MAP_SHARED, r.fd[1], 0);
    const bool sound = ledger && static_cast<ChannelLedger *>(ledger)->magic == kChannelMagic;
    if (ledger && !sound)
        *error = -EPROTO;
    TakenPool *p = sound ? taken_pools.allocate() : nullptr;
    if (!p) {
        if (ledger)
            sys::munmap(ledger, sizeof(ChannelLedger));
        if (end >= 0)
            close_hidden(static_cast<int>(end));
        return nullptr;
    }
    p->bytes = nullptr;
    p->size = 0;
    p->end_fd = static_cast<int>(end);
    *error = 0;
    return begun(p, ledger, name);
}

/// Maps what the monitor has given. nullptr, and `*error` says why.
TakenPool *map_pool(const control::Reply &r, uint64_t name, Wanted wanted, long *error) noexcept {
    *error = -EPROTO;
    if (r.fds != 2 || sealed_size(r.fd[1], kLedgerSeals) != sizeof(PoolLedger))
        return nullptr;
    const uint64_t size = sealed_size(r.fd[0], kPoolSeals);
    if (size == 0 && wanted != Wanted::pool && is_channel(r.fd[0]))
        return open_channel(r, name, error);
    if (size < kLeastPool || size > kMostPool || wanted == Wanted::channel)
        return nullptr;
    *error = -ENOMEM;
    void *bytes = sys::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, r.fd[0], 0);
    void *ledger =
        bytes ? sys::mmap(nullptr, sizeof(PoolLedger), PROT_READ | PROT_WRITE, MAP_SHARED, r.fd[1], 0) : nullptr;
    TakenPool *p = ledger ? taken_pools.allocate() : nullptr;
    if (!p) {
        if (bytes)
            sys::munmap(bytes, size);
        if (ledger)
            sys::munmap(ledger, sizeof(PoolLedger));
        return nullptr;
    }
    p->bytes = static_cast<const uint8_t *>(bytes);
    p->size = size;
    *error = 0;
    return begun(p, ledger, name);
}

} // namespace

TakenPool *pool_of_handle(const File &f, const ring::HandleRecord &where, uint32_t length) noexcept {
    TakenPool *p = find_pool(f, where.pool);
    const uint64_t offset = offset_of(where);
    if (p && p->end_fd >= 0) {
        if (buffer_of(where) >= kChannelNumbers)
            return nullptr;
        const auto &entry = reinterpret_cast<const ChannelLedger *>(p->ledger)->entry[buffer_of(where)];
        const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
        return entry.handle.load(std::memory_order_acquire) != 0 && offset <= bytes && length <= bytes - offset
                   ? p
                   : nullptr;
    }
    return p && offset <= p->size && length <= p->size - offset && buffer_of(where) < kPoolBuffers ? p : nullptr;
}

namespace {

long take_pool(File &f, uint64_t name, Wanted wanted) noexcept {
    // A process that may map nothing any more; nothing is lost meanwhile.
    if (sandboxed() || mappings_are_locked.load(std::memory_order_relaxed))
        return -ENOMEM;
    const ConnectionSnapshot b(f);
    const wire::PoolRef ref{f.link->id, 1u - f.side, 0, name};
    control::Reply r = control::request(wire::Op::peer_pool, &ref, sizeof ref);
    if (r.status < 0)
        return r.status == -ENOENT || r.status == -EXDEV || r.status == -ENOSYS ? -EPROTO : -ENOMEM;
    long error;
    TakenPool *p = map_pool(r, name, wanted, &error);
    control::close_received(r);
    if (!p)
        return error;
    {
        ReceiveClaim c(b, f);
        if (!c)
            error = c.error();
        else if (find_pool(f, name))
            error = -EEXIST; // another thread was faster
        else if (count_pools(f) >= kPoolsOfDirection)
            error = -EPROTO;
        else {
            // Before it is the connection's: who closes that unmaps the ledger as soon as the token is free.
            p->ledger->taken.store(1, std::memory_order_release);
            p->next = f.stream.pools;
            f.stream.pools = p;
        }
    }
    if (error < 0)
        drop_reference(*p);
    return error == -EEXIST ? 0 : error;
}

} // namespace

long take_pool_of_next(File &f) noexcept {
    uint64_t name;
    {
        const ConnectionSnapshot b(f);
        ReceiveClaim c(b, f);
        if (!c)
            return c.error();
        // As a peek comes to it, which passes over the urgent byte and leaves it there.
        RxState ahead = b.ofd->rx.s;
        std::atomic<uint64_t> scratch{0};
        ring::Record rec{};
        int r = ring::next_record(ahead, f.rx_place, scratch, &rec);
        if (r == ring::kUrgentNext && urgent_mark(f) == ahead.head && !is_inline(f)) {
            ring::skip_urgent(ahead);
            r = ring::next_record(ahead, f.rx_place, scratch, &rec);
        }
        if (r != ring::kHandleNext)
            return 0;
        const ring::HandleRecord where = ring::handle_at(ahead, f.rx_place);
        if (find_pool(f, where.pool))
            return pool_of_handle(f, where, rec.length) ? 0 : -EPROTO;
        name = where.pool;
    }
    return take_pool(f, name, Wanted::either);
}

void take_announced_pool(File &f) noexcept {
    const uint64_t name = f.peer->credit.pool.load(std::memory_order_acquire);
    if (name == 0 || name == f.stream.pool_seen.load(std::memory_order_relaxed) ||
        f.link->transport != &shm_transport)
        return;
    // Bytes are copied meanwhile, so one that cannot be had now is asked for again, but not each time.
    constexpr uint32_t kPause = 64;
    if (const uint32_t left = f.stream.pool_pause.load(std::memory_order_relaxed); left != 0) {
        f.stream.pool_pause.store(left - 1, std::memory_order_relaxed);
        return;
    }
    const long r = take_pool(f, name, Wanted::pool);
    if (r == 0 || r == -EPROTO)
        f.stream.pool_seen.store(name, std::memory_order_relaxed);
    else
        f.stream.pool_pause.store(kPause, std::memory_order_relaxed);
}

void take_announced_channel(File &f) noexcept {
    const uint64_t name = f.peer->credit.pool.load(std::memory_order_acquire);
    if (name == 0 || f.link->transport != &shm_transport)
        return;
    // Bytes are copied where it cannot be had.
    (void)take_pool(f, name, Wanted::channel);
    f.stream.channel_seen.store(name, std::memory_order_relaxed);
}

void count_released(TakenPool &p, uint32_t buffer, uint64_t bytes) noexcept {
    // pool_of_handle() has checked the number that the peer wrote. A channel's ledger is another one.
    SD_ASSERT(p.end_fd < 0 && buffer < kPoolBuffers);
    p.ledger->released[buffer].fetch_add(static_cast<uint32_t>(bytes), std::memory_order_release);
    wake_owner(*p.ledger);
}

void release_taken(void *pool, uint32_t epoch, uint32_t buffer, uint64_t bytes) noexcept {
    TakenPool &p = *static_cast<TakenPool *>(pool);
    if (bytes != 0 && epoch == p.epoch.load(std::memory_order_relaxed) && buffer < kPoolBuffers)
        count_released(p, buffer, bytes);
    drop_reference(p);
}

DetachedPools detach_pools(File &f) noexcept {
    const DetachedPools had{f.stream.pools, f.stream.channel.load(std::memory_order_relaxed)};
    f.stream.channel.store(nullptr, std::memory_order_relaxed); // with the send token
    f.stream.pools = nullptr;
    f.stream.pool_seen.store(0, std::memory_order_relaxed);
    f.stream.channel_seen.store(0, std::memory_order_relaxed);
    f.stream.pool_pause.store(0, std::memory_order_relaxed);
    return had;
}

void let_go_of_pools(const DetachedPools &had, bool over, uint64_t link_id, unsigned peer_side) noexcept {
    let_go_of_channel(had.channel, over);
    for (TakenPool *first = had.first; first;) {
        TakenPool &p = *first;
        first = p.next;
        if (over) {
            p.ledger->ended.store(1, std::memory_order_release);
            wake_owner(*p.ledger);
            const wire::PoolRef ref{link_id, peer_side, 0, p.name};
            control::tell(wire::Op::end_pool, &ref, sizeof ref);
        }
        drop_reference(p);
    }
}

void taken_pools_moved(int from, int to) noexcept {
    taken_pools.for_each([=](TakenPool &p) {
        if (p.end_fd == from)
            p.end_fd = to;
    });
}

void stop_taken_channels() noexcept {
    taken_pools.for_each([](TakenPool &p) {
        if (p.end_fd >= 0)
            p.ledger->taken.store(0, std::memory_order_release);
    });
}

// What the parent has received in place stays readable here as long as somebody here may read it, and only
// the parent says when its owner may use it again.
SD_FORK_CODE void taken_pools_fork_child() noexcept {
    taken_pools.reset_lock();
    taken_pools.for_each([](TakenPool &p) { p.epoch.fetch_add(1, std::memory_order_relaxed); });
}

} // namespace sd
