// Accelerated listeners: the kernel's listening socket plus the SYN queues of the links that lead to it.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/options/options.hpp"

namespace sd {

/// A link of this listener, and the word that says how far its SYN queue has been accepted (shared by all
/// acceptors).
struct ListenerLinkRef {
    LinkMap *link;
    ListenerLink *place;
};

/// The entry of the link's SYN queue at `head`: a slot's number and one, 0: there is none. Of a client that
/// went into a sandbox none counts that came later.
inline uint32_t syn_at(const ListenerLinkRef &ref, uint32_t head) noexcept {
    const uint32_t end = ref.place->syn_end.load(std::memory_order_relaxed);
    if (end != 0 && static_cast<int32_t>(head - (end - 1)) >= 0) [[unlikely]]
        return 0;
    return ref.link->view.syn(head).load(std::memory_order_acquire);
}

struct Listener {
    uint32_t id = 0;
    uint64_t cookie = 0;   ///< the kernel's name of the socket, SO_COOKIE; 0: it has none
    SlotAddress address{}; ///< what it is bound to
    ListenerSegment *seg = nullptr;
    /// seg->link_sequence as of which `links` is complete. Who arms the links reads it before, and looks
    /// after the barrier whether it is the same: a link that came in between is not armed.
    std::atomic<uint64_t> seen_sequence{0};
    uint32_t next = 0;               ///< rotates over the links, so that none starves
    uint32_t last = 0, in_a_row = 0; ///< the link last taken from while others waited too, and how often
    uint32_t backlog = 0;
    uint32_t fork_depth = 0; ///< of the process that registered it
    /// Bumped under the lock when it is closed, before it can become another's
    std::atomic<uint32_t> generation{0};
    std::atomic<bool> retired{false};
    std::atomic<int> waiters_fd{-1}; ///< hidden descriptor of the kernel's socket, see keep_for_waiters()
    static constexpr uint32_t kKernelNext = 15;
    std::atomic<uint32_t> turns{
        kKernelNext}; ///< accepted connections; every 16th time, and the first, the kernel's queue goes first
    /// When that was last so, by cpu::cycles(). Any thread that accepts writes it; a lost value costs a turn.
    std::atomic<uint64_t> kernel_asked{0};
    /// The request that poll() or an epoll instance was last told of: the place of its link and one, above
    /// what syn_head was there; 0: none since the last stand-in. Any thread; a lost value is one that was not
    /// told of.
    std::atomic<uint64_t> told{0};
    ListenerOptions options;
    Lock lock;
    MapVector<ListenerLinkRef> links;
    Listener *pool_next = nullptr;
};

/// Before a number of `f` is closed or replaced: where calls are blocked on the listener they go on, as the
/// kernel's do, so its kernel socket needs a descriptor until the last of them has returned. Any kind of
/// File, any thread.
void keep_for_waiters(File &f, int fd) noexcept;
/// The descriptor of the listener's kernel socket, for a call that was made on number `fd` and has the File
/// pinned; -1: there is none any more.
[[nodiscard]] int listener_fd(const File &f, int fd) noexcept;
/// Upward::hidden_moved, for those kept.
void listeners_moved(int from, int to) noexcept;
/// Registers a bell to be rung when the listener gets a new link. 0 or -errno.
[[nodiscard]] long listener_bell(Listener &l, Bell &b) noexcept;
/// The same for the calling thread's own bell, which is registered already as a rule. False: wake-ups cannot
/// be relied on.
[[nodiscard]] bool listener_announces(Listener &l, Bell &b) noexcept;
/// Registers a kernel listening socket with the monitor and puts it into the table. 0 or -errno with the
/// cause.
[[nodiscard]] long register_listener(int fd, File *f, int backlog, Cause *why) noexcept;
/// Does the number stand for the listener's kernel socket?
bool is_socket_of(const Listener &l, int fd) noexcept;
/// The File that the process has for the listening socket behind a number that is not in the table, with a
/// reference; null: it has none.
[[nodiscard]] File *find_listener(int fd) noexcept;
/// shutdown() of the listener: takes it out of the directory and refuses what waits; the kernel's socket
/// answers from now on.
void retire_listener(Listener &l) noexcept;
/// Every listener gives its links back and asks for those anew that it may have as whoever the process is
/// then.
void ask_for_links_anew() noexcept;
/// Links that have come, since anybody looked, to the listeners that this process has registered itself, or
/// has from the former program image: clients may wait there. Not to those of a parent, which others look at.
void look_for_links() noexcept;
/// Says so to children, which otherwise take this process to hold what they have from it. Before it does not.
void listeners_given_up() noexcept;
/// The last descriptor in this process was closed.
void close_listener(File *f) noexcept;
/// After the monitor came back.
void restore_listeners() noexcept;
/// New connections to it are the kernel's, for its other holders, too: somebody accepts only there, and who
/// will be first is not known.
void unlist(const Listener &l) noexcept;
/// Is a call of some thread blocked on one?
[[nodiscard]] bool is_any_listener_waited_on() noexcept;
/// Every listener stays an ordinary one, and calls that are blocked on it go on with the kernel's queue.
/// `for_all`: it leaves the directory for its other holders, too.
void withdraw_listeners(bool for_all) noexcept;
/// With signals blocked. Between the two no listener is made or closed.
void listeners_fork_prepare() noexcept;
void listeners_fork_parent() noexcept;
void listeners_fork_child() noexcept;
/// In a forked child, before and after the references to Files are counted anew: those that only calls of the
/// parent's other threads held are closed. The second needs the monitor.
void uncount_listeners() noexcept;
void drop_uncounted_listeners() noexcept;

} // namespace sd
