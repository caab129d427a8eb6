// The decision between looking and sleeping.
#include "libsd/queue/spinner.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/instructions.hpp"

namespace sd {

namespace {

// Nanoseconds. The sum is about what waking an idle core costs.
constexpr int64_t kSpin = 20'000, kYield = 40'000, kShortSpin = 1'000;
constexpr int kLongLook = kSpin + kYield;
/// What a look that sees something may cost: the sleep, its end and the peer's call that ends it take about
/// as much processor time.
constexpr int kWorth = 30'000;
/// So many short sleeps after which it is tried whether looking pays again.
constexpr int kTrial = 32;
/// For who wants the shortest latency at any price: an end that is silent for longer sleeps all the same.
constexpr int64_t kLongYield = 10'000'000;
/// A yield that takes longer than this and one and a half system calls means that somebody else ran. Alone it
/// takes little more than any call: 230 where one takes 70, and 1600 where one takes 1250, as each changes
/// the page table; with somebody else at least two calls more.
constexpr int64_t kSharedCoreYield = 650;
constexpr int64_t kSlowestCall = 5'000; ///< a tracer may look at each
constexpr int kTimedCalls = 5;          ///< of which the quickest counts
constexpr unsigned kLooks = 16;         ///< between looks at the clock
/// So many times as long as one yield alone: somebody used a long slice, which costs more than sleeping.
constexpr int64_t kCrowdedYield = 125;
constexpr int64_t kCrowdedFor = 20'000'000, kCrowdedLongest = 1'280'000'000;
constexpr int kStall = 8,
              /// So many long slices with fewer than kStall other yields between them: crowded
    kStalls = 3 * kStall;
SD_FORK_STATE std::atomic<int> stalls{0};
constexpr int kProbe = 64; ///< where spinning alone did not pay it is tried this seldom
SD_FORK_STATE std::atomic<int64_t> crowded_until{0}, crowded_for{0};
SD_FORK_STATE std::atomic<int> shared_core{0}; ///< > 0: recent yields gave the core to somebody
/// How long a yield alone takes on this machine; 0: not known yet
SD_FORK_STATE std::atomic<int64_t> alone_at_most{0};

[[gnu::noinline]] int64_t time_calls() noexcept {
    int64_t least = kSlowestCall;
    for (int i = 0; i < kTimedCalls && !sandboxed(); ++i) { // a sandbox may end us for the call
        const int64_t start = sys::now_ns();
        sys::call(SYS_gettid);
        const int64_t took = sys::now_ns() - start;
        least = took < least ? took : least;
    }
    const int64_t longest = kSharedCoreYield + (sandboxed() ? 0 : least * 3 / 2);
    alone_at_most.store(longest, std::memory_order_relaxed);
    return longest;
}

/// Any thread may be the first to find out.
int64_t longest_yield_alone() noexcept {
    const int64_t known = alone_at_most.load(std::memory_order_relaxed);
    return known ? known : time_calls();
}

/// Among threads that only yield to each other no yield takes long; among others, one that yields waits for
/// their slices again and again. A single long wait says nothing, and sleeping because of it would make the
/// others wait: they would all end up asleep.
void note_stall(int64_t now, int64_t took, int64_t alone) noexcept {
    int n = stalls.load(std::memory_order_relaxed);
    if (took <= kCrowdedYield * alone) {
        if (n > 0)
            stalls.store(n - 1, std::memory_order_relaxed);
        return;
    }
    n += kStall;
    int64_t last = crowded_for.load(std::memory_order_relaxed);
    const bool again = last && now - crowded_until.load(std::memory_order_relaxed) < 5 * kCrowdedFor;
    if (n < (again ? kStalls - kStall : kStalls)) {
        stalls.store(n, std::memory_order_relaxed);
        return;
    }
    // Again soon after the last such time: for twice as long.
    last = !again ? kCrowdedFor : last < kCrowdedLongest ? 2 * last : last;
    crowded_for.store(last, std::memory_order_relaxed);
    // All processes try again at the same instants: one that yields among those that still sleep learns
    // nothing.
    crowded_until.store((now + took) / last * last + last, std::memory_order_relaxed);
    stalls.store(0, std::memory_order_relaxed);
}

void add_to_balance(Bell &b, int gain) noexcept {
    const int now = b.balance.load(std::memory_order_relaxed);
    const int sum = now + gain;
    const int next = sum > kFullBalance ? kFullBalance : sum < -kLongLook ? -kLongLook : sum;
    if (next != now)
        b.balance.store(next, std::memory_order_relaxed);
}

struct Yield {
    int64_t took;
    int64_t others; ///< what others used of it; 0: nobody did
};

/// sched_yield at `now`, learning from how long it takes.
Yield timed_yield(int64_t now) noexcept {
    const int64_t alone = longest_yield_alone();
    sys::sched_yield();
    const int64_t took = sys::now_ns() - now;
    note_stall(now, took, alone);
    const int shared = shared_core.load(std::memory_order_relaxed);
    if (took > alone) {
        if (shared < 64)
            shared_core.store(shared + 16, std::memory_order_relaxed);
        return {took, took - alone};
    }
    if (shared > 0)
        shared_core.store(shared - 1, std::memory_order_relaxed);
    return {took, 0};
}

} // namespace

Spinner::Spinner(Bell &b) noexcept : bell_(b), start_(sys::now_ns()) {
    const wire::Spin wish = control::profile.spin.load(std::memory_order_relaxed);
    const bool always = wish == wire::Spin::always;
    bool pays = always || b.balance.load(std::memory_order_relaxed) > 0;
    if (!pays && b.short_sleeps.load(std::memory_order_relaxed) >= kTrial) {
        b.short_sleeps.store(0, std::memory_order_relaxed);
        pays = tries_ = true;
    }
    bool shared = shared_core.load(std::memory_order_relaxed) > 0;
    looks_always_ = always; // how that goes says nothing about shorter looks
    looked_long_ = pays && !always;
    spin_end_ = start_ + (shared ? 0
                          : pays ? kSpin
                                 : kShortSpin); // on a shared core looking keeps the other side away
    yield_end_ = spin_end_ + (always ? kLongYield : pays ? kYield : 0);
    if (tries_) // what is seen later does not pay
        yield_end_ = start_ + kWorth;
    // Among processor-bound threads, a thread that yields waits for all their slices, while one that sleeps
    // is run soon after it is woken.
    if (start_ < crowded_until.load(std::memory_order_relaxed)) {
        looked_long_ = false;
        only_spins_ = true;
        int spins = b.spin_score.load(std::memory_order_relaxed);
        if (spins <= 0) { // counts down to the next try
            b.spin_score.store(spins > -kProbe ? spins - 1 : 1, std::memory_order_relaxed);
            spins = 0;
        }
        spin_end_ = yield_end_ = start_ + (spins > 0 ? kSpin : 0);
    }
    if (wish == wire::Spin::never) [[unlikely]] {
        looked_long_ = only_spins_ = false;
        spin_end_ = yield_end_ = start_;
    }
    at_ = start_;
    one_look_ = spin_end_ == start_;
    if (one_look_)
        n_ = kLooks - 1; // whoever we wait for waits for the core: no looking before it has had it
}

bool Spinner::again() noexcept {
    if (++n_ % kLooks != 0) {
        cpu::pause();
        return true;
    }
    // Where somebody waits for the core there was one look since the clock was read last, which is not worth
    // reading it again.
    const int64_t now = one_look_ ? at_ : sys::now_ns();
    at_ = now;
    if (now < spin_end_)
        return true;
    if (now >= yield_end_) {
        if (looked_long_)
            add_to_balance(bell_, -kLongLook);
        if (only_spins_ && spin_end_ > start_)
            bell_.spin_score.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }
    one_look_ = shared_core.load(std::memory_order_relaxed) > 0;
    const Yield yield = timed_yield(now);
    yielded_ = true;
    at_ = now + yield.took;
    if (yield.others) {
        yield_end_ += yield.others; // time that others used is not spent on looking
        others_ += yield.others;
        spin_end_ = now;
    }
    n_ = kLooks - 1 -
         // Look a few times between yields; once when somebody waits for the core
         (one_look_ ? 0 : kLooks / 2);
    return true;
}

bool give_core_away() noexcept {
    if (shared_core.load(std::memory_order_relaxed) <= 0)
        return false;
    const int64_t now = sys::now_ns();
    if (now < crowded_until.load(std::memory_order_relaxed))
        return false;
    timed_yield(now);
    return true;
}

bool core_is_shared() noexcept {
    return shared_core.load(std::memory_order_relaxed) > 0 ||
           crowded_until.load(std::memory_order_relaxed) > sys::coarse_now_ns();
}

void Spinner::paid() noexcept {
    if (n_ == 0)
        return;
    const int64_t looked = at_ - start_ - others_;
    if (tries_ && looked < kWorth)
        bell_.balance.store(kLongLook, std::memory_order_relaxed);
    else if (!looks_always_)
        add_to_balance(bell_, kWorth - static_cast<int>(looked < 2 * kLongLook ? looked : 2 * kLongLook));
    if (!yielded_ && spin_end_ > start_ && bell_.spin_score.load(std::memory_order_relaxed) < kFullScore)
        bell_.spin_score.store(kFullScore, std::memory_order_relaxed);
}

void Spinner::slept(Bell &b, int64_t ns, bool event) noexcept {
    // Had we looked for as long as we can, might we have seen it? The wake-up itself is part of what was
    // measured.
    if (event && ns < 2 * kLongLook)
        b.short_sleeps.fetch_add(1, std::memory_order_relaxed);
}

} // namespace sd
