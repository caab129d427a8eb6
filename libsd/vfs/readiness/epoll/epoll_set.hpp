// An epoll instance from the inside; used by the epoll files, poll and select.
//
// The program's descriptor is a real epoll set of the kernel. Kernel descriptors are registered there with
// the program's own data and cost us nothing. Accelerated sockets are EpollItems of ours. Listeners and
// nested sets are both: their kernel side is in the kernel's set too. Once there are items, the kernel's set
// also holds the instance's doorbell and the control channel, with data words that point into our own memory,
// which no program can mean; they are taken out of what is returned.
//
// An item of a connection is in one of these places:
//
//            found in a ready bitmap, or touched by the program
//     cold ---------------------------------------------------> hot
//      ^  nothing there after the barrier      armed when idle   |
//      +------------------- unconfirmed <------------------------+
//
// Hot: looked at on each pass. Cold: a peer that has something marks it in the bitmap.
//
// An arm word is stored without a fence that the peer takes part in, so an item is only cold after a
// heavy_barrier() and one more look. All unconfirmed items share one barrier: before a sleep, or now and then
// while the caller never sleeps.
//
// Why nobody sleeps through an event. An item is armed for data always, but for room only where the last look
// found none: else each message that the peer reads would wake us. Other threads change what that look saw:
// MOD brings back an item that had fired, a send takes the room. So:
//  A1 an item goes cold only by a look after the barrier that finds nothing to report, and nothing missing
//     that it was not armed for before that barrier; otherwise it is armed for that, too, and there is one
//     more barrier and one more look (confirm());
//  A2 what no peer brings about (ADD, MOD, DEL, a send that finds no room, shutdown) makes the item hot with
//     the lock, and rings if there are sleepers; a sleeper counts itself with the lock, before it arms, so
//     that it finds each item hot or is rung;
//  A3 a peer's mark makes the item hot, whoever collects it, and it is armed no longer. So whoever is awake
//     in a wait arms everything again before it sleeps or leaves while others sleep (hand_over()), and rings
//     for them if something is ready or cannot be armed;
//  A4 a ring may be taken by any waiter, also one that sleeps in the kernel because there was no accelerated
//     member when it came (Epoll::plain): such a one is rung for until it has come back to look;
//  A5 with another monitor the doorbell may get another id, and nobody marks for us under the former one: who
//     finds the id changed makes all members of the link hot (collect(), which comes between the announcing
//     and the arming), and who changed it rings afterwards (restore_bells()), for those that armed before;
//  A6 the first accelerated member is counted (count_ours()) before the kernel's set has one of our data
//     words, and sets that this one is nested in are told: who waits in the kernel only knows the word then.
// tests/model/arming.pml has spin look at every order of these steps, and at variants in which one of them is
// missing.
//
// Locking: `ctl_lock(file)` first (the item list of a File, and all changes to membership), then Epoll::lock,
// then the lock of a nested set (they cannot form a loop: the kernel has checked). None is held while
// sleeping. Signal handlers are put off meanwhile.
#pragma once
#include "libsd/vfs/readiness/biased_lock.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include <cstddef>

namespace sd {

inline constexpr uint32_t kEdge = static_cast<uint32_t>(EPOLLET);
inline constexpr uint32_t kWrites = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;

/// What each pass over busy members needs stands in the first two lines, which ask_ahead() asks for.
struct alignas(64) EpollItem {
    File *file = nullptr;
    uint64_t data = 0;
    uint32_t events = 0;
    enum class List : uint8_t { none, hot, unconfirmed } list = List::none;
    bool kernel_only = false; ///< remembered, because the socket may become ours; the kernel's set does all
    bool kernel_too = false;  ///< listener, nested set: registered in the kernel's set as well
    bool always_hot = false;  ///< those two: never armed by slot
    bool off = false;         ///< one-shot, and reported
    bool due = false;         ///< edge-triggered: report if ready, whatever changed since (after ADD and MOD)
    bool tx_armed = false;    ///< when it was armed last, that was for room as well
    bool watched = false;     ///< its set is edge-triggered in another: see Epoll::arrivals
    LinkMap *link = nullptr;  ///< stream: in the slot table of this link
    uint32_t slot = 0;
    uint32_t in_vain = 0;  ///< looks since it was last ready
    uint64_t last = 0;     ///< Epoll::reports when it was last worth looking at
    uint64_t pass = 0;     ///< last pass that looked at it
    uint64_t reported = 0; ///< last pass that reported it

