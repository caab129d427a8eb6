// How processes of other trust domains ring a waiter.
//
// Whoever has an eventfd can also read it, fill it and change its flags, so only the waiter's own domain gets
// it. For each other domain there is a pair of SOCK_SEQPACKET Unix sockets, made with the first link to that
// domain: the waiter keeps one end, the monitor hands out the other. What can be done with that other end:
//  - send: the waiter wakes up and looks, in vain perhaps. The queue is bounded by the sender's own buffer,
//    and no other domain shares it.
//  - read it: nothing is ever sent there. Reopen it through /proc: a socket cannot be. Change flags, buffer
//    sizes, owner for SIGIO: of that end only.
//  - shut it down: the waiter sees the end of it, once; the monitor rings for that domain from then on.
//  - send descriptors: refused by the kernel (SO_PASSRIGHTS, since 6.16). Earlier kernels would close them in
//    the waiter when it takes the message, and the last close of a TCP socket can linger: so there each
//    message is looked at first, and one with descriptors is left where it is, for good.
// The waiter may be the hostile one: the sender depends on no flag (MSG_DONTWAIT), and a queue that is not
// emptied is one that need not be rung.
//
// Why no wake-up is lost. The ends are in an epoll set of their own, edge-triggered; that set is what the
// waiter sleeps on, beside the eventfd. A sender publishes what it has, then sends. Where the message is
// queued, the set becomes readable, and stays so until drain() has collected that event; the waiter looks at
// its connections after drain(). Where it is not (EAGAIN), the queue is full. Let D be the last drain of this
// end: if the send came before D, the waiter's look after D finds what was published. If it came after D,
// then, since D leaves room in the queue, a message came in between D and the send, and its event has yet to
// be collected: the waiter wakes up, and looks after that. A thread that finds another one draining does not
// wait for it: the set stays readable until somebody has collected, so it comes back at once.
#pragma once
#include <atomic>
#include <cstdint>

namespace sd {

struct Bell;
struct LinkMap;

constexpr unsigned kMostForeignEnds = 16;

struct ForeignEnds {
    std::atomic<int> set{-1}; ///< hidden descriptor to sleep on; -1: no peer of another domain so far
    /// Of watch_as_well(), and in `set` too: who sleeps in poll has this in its list where nothing else is in
    /// the set, which then need not be asked. -1: none was given; kSeveral: they are in the set only
    std::atomic<int> other{-1};
    static constexpr int kSeveral = -2;
    int end[kMostForeignEnds] = {};
    std::atomic<uint32_t> used{0};  ///< which of `end` are descriptors
    std::atomic<uint32_t> ended{0}; ///< which of those nobody can ring any more; changed with `busy`
    std::atomic<bool> busy{false};  ///< somebody takes messages, or closes ends
};

/// Gives the processes on the other side of `l` that are of other domains something to ring with; to be
/// called when the monitor says that there are such. Where that cannot be done the monitor rings for them.
/// Not from signal handlers.
void provide_foreign_ends(Bell &b, LinkMap &l, unsigned id) noexcept;
/// Who sleeps on the bell wakes up as well when `fd` is readable; what there is to do then is
/// Upward::take_events. Not from signal handlers.
void watch_as_well(Bell &b, int fd) noexcept;
/// Takes what has been sent. False: nothing. Any thread, also several at once; never blocks.
bool drain_foreign_ends(Bell &b) noexcept;
/// The one end that there is, where nothing else is in the set: who sleeps in poll has it in its list, and
/// take_from_only_end() saves a question to the set. Another thread that adds an end (restore_bells) rings
/// the eventfd afterwards, and the next sleep asks anew. -1: there are none, or several.
int only_end(const Bell &b) noexcept;
/// It is readable, as poll says, and stays so while there is more. Like drain_foreign_ends().
void take_from_only_end(Bell &b) noexcept;
/// The bell ends, or the process goes into a sandbox, which knows none of the system calls that are needed
/// here. Nobody sleeps on it.
void close_foreign_ends(Bell &b) noexcept;
/// In a forked child: they are the parent's.
void drop_foreign_ends_in_child(Bell &b) noexcept;
/// Upward::hidden_moved.
void foreign_ends_moved(Bell &b, int from, int to) noexcept;

} // namespace sd
