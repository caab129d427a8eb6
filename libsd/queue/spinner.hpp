// How long a thread looks for what it waits for before it sleeps.
#pragma once
#include "libsd/queue/bell.hpp"

namespace sd {

/// Others wanted this core lately: looking without giving it away keeps them from it.
bool core_is_shared() noexcept;

/// Where others want this core, and one turn of theirs is short: lets them have it once. False: nothing was
/// done.
bool give_core_away() noexcept;

/// Decides how long to look before sleeping: first pure looking, then looking between sched_yield calls.
///
/// Waking an idle core costs tens of microseconds, so looking for about that long never costs more than
/// twice the best choice. A doorbell has a balance: a look that saw something adds what a sleep would have
/// cost, less the time looked; one in vain takes its time off. While the balance is not positive looking is
/// cut to almost nothing. After some short sleeps it is tried again: two ends that both sleep each time
/// would go on doing so for ever. So requests that come at a steady pace cost little more processor time
/// than with kernel TCP, and an answer that comes at once is seen at once. A core shared with other
/// runnable threads is recognised by a yield that takes long; then looking without yielding stops. Where a
/// yield took a time slice, nobody yields for a while, and for longer each time that happens again: a
/// scheduler that goes by virtual time lets a thread that yields wait behind all that sleep. What remains
/// is looking without yielding where that paid, that is, where the other side has a core of its own, and
/// sleeping at once where it did not.
///
/// A profile may have it that a program never looks, or always for long (control::profile).
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
    int64_t at_;         ///< when the clock was read last
    int64_t others_ = 0; ///< time that others had the core for
    bool one_look_;
    unsigned n_ = 0;
    bool looked_long_ = false, only_spins_ = false, yielded_ = false;
    bool looks_always_ = false, tries_ = false; ///< by profile; whether looking pays again
};

} // namespace sd