    // What the last look saw; edge-triggered items report what is new since.
    uint32_t level = 0; ///< events
    uint32_t state = 0; ///< flags of both directions
    uint32_t peer_flags = 0;
    uint32_t rx_class = 0;
    uint64_t rx_at = 0; ///< end of the data that was there
    uint64_t rx_base = 0;
    uint64_t tx_key = 0; ///< identifies the full ring whose draining was reported

    Epoll *set = nullptr;
    EpollItem *next_of_file = nullptr;
    EpollItem *next_in_slot = nullptr;
    EpollItem *pool_next = nullptr;
    int fd = -1;        ///< the number it was added under
    uint32_t place = 0; ///< in Epoll::items
    uint32_t list_place = 0;
    uint32_t nested_place = 0; ///< in Epoll::nested
    uint32_t added = 0;        ///< which of the set's registrations it is, counted from the beginning
    uint32_t bell_epoch = 0;   ///< listener: control::epoch() + 1 for which the doorbell is registered

    // `watched`: what of the above was counted in Epoll::arrivals.
    uint32_t counted_level = 0;
    uint32_t counted_state = 0;
    uint64_t counted_rx = 0;

    uint64_t socket_at = 0; ///< with paths: bytes that had arrived at its socket at the last look
};
static_assert(offsetof(EpollItem, set) <= 128);

struct SetLink {
    LinkMap *link;
    EpollItem **slot; ///< kLinkSlots entries, sparse
    uint32_t members;
    uint32_t flags; ///< of both sides' headers, as last seen
    uint32_t id;    ///< of the doorbell, as last seen: what cold members are armed with; 0: none is cold
};

/// With more than this, items that were looked at in vain a few times are armed
constexpr unsigned kHotItems = 64;
constexpr unsigned kVainLooks = 8;      ///< ... so often; arming and waking costs as much as many looks
constexpr uint64_t kIdleReports = 1024; ///< an item that was not ready while so many others were is armed
constexpr unsigned kNestedSets = 64;    ///< nested instances with accelerated members, per set
constexpr unsigned kSpareItems = 16;
constexpr unsigned kBatch = 128; ///< accelerated events returned by one call
/// ... while the program is busy: what these need is still in the first-level cache (and their pages in its
/// address table) when the program comes to read and answer them. Where a process talks to itself, more of
/// what one thread sent can be put in order.
constexpr unsigned kBusyBatch = 16;
constexpr int64_t kKernelLookNs =
    50'000; ///< kernel descriptors are looked at this often while accelerated ones keep us busy
constexpr uint32_t kBusyStreak = 64; ///< ... once so many waits in a row were answered without the kernel
/// Is the kernel to be asked in this round? `streak`: waits in a row that were answered without it; `rounds`,
/// and when it was asked last, are kept here. A program that is not busy gets everything that is ready at
/// once, as from the kernel; who looks again and again asks `by_time` alone.
inline bool kernel_is_due(uint32_t streak, bool by_time, uint32_t &rounds, int64_t &asked) noexcept {
    if (!by_time && streak < kBusyStreak)
        return true;
    if (++rounds % 8 != 0)
        return false;
    const int64_t now = sys::now_ns();
    if (now - asked < kKernelLookNs)
        return false;
    asked = now;
    return true;
}

/// A count that is changed with the lock and may be read without it.
class Count {
  public:
    operator uint32_t() const noexcept { return n_.load(std::memory_order_relaxed); }
    void operator=(uint32_t n) noexcept { n_.store(n, std::memory_order_relaxed); }
    void operator++() noexcept { *this = *this + 1; }
    void operator--() noexcept { *this = *this - 1; }

