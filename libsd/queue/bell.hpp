// Doorbells: how a thread sleeps until a peer has something for it, and how long it looks before it sleeps.
#pragma once
#include "libsd/queue/token.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

/// A place to sleep: an eventfd that peers write. Each thread has one for blocking calls and poll; each epoll instance has one.
struct Bell {
    int efd = -1; ///< hidden descriptor; -1 while no number is left for one: then sleep in short steps
    uint8_t id[kMaxLinks] = {}; ///< by link index: the id under which the other side knows us, 0: not registered
    std::atomic<int> score{8};      ///< how well looking has paid lately, see Spinner
    std::atomic<int> spin_score{8}; ///< the same for looking without giving the core away
    std::atomic<bool> used{false};
    Bell *pool_next = nullptr;
    Bell *all_next = nullptr;
};

/// nullptr when no memory is left, or in a sandbox.
Bell *make_bell() noexcept;
/// Tries again to get a number for one that has none.
bool complete_bell(Bell &b) noexcept;
void free_bell(Bell *b) noexcept;
/// The calling thread has something to give back when it ends; set by vfs.
extern void (*watch_thread)() noexcept;
/// The calling thread's own; freed by the thread-exit hook of vfs.
Bell *thread_bell() noexcept;
/// The same for a caller that only looks for now, and calls bell_id() or complete_bell() before it sleeps: it may have no descriptor yet.
Bell *looking_bell() noexcept;
/// The id under which `b` can be armed on `l`, registering it with the monitor on first use. 0: not possible now, so sleep in short steps.
unsigned bell_id(Bell &b, LinkMap &l) noexcept;
/// The link is about to be unmapped.
void forget_link(LinkMap &l) noexcept;
/// Marks `slot` ready and rings for those of this process that are in `ids` on our own side of the link.
void ring_own(LinkMap &l, uint32_t slot, uint64_t ids) noexcept;
/// After a reconnection: registers all known ids again under the same numbers.
void restore_bells() noexcept;
/// In a forked child: the parent's bells are shared eventfds and belong to the parent.
void drop_bells_in_child() noexcept;
/// hidden_moved, for the eventfds of this process.
void bells_moved(int from, int to) noexcept;
/// Empties the eventfd after a wake-up.
void drain(Bell &b) noexcept;

/// Longest sleep when a wake-up cannot be relied on (no monitor, no id left).
constexpr int64_t kBlindSleepNs = 10'000'000;

/// Others wanted this core lately: looking without giving it away keeps them from it.
bool core_is_shared() noexcept;

/// Where others want this core, and one turn of theirs is short: lets them have it once. False: nothing was done.
bool give_core_away() noexcept;

/// Decides how long to look before sleeping: first pure looking, then looking between sched_yield calls.
///
/// Waking an idle core costs tens of microseconds, so looking for about that long never costs more than twice the best choice. Where
/// looking did not pay several times in a row it is cut to almost nothing; where a sleep turned out short, it is restored.
/// A core shared with other runnable threads is recognised by a yield that takes long; then looking without yielding stops.
/// Where a yield took a time slice, nobody yields for a while, and for longer each time that happens again: a scheduler that goes by
/// virtual time lets a thread that yields wait behind all that sleep. What remains is looking without yielding where that paid, that
/// is, where the other side has a core of its own, and sleeping at once where it did not.
class Spinner {
  public:
    explicit Spinner(Bell &b) noexcept;
    /// Call between looks. False: time to sleep.
    bool again() noexcept;
    /// Something came while looking.
    void paid() noexcept;
    /// The caller slept; `ns` is how long, `event` whether a peer's event ended the sleep.
    static void slept(Bell &b, int64_t ns, bool event) noexcept;

  private:
    Bell &bell_;
    int64_t start_, spin_end_, yield_end_;
    int64_t at_; ///< when the clock was read last
    bool one_look_;
    unsigned n_ = 0;
    bool looked_long_ = false, only_spins_ = false, yielded_ = false;
};

} // namespace sd
