// Doorbells: how a thread sleeps until a peer has something for it.
#pragma once
#include "libsd/queue/foreign_ends.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

/// Looking has always paid lately: as a score of tries, and as a balance in nanoseconds.
constexpr int kFullScore = 8, kFullBalance = 480'000;

/// A place to sleep: an eventfd that peers of the same trust domain write, and sockets for those of others.
/// Each thread has one for blocking calls and poll; each epoll instance has one.
struct Bell {
    int efd = -1; ///< hidden descriptor; -1 while no number is left for one: then sleep in short steps
    std::atomic<int> balance{kFullBalance};  ///< what looking has saved lately, see Spinner
    std::atomic<int> short_sleeps{0};        ///< since it was tried last whether looking pays again
    std::atomic<int> spin_score{kFullScore}; ///< how well looking without giving the core away has paid
    std::atomic<bool> used{false};
    ForeignEnds foreign;
    bool announced = false; ///< rung for some listener: the monitor has to be told when that ends
    /// Of a thread's own: what ended its last sleep in poll and is still to be taken, see Sleep.
    bool eventfd_rang = false, only_end_rang = false;
    Bell *pool_next = nullptr; ///< of those that are kept idle, too
    Bell *all_next = nullptr;
    /// By link index: the id under which the other side knows us, 0: not registered. Last, so that the first
    /// of them are on one page with the rest, which a child has to copy.
    uint8_t id[kMaxLinks] = {};
};

/// One that is kept, or a new one. nullptr when no memory is left, or in a sandbox.
[[nodiscard]] Bell *make_bell() noexcept;
/// Tries again to get a number for one that has none.
[[nodiscard]] bool complete_bell(Bell &b) noexcept;
/// Nobody sleeps on it any more. It is kept for the next who wants one, unless `alone` is false, that is,
/// another process may have its eventfd among what it waits for.
void free_bell(Bell *b, bool alone) noexcept;
/// The calling thread's own; freed by the thread-exit hook of vfs.
Bell *thread_bell() noexcept;
/// The same for a caller that only looks for now, and calls bell_id() or complete_bell() before it sleeps: it
/// may have no descriptor yet.
Bell *looking_bell() noexcept;
/// The id under which `b` can be armed on `l`, registering it with the monitor on first use. 0: not possible
/// now, so sleep in short steps.
unsigned bell_id(Bell &b, LinkMap &l) noexcept;
/// The link is about to be unmapped.
void forget_link(LinkMap &l) noexcept;
/// Marks `slot` ready and rings for those of this process that are in `ids` on our own side of the link.
void ring_own(LinkMap &l, uint32_t slot, uint64_t ids) noexcept;
/// Everybody in this process who sleeps looks again.
void ring_all_own() noexcept;
/// After a reconnection: registers all known ids again under the same numbers.
void restore_bells() noexcept;
/// In a forked child: the parent's bells are shared eventfds and belong to the parent.
void drop_bells_in_child() noexcept;
/// Upward::hidden_moved, for the doorbells of this process.
void bells_moved(int from, int to) noexcept;
/// Empties the eventfd alone. False: there was nothing.
bool drain_eventfd(const Bell &b) noexcept;
/// Empties the eventfd after a wake-up, and takes what peers of other domains sent. False: there was nothing.
bool drain(Bell &b) noexcept;
/// Before a sandbox: from now on the monitor rings for peers of other domains.
void close_all_foreign_ends() noexcept;

/// Longest sleep when a wake-up cannot be relied on (no monitor, no id left).
constexpr int64_t kBlindSleepNs = 10'000'000;

} // namespace sd