  private:
    std::atomic<uint32_t> n_{0};
};

struct Epoll {
    BiasedLock lock;
    File *file = nullptr;
    Bell *bell = nullptr; ///< made with the first accelerated member
    /// Has had an accelerated member: nobody may wait for it without us any more
    std::atomic<bool> has_bell{false};
    Count ours;  ///< accelerated members; 0: waits go straight to the kernel
    Count users; ///< 1 for the File, 1 for each wait in progress
    std::atomic<bool> dead{false};
    int fd = -1; ///< one of its numbers; check with set_fd()
    Count streams;
    Count duals; ///< members with kernel_too
    std::atomic<int32_t> kernel_members{0};
    /// Waits that sleep or are about to, each of a set that this one is in counted here as well; while there
    /// are any, no item may be unarmed.
    Count sleepers;
    /// Waits that began without accelerated members and have not noticed yet that there are some
    Count plain;
    std::atomic<uint32_t> fork_count{0}; ///< generation of the process for which the private state is valid
    uint32_t born = 0;                   ///< forks this process had done when the instance was made
    uint32_t used_in = 0; ///< fork_count of the last process that made, changed or waited for it
    /// A member of a set that was only inherited, which has become a kernel socket
    struct Late {
        int fd;
        epoll_event registration;
        uint64_t cookie; ///< of the socket, as the number may be another's when the set is used
    };
    MapVector<Late> late;
    /// Hidden set in the kernel's: the sockets of members with two paths, edge-triggered. So what has woken a
    /// sleep can be taken out again, and leaves the kernel's set, which others may poll, as it was. -1: none.
    int sockets = -1;
    uint32_t sockets_name = 0; ///< of that one, for this process; never used twice, 0: none
    bool passed = false;       ///< to another process, perhaps, with SCM_RIGHTS
    bool channel_known = false;
    bool foreign_known = false; ///< the bell's foreign ends are in the kernel's set
    uint32_t channel_epoch = 0;
    int channel_fd = -1; ///< as registered with the kernel's set
    uint32_t cursor = 0, link_cursor = 0;
    bool hot_mixed = false;  ///< `hot` is not in the order of registration
    uint64_t ordered_at = 0; ///< `reports` when it was last put into that order
    uint32_t streak = 0;     ///< waits answered without sleeping
    uint32_t rounds = 0;
    bool kernel_first = false;
    bool talks_to_itself = false; ///< has accepted, among its members, from its own process
    bool has_moved = false;       ///< a member is to follow its connection to the kernel
    bool wants_bells = false;     ///< something could not be armed for want of a doorbell id
    int64_t bells_at = 0;         ///< when ids were last asked for because of that
    int64_t kernel_look = 0;      ///< when the kernel's set was last looked at
    /// As of the last any_ready(): when the first of what peers hold back is due
    int64_t corked_until = INT64_MAX;
    int64_t barrier_at = 0; ///< when unconfirmed items were last confirmed
    bool unfenced = false;  ///< something was armed that needs a barrier (queue/sleeper.hpp)
    uint64_t reports = 0, passes = 0;
    bool watched = false;  ///< an edge-triggered member of another set
    uint64_t arrivals = 0; ///< `watched`: what members had to tell so far, be it that they were ready already
    uint32_t added = 0;    ///< registrations so far
    MapVector<EpollItem *> items, hot, unconfirmed;
    MapVector<SetLink> links;
    EpollItem **spare_table = nullptr; ///< the empty slot table of a link that has no members any more
    MapVector<uint16_t> link_place;    ///< by LinkMap::index: place in links + 1
    EpollItem *nested[kNestedSets] = {};
    EpollItem *spare = nullptr; ///< for short-lived members: saves the pool's lock
    uint32_t spares = 0;
    bool keeps_room = false; ///< released, with its arrays
    Epoll *pool_next = nullptr;
};

// --- epoll_items.cpp
BiasedLock &ctl_lock(const File &f) noexcept;
/// A number under which the instance is open, -1 when there is none.
int set_fd(const Epoll &x) noexcept;
/// In a child on first use of an instance from before the fork.
void refresh_after_fork(Epoll &x) noexcept;
extern std::atomic<uint32_t> fork_generation; ///< how many forks lie between the first process and this one
extern std::atomic<uint32_t> forks_done;      ///< children of this process, plus one if it is a child

/// Epoll::lock for a scope.
class SetGuard : public BiasedGuard {
  public:
    explicit SetGuard(Epoll &x) noexcept : BiasedGuard(current(x).lock) {}

