// Giving memory back: rings that grew and have been idle since go back to the inline ring of the slot.
#include "libsd/vfs/streams/ring_shrink.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// A connection whose sending ring grew, as of some moment: it is looked up again by generation before use.
struct Grown {
    File *file;
    uint32_t generation;
    uint64_t tail; ///< as of the last walk
};

constexpr int64_t kWalkEveryNs = 200'000'000;

SD_FORK_STATE constinit Lock grown_lock;
MapVector<Grown> grown;
std::atomic<uint32_t> grown_count{0};
std::atomic<int64_t> next_walk{0};

/// With the send token: back to the inline ring, and the pages of the old one back to the kernel. Everything
/// sent was consumed, so nobody reads there but the receiver, which will look at exactly one word: the change
/// record.
void shrink(File &f) noexcept {
    TxState &s = f.ofd->tx.s;
    const uint32_t left = s.cls;
    const uint32_t kept = static_cast<uint32_t>(s.tail - s.base) & (kRingSize[left] - 1) & ~4095u;
    if (!ring::change_class(s, f.tx_place, 0)) [[unlikely]]
        return;
    // The rings that were used on the way up go too.
    for (uint32_t cls = 1; cls < kRingClasses; ++cls) {
        uint8_t *ring = f.tx_place.at(cls);
        if (!ring)
            continue;
        if (cls != left) {
            sys::madvise(ring, kRingSize[cls], MADV_REMOVE);
        } else {
            sys::madvise(ring, kept, MADV_REMOVE);
            sys::madvise(ring + kept + 4096, kRingSize[cls] - kept - 4096, MADV_REMOVE);
        }
    }
}

/// Keeps the File open while we look at it. False: it was closed, or is another connection by now.
bool pin(const Grown &g) noexcept {
    File &f = *g.file;
    if (!take_reference(f))
        return false;
    if (f.generation.load(std::memory_order_acquire) == g.generation)
        return true;
    release_file(&f);
    return false;
}

/// Of a pinned File. True when the entry is done with.
bool visit_pinned(Grown &g) noexcept {
    File &f = *g.file;
    if (f.kind != FileKind::stream)
        return true;
    SendClaim c(ConnectionSnapshot(f), f);
    if (!c)
        return true;
    TxState &s = f.ofd->tx.s;
    // Giving back waits for the lock of the memory's file, which a stranger may hold.
    if (s.cls == 0 || f.link->foreign.load(std::memory_order_relaxed))
        return true;
    bool idle = s.tail == g.tail;
    g.tail = s.tail;
    if (!idle || !ring::refresh_credit(s, f.peer->credit.consumed) || s.credit != s.tail || !may_shrink_ring(f))
        return false;
    shrink(f);
    return true;
}

bool visit(Grown &g) noexcept {
    if (!pin(g))
        return true;
    bool done = visit_pinned(g);
    release_file(g.file);
    return done;
}

} // namespace

void note_grown(File &f) noexcept {
    // Called with the send token: only a short critical section, and no waiting for a walk that wants the
    // token.
    uint64_t mask;
    sys::block_signals(&mask);
    if (grown_lock.try_lock_unmasked()) {
        const uint32_t generation = f.generation.load(std::memory_order_relaxed);
        if (f.stream.grown_mark != generation + 1 && grown.push({&f, generation, 0})) {
            f.stream.grown_mark = generation + 1;
            grown_count.fetch_add(1, std::memory_order_relaxed);
        }
        grown_lock.unlock_unmasked();
    }
    sys::restore_signals(&mask);
}

int64_t shrink_idle_rings() noexcept {
    if (grown_count.load(std::memory_order_relaxed) == 0)
        return INT64_MAX;
    int64_t now = sys::now_ns();
    if (now < next_walk.load(std::memory_order_relaxed))
        return next_walk.load(std::memory_order_relaxed);
    next_walk.store(now + kWalkEveryNs, std::memory_order_relaxed);
    uint64_t mask;
    sys::block_signals(&mask);
    if (grown_lock.try_lock_unmasked()) {
        for (size_t i = grown.size(); i-- > 0;)
            if (visit(grown[i])) {
                if (grown[i].file->stream.grown_mark == grown[i].generation + 1)
                    grown[i].file->stream.grown_mark = 0;
                grown.remove_unordered(i);
                grown_count.fetch_sub(1, std::memory_order_relaxed);
            }
        grown_lock.unlock_unmasked();
    }
    sys::restore_signals(&mask);
    return grown_count.load(std::memory_order_relaxed) ? now + kWalkEveryNs : INT64_MAX;
}

SD_FORK_CODE void ring_shrink_fork_child() noexcept {
    // The parent looks after what it had; both may shrink the same ring, the token decides who.
    grown_lock.reset();
}

} // namespace sd
