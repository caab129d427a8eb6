// Pools that this process sends from.
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/control/pool.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include <linux/memfd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sd {

static_assert(kLedgerSeals == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
static_assert(kPoolSeals == (kLedgerSeals | F_SEAL_FUTURE_WRITE));

namespace {

SD_FORK_STATE constinit Pool<OwnPool> own_pools;

/// Two memfds and their mappings, given back unless they are kept.
struct Memory {
    int bytes_fd = -1, ledger_fd = -1;
    void *bytes = nullptr, *ledger = nullptr;
    uint64_t size = 0;

    /// The writable mapping comes first: after the seal nobody gets one, whoever is given the descriptor.
    long make(uint64_t n) noexcept {
        size = n;
        if (!control::file_may_be(n))
            return -EFBIG;
        SpareNumbers spare;
        long fd = sys::memfd_create("socksdirect-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || (bytes_fd = static_cast<int>(hide_fd(static_cast<int>(fd)))) < 0)
            return fd < 0 ? fd : bytes_fd;
        if (const long r = sys::ftruncate(bytes_fd, n); r < 0)
            return r;
        bytes = sys::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, bytes_fd, 0);
        if (!bytes)
            return -ENOMEM;
        if (const long r = sys::fcntl(bytes_fd, F_ADD_SEALS, kPoolSeals); r < 0)
            return r;
        fd = control::make_memory("socksdirect-ledger", sizeof(PoolLedger));
        if (fd < 0 || (ledger_fd = static_cast<int>(hide_fd(static_cast<int>(fd)))) < 0)
            return fd < 0 ? fd : ledger_fd;
        ledger = sys::mmap(nullptr, sizeof(PoolLedger), PROT_READ | PROT_WRITE, MAP_SHARED, ledger_fd, 0);
        return ledger ? 0 : -ENOMEM;
    }
    void give_back() const noexcept {
        if (bytes)
            sys::munmap(bytes, size);
        if (ledger)
            sys::munmap(ledger, sizeof(PoolLedger));
        if (bytes_fd >= 0)
            close_hidden(bytes_fd);
        if (ledger_fd >= 0)
            close_hidden(ledger_fd);
    }
};

long name_pool(OwnPool &p) noexcept {
    return name_to_monitor({p.link_id, p.side, p.slot, p.name}, {p.bytes_fd, p.ledger_fd}, &p.name);
}

} // namespace

long name_to_monitor(const wire::Pool &body, const int (&fds)[2], uint64_t *name) noexcept {
    control::Reply r = control::request(wire::Op::pool, &body, sizeof body, fds, 2);
    control::close_received(r);
    if (r.status == 0 && r.length == sizeof(wire::PoolReply))
        *name = r.as<wire::PoolReply>().pool;
    else if (r.status == 0)
        r.status = -EPROTO;
    return r.status;
}

long make_pool(int fd, uint64_t bytes, OwnPoolView *view) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || f->kind != FileKind::stream)
        return kNotAccelerated;
    if (bytes < kLeastPool || bytes > kMostPool || bytes % 4096 != 0)
        return -EINVAL;
    if (f->link->transport != &shm_transport || sandboxed() ||
        mappings_are_locked.load(std::memory_order_relaxed))
        return -EOPNOTSUPP;
    Memory m;
    long r = m.make(bytes);
    OwnPool *p = r == 0 ? own_pools.allocate() : nullptr;
    if (!p) {
        m.give_back();
        return r == 0 ? -ENOMEM : r;
    }
    auto &ledger = *static_cast<PoolLedger *>(m.ledger);
    ledger.magic = kLedgerMagic;
    p->size = bytes;
    p->ledger = &ledger;
    p->name = 0;
    p->link_id = f->link->id;
    p->ofd = f->ofd;
    p->slot = f->slot;
    p->side = f->side;
    p->generation = f->ofd->generation;
    p->bytes_fd = m.bytes_fd;
    p->ledger_fd = m.ledger_fd;
    p->ended.store(false, std::memory_order_relaxed);
    r = name_pool(*p);
    if (r < 0) {
        m.give_back();
        own_pools.release(p);
        return r;
    }
    __atomic_store_n(&p->bytes, static_cast<uint8_t *>(m.bytes), __ATOMIC_RELEASE);
    // Where another connection has the slot by now, its receiver is told that there is no such pool.
    f->mine->credit.pool.store(p->name, std::memory_order_release);
    *view = {p, p->bytes, p->size, p->ledger};
    return 0;
}

void drop_pool(void *pool) noexcept {
    OwnPool &p = *static_cast<OwnPool *>(pool);
    SD_ASSERT(p.bytes && p.ledger); // it is dropped once
    if (!p.ended.load(std::memory_order_relaxed) && p.ledger->taken.load(std::memory_order_acquire) == 0) {
        // Nothing was handed over, and nobody will come for it.
        const wire::PoolRef ref{p.link_id, p.side, 0, p.name};
        control::tell(wire::Op::end_pool, &ref, sizeof ref);
    }
    const Memory m{p.bytes_fd, p.ledger_fd, p.bytes, p.ledger, p.size};
    __atomic_store_n(&p.bytes, nullptr, __ATOMIC_RELEASE);
    m.give_back();
    p.bytes_fd = p.ledger_fd = -1;
    own_pools.release(&p);
}

namespace {

/// Private memory takes the place of what others can read: the same bytes, until they are written. What was
/// written before this is in the pool; a write that comes at this moment is in one of the two.
SD_FORK_CODE void make_private(OwnPool &p) noexcept {
    uint8_t *bytes = __atomic_load_n(&p.bytes, __ATOMIC_ACQUIRE);
    if (bytes && !p.ended.exchange(true, std::memory_order_acq_rel))
        sys::mmap(bytes, p.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, p.bytes_fd, 0);
}

} // namespace

void end_own_pools() noexcept {
    own_pools.for_each(make_private);
    stop_own_channels();
    stop_taken_channels();
}

bool announces_pool(const Ofd &o) noexcept {
    bool any = false;
    own_pools.for_each([&](const OwnPool &p) {
        any = any || (__atomic_load_n(&p.bytes, __ATOMIC_ACQUIRE) && is_pool_of(p, o) &&
                      !p.ended.load(std::memory_order_relaxed));
    });
    return any;
}

void restore_pools() noexcept {
    restore_channels();
    own_pools.for_each([](OwnPool &p) {
        if (__atomic_load_n(&p.bytes, __ATOMIC_ACQUIRE) && !p.ended.load(std::memory_order_relaxed))
            (void)name_pool(p);
    });
}

void pools_moved(int from, int to) noexcept {
    channels_moved(from, to);
    taken_pools_moved(from, to);
    own_pools.for_each([=](OwnPool &p) {
        for (int *fd : {&p.bytes_fd, &p.ledger_fd})
            if (*fd == from)
                *fd = to;
    });
}

// The parent goes on handing over from its pools; what the child writes there is its own.
SD_FORK_CODE void pools_fork_child() noexcept {
    own_pools.reset_lock();
    own_pools.for_each(make_private);
}

} // namespace sd
