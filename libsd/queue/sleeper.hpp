// Going to sleep without missing a wake-up: announce, arm, barrier, look again, sleep, withdraw.
//
// There is one way to sleep here, and this is its order. A waiter does 1 to 6, whoever has something for it
// does A to D (notify() in transport/link.cpp). Both may be any number of threads at any time.
//
//   1 announce  sleep_mask |= id, on each link     A publish data, room, flags or a request
//   2 arm       arm |= id, in each slot            B read the arm; 0: done
//   3 barrier   every core passes a full fence     C take the ids from the arm, mark the slot for each
//   4 look      there is something: do not sleep   D ring those of the ids that are in sleep_mask
//   5 sleep     in the kernel, on the bell
//   6 withdraw  sleep_mask &= ~id
//
// Nobody sleeps through what was published, although A and B have no fence between them. The barrier (3)
// falls, on the sender's core, either before B: then B sees the arm of 2 and goes on; or after B, so after A
// in program order: then 4 sees what A published. The swap in C is a locked instruction, hence a full fence,
// so D cannot read a sleep_mask older than the swap: it has the id of 1, since 1 comes before 2.
//
// The barrier is dear (it interrupts the other cores; 13 to 18 us in a virtual machine), so who sleeps often
// goes without it: with kArmFenced in the arm word. The waiter sets that after a barrier (settle()), if its
// id is still in the word. Then the word has not been 0 since before the barrier: nobody but this waiter puts
// the id there (a handler of the thread may have: so not if one has run), and a sender takes all ids at once.
// C leaves the bit. So as long as it is there the word is not 0, and: whoever read 0 at B did so before that
// barrier, and what it published at A could be seen after the barrier, so at any 4 that finds the bit at 2.
// Whoever comes to B later comes to C. 2 and C are locked instructions on one word: if C is the later one it
// finds the id and rings; if 2 is, 4 sees what A published. So 3 is not needed where 2 finds the bit.
// tests/model/fenced.pml goes through all states of this.
// A sender that finds the bit and no id some times in a row takes it away, so that nobody pays for one that
// is never asleep. That, a sender of an earlier version, the monitor or a waiter that swaps the word with 0
// make the next 2 find no bit. For room there is no such bit: who reads need not come to C
// (Control::tx_want).
//
// After 6 an arm may be left. It costs a sender a swap and the next look of this waiter a mark in vain.
// A bell that was rung stays readable until it is drained, so D may come at any time before, in or after 5.
// It may be drained at any time but between 4 and 5: what its ring was for is seen at 4. A thread drains its
// own before 1 of the next sleep, so that no system call stands between a wake-up and its message.
//
// The monitor does A to D for what a dead process left (mark_and_ring() in monitor/records/link.cpp). It
// needs no barrier of the waiter's, since B is left out: it swaps the word with 0 in any case, behind a full
// fence. If that swap comes before 2 in the order of the word, 4 sees what was published at A. Else it finds
// the id, and C and D are as above. It swaps and does not read, so that each arming is answered once, by the
// monitor or by a sender.
#pragma once
#include "libsd/base/probes.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/transport/transport.hpp"

namespace sd {

/// One sleep of one thread. Not async-signal-safe to share; a nested handler makes one of its own.
class Sleeper {
  public:
    /// `until`: CLOCK_MONOTONIC in ns, INT64_MAX for no limit.
    Sleeper(Bell &bell, int64_t until) noexcept : bell_(bell), until_(until) {}

    /// 1. The id to arm with; 0: the other side does not know the bell there, so that nobody would ring it.
    /// bell_id() asks for ids, before.
    static unsigned announce(const Bell &bell, LinkMap &l) noexcept {
        const unsigned id = bell.id[l.index];
        if (id) {
            l.transport->announce(l, id);
            SD_PROBE3(announce, l.id, l.side, id);
        }
        return id;
    }
    unsigned announce(LinkMap &l) noexcept {
        const unsigned id = announce(bell_, l);
        blind_ = blind_ || id == 0;
        return id;
    }
    /// 2. `word`: an arm word of our own side. True: 3 is needed.
    static bool arm(std::atomic<uint64_t> &word, unsigned id) noexcept {
        return !(word.fetch_or(uint64_t{1} << id, std::memory_order_seq_cst) & kArmFenced);
    }
    /// After 3, of a word of this link, not one for room, that may have been armed with the id before: from
    /// now on 2 finds it fenced. Not if a signal handler has run in this thread since 2. Of an epoll
    /// instance: with its lock, held since before 2.
    static void settle(const LinkMap &l, std::atomic<uint64_t> &word, unsigned id) noexcept {
        uint64_t now = word.load(std::memory_order_relaxed);
        while (l.transport == &shm_transport && (now >> id & 1) && !(now & kArmFenced) &&
               !word.compare_exchange_weak(now, now | kArmFenced, std::memory_order_seq_cst)) {
        }
    }
    /// 3. What the caller reads after it is what 4 means.
    static void barrier() noexcept { heavy_barrier(); }
    /// 6.
    static void withdraw(const Bell &bell, LinkMap &l) noexcept {
        if (const unsigned id = bell.id[l.index])
            l.transport->withdraw(l, id);
    }
    void withdraw(LinkMap &l) noexcept { withdraw(bell_, l); }

    /// Something has to be done at that time, whoever rings or not.
    void not_after(int64_t ns) noexcept { until_ = ns < until_ ? ns : until_; }
    /// Nobody can be counted on to ring (no monitor, no id): the sleep is short.
    void nobody_rings() noexcept { blind_ = true; }
    bool blind() const noexcept { return blind_; }
    /// How long 5 may take from `now` on: ns, -1 for ever.
    int64_t left(int64_t now) const noexcept {
        if (until_ != INT64_MAX && until_ <= now)
            return 0;
        const int64_t most = until_ == INT64_MAX ? -1 : until_ - now;
        return blind_ && (most < 0 || most > kBlindSleepNs) ? kBlindSleepNs : most;
    }

  protected:
    Bell &bell_;

  private:
    int64_t until_;
    bool blind_ = false;
};

} // namespace sd
