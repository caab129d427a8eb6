// Taking a token over from another thread; the argument stands in token.hpp.
#include "libsd/queue/token.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

constinit thread_local ThreadSelf self{};
ThreadRecord *thread_table[kMaxSegments];

namespace {
bool no_registration(unsigned) noexcept { return false; }
void no_deferred() noexcept {}

/// Spins briefly, then gives the core away, so that an owner on the same core can finish.
class Backoff {
  public:
    /// True each time it is worth checking whether the other thread is alive.
    bool pause() noexcept {
        if (++n_ < 64) {
            __builtin_ia32_pause();
            return false;
        }
        sys::sched_yield();
        return n_ % 1024 == 0;
    }

  private:
    unsigned n_ = 0;
};

bool is_busy_on(const ThreadRecord &r, uint64_t name) noexcept {
    for (const auto &b : r.busy)
        if (b.load(std::memory_order_acquire) == name)
            return true;
    return false;
}

} // namespace

bool (*register_thread)(unsigned) noexcept = no_registration;
void (*run_deferred)() noexcept = no_deferred;

bool thread_alive(const ThreadRecord &r) noexcept {
    if (r.state.load(std::memory_order_acquire) == 0)
        return false;
    auto tid = static_cast<int>(r.tid.load(std::memory_order_relaxed));
    // The thread id is enough: signal 0 to a thread of any process of the family. A recycled id only makes us wait longer.
    return sys::call(SYS_tkill, tid, 0) != -ESRCH;
}

std::atomic<uint64_t> *Claim::take(Token &token, uint64_t name) noexcept {
    if (self.depth >= kBusyDepth)
        return nullptr;
    if (self.index[seg_] == 0 && !register_thread(seg_))
        return nullptr;
    const uint32_t me = self.index[seg_];
    ThreadRecord *table = thread_table[seg_];

    for (Backoff wait;;) { // the takeover lock
        uint32_t holder = 0;
        if (token.lock.compare_exchange_strong(holder, me, std::memory_order_acquire))
            break;
        if (wait.pause() && (holder == me || holder >= kSegThreadLimit || !thread_alive(table[holder])) &&
            token.lock.compare_exchange_strong(holder, me, std::memory_order_acquire))
            break;
    }
    unsigned d = self.depth;
    self.depth = d + 1;
    asm volatile("" ::: "memory");
    auto *busy = &self.record[seg_]->busy[d];
    busy->store(name, std::memory_order_relaxed);
    uint32_t old = token.owner.exchange(me, std::memory_order_seq_cst);
    if (old != 0 && old != me && old < kSegThreadLimit) {
        heavy_barrier();
        for (Backoff wait; is_busy_on(table[old], name);)
            if (wait.pause() && !thread_alive(table[old]))
                break;
        token.takeovers.fetch_add(1, std::memory_order_relaxed);
    }
    token.lock.store(0, std::memory_order_release);
    return busy;
}

} // namespace sd