  private:
    static Epoll &current(Epoll &x) noexcept {
        if (x.fork_count.load(std::memory_order_acquire) != fork_generation.load(std::memory_order_relaxed))
            [[unlikely]]
            refresh_after_fork(x);
        return x;
    }
};

/// With the lock: is it still what `f` stands for, which was found under the number `ep`? It may have been
/// closed since, and have become another's.
bool is_open(const Epoll &x, const File &f, int ep) noexcept;
/// Before a process changes the set, or waits for it: what a forked child put off until then is done. With
/// the set's lock.
void begin_use(Epoll &x) noexcept;
/// Puts off until then to have the kernel's set know of a member that has become a kernel socket. False: no
/// memory.
[[nodiscard]] bool put_off(Epoll &x, int fd, const epoll_event &registration) noexcept;
/// Ends what ++Epoll::users began; the last one frees the instance. Without the lock.
void set_unuse(Epoll &x) noexcept;
/// For a File of kind epoll that is not installed yet. False: no memory.
[[nodiscard]] bool new_set(File &f, int fd) noexcept;
// The rest with ctl_lock() of the item's File and the instance's lock.
EpollItem *new_item(Epoll &x) noexcept;
/// Of an item that is entered nowhere.
void drop_item(Epoll &x, EpollItem &i) noexcept;
/// Enters the connection of the item in the slot table of its link. False: no memory.
[[nodiscard]] bool attach_stream(Epoll &x, EpollItem &i) noexcept;
void detach_stream(Epoll &x, EpollItem &i) noexcept;
/// Counts one more accelerated member. False: no doorbell to be had.
[[nodiscard]] bool count_ours(Epoll &x) noexcept;
/// Ends a registration; the kernel's side of it is the caller's business.
void remove_item(Epoll &x, EpollItem &i) noexcept;
/// After ADD, MOD and the like: to be reported if ready; somebody who sleeps has to look at it and arm it.
void item_changed(Epoll &x, EpollItem &i) noexcept;
void make_hot(Epoll &x, EpollItem &i) noexcept;
void leave_list(Epoll &x, EpollItem &i) noexcept;
/// Rings the instance's own doorbell.
void ring_own(Epoll &x) noexcept;

// --- epoll_sockets.cpp; with the set's lock unless it says otherwise
/// Has the kernel tell of the socket of a member with two paths.
void watch_socket(Epoll &x, EpollItem &i) noexcept;
/// No longer.
void unwatch_socket(Epoll &x, EpollItem &i) noexcept;
/// Takes out what sockets have told. A look at the members follows.
void drain_sockets(Epoll &x) noexcept;
/// Of a member that the program takes out and may put in again at once, as many do for each message: where
/// its socket is idle, the kernel keeps watching it. Also with ctl_lock().
void keep_watching(Epoll &x, EpollItem &i) noexcept;
/// Without a lock: the File goes, or is a kernel socket from now on; its number is open still.
void end_leftover_watch(File &f) noexcept;
/// In a child: those watched were its parent's.
void forget_watches(Epoll &x) noexcept;
void close_socket_set(Epoll &x) noexcept;

// --- epoll_joining.cpp
/// The connection of a member that is still registered with the kernel's set is ours by now: it is to be
/// reported if it is ready, and the kernel has not reported it yet.
void joined_as_member(Epoll &x, EpollItem &i) noexcept;

// --- epoll_look.cpp
/// What the descriptor reports now, all events; no kernel call.
uint32_t file_events(File &f) noexcept;
/// The item's reportable events: its interest, triggering mode and one-shot state applied. With the lock.
/// `thorough`: costly members too.
uint32_t look(EpollItem &i, bool thorough) noexcept;

/// Connections that have arrived at a listener so far, for edge triggering.
uint64_t listener_arrivals(struct Listener &l) noexcept;
/// With the lock: counts Epoll::arrivals from here on, in sets beneath it as well.
void watch_set(Epoll &x) noexcept;

// --- epoll_scan.cpp; all with the lock
/// One pass over everything that may be ready. Reports at most `room` events.
unsigned scan(Epoll &x, epoll_event *out, unsigned room, bool thorough) noexcept;
/// Would a scan report something? Loses no edge.
bool any_ready(Epoll &x) noexcept;
/// The same for who has armed, and issued a heavy_barrier(), without letting go of the lock since.
bool any_ready_after_barrier(Epoll &x) noexcept;
/// Without locks: members whose connections have moved become the kernel's (moved.hpp), also those of sets in
/// the set.
void follow_moved_members(Epoll &x, unsigned depth = 0) noexcept;
/// Epoll::corked_until, without the lock.
int64_t set_corked_until(Epoll &x) noexcept;
/// With the lock: a sum that changes when a listener in the set gets a link. One that came after
/// prepare_sleep() is not armed: who finds another sum after the barrier does not sleep.
uint64_t links_seen(Epoll &x) noexcept;
/// Arms everything and announces the sleep; the caller issues heavy_barrier() and looks again. `*blind`: a
/// wake-up cannot be relied on.
void prepare_sleep(Epoll &x, bool *blind) noexcept;
/// After that: the barrier, if anything was armed that needs one.
void fence_before_sleep(Epoll &x) noexcept;
void finish_sleep(Epoll &x) noexcept;
/// The nested set of the item gets into, or goes out of, a set that so many sleep on: each of those will end
/// one sleep in all that are nested then.
void begin_nested_sleeps(const EpollItem &i, uint32_t n) noexcept;
void end_nested_sleeps(const EpollItem &i, uint32_t n) noexcept;
/// Before a wait returns while other threads sleep on the instance: nothing may be left unarmed.
void hand_over(Epoll &x) noexcept;

// --- epoll_ctl.cpp
/// Instances that have `f`, which just got its first accelerated member, as a kernel-only member: they have
/// to look inside from now on. Without locks; `depth`: of nested sets, 0 for who calls.
void nested_became_ours(File &f, unsigned depth) noexcept;

// --- epoll_kernel.cpp
/// Without the lock: gets doorbell ids and registrations that prepare_sleep() needs. Talks to the monitor.
void provide_bells(Epoll &x) noexcept;
extern Lock provide_lock; ///< for the fork handlers
/// Is a kernel member of the instance ready (not just our own doorbell)? Used for nested sets and by poll.
bool kernel_part_ready(Epoll &x) noexcept;
/// Registers doorbell and control channel with the kernel's set. With the lock.
void register_wakers(Epoll &x) noexcept;

/// epoll_pwait with a timeout in ns; < 0: for ever.
[[nodiscard]] long kernel_wait(int ep, epoll_event *e, int n, int64_t timeout_ns, const void *mask) noexcept;
struct Found {
    long count;   ///< events of the program's own, or -errno
    bool rung;    ///< our doorbell
    bool channel; ///< the control channel hung up
};
/// Takes our own registrations out of what the kernel returned (`n` > 0), and acts on them. Without the lock.
Found sift(Epoll &x, epoll_event *e, long n) noexcept;

/// The control channel hung up: it must not end every further wait. Looks for another monitor. Without the
/// lock.
void channel_lost(Epoll &x) noexcept;

/// Data words of our own registrations in kernel sets: addresses in here.
extern char waker_data[2 + kNestedSets];
inline uint64_t waker_word(unsigned n) noexcept { return reinterpret_cast<uint64_t>(waker_data + n); }
constexpr unsigned kBellWord = 0, kChannelWord = 1, kNestedWord = 2;
/// The number of a data word, or -1 for the program's own.
inline int waker_number(uint64_t data) noexcept {
    uint64_t n = data - waker_word(0);
    return n < sizeof waker_data ? static_cast<int>(n) : -1;
}

} // namespace sd
