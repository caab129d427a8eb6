// accept(): connections from the links first, the kernel's own queue alongside.
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/spinner.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/connections/kernel_queue.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/vfs/connections/stand_in.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/family/fork_pattern.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/options/options.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/sleep.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/stream.hpp"
#include "libsd/vfs/vfs.hpp"
#include <algorithm>
#include <cstring>

namespace sd {

namespace {

constexpr unsigned kKernelTurn =
    Listener::kKernelNext + 1; ///< after so many accelerated connections the kernel's queue is asked first
/// Or after so long, 1 to 5 ms: where a program needs long for each connection, whoever waits in the kernel's
/// queue waits no longer than for two more of the others.
constexpr uint64_t kKernelCycles = 5'000'000;
/// How long an acceptor may be between its look at the kernel's queue and what it takes from there, before
/// others think that it is stopped.
constexpr int64_t kOthersTurnNs = 5'000'000;
/// How long a client that poll() has told of may take to come by the kernel, when he has taken his request
/// back.
constexpr int64_t kGraceNs = 20'000'000;

/// The address a client claims has to be one of this host; a few right answers are remembered.
bool credible(const SlotAddress &a) noexcept {
    static std::atomic<uint64_t> last[2];
    uint64_t w[2];
    memcpy(w, a.ip, sizeof w);
    if (last[0].load(std::memory_order_relaxed) == w[0] && last[1].load(std::memory_order_relaxed) == w[1] &&
        (w[0] | w[1]))
        return true;
    if (!is_local_address(a))
        return false;
    last[0].store(w[0], std::memory_order_relaxed);
    last[1].store(w[1], std::memory_order_relaxed);
    return true;
}

void refuse(LinkMap &l, uint32_t slot) noexcept {
    Slot &s = l.view.slot(slot);
    s.side[1].control.flags.fetch_or(kFlagReset | kFlagClosed | kFlagReleased, std::memory_order_seq_cst);
    notify(l, slot, s.side[0].control.rx_arm);
    notify(l, slot, s.side[0].control.tx_arm);
}

/// Whether two ends can have these addresses, of which the client wrote both: an address of this host and a
/// port that anybody may have, and one that leads to the listener.
bool can_be_names(const Listener &l, const SlotAddress &client, const SlotAddress &server) noexcept {
    const bool v4 = is_v4(server.ip);
    if ((client.family != AF_INET && client.family != AF_INET6) || server.family != client.family ||
        is_v4(client.ip) != v4 || (client.family == AF_INET && !v4))
        return false;
    if (client.port < kFirstFreePort || is_any(client.ip) || !credible(client))
        return false;
    if (server.port != l.address.port || is_any(server.ip))
        return false;
    return is_any(l.address.ip) ? (v4 || l.address.family == AF_INET6) && credible(server)
                                : memcmp(server.ip, l.address.ip, sizeof server.ip) == 0;
}

/// Makes `f` the server's end of a connection from the queue. False: what the client says of itself is not to
/// be believed, or there is no room.
bool take_over(File &f, const Listener &l, LinkMap &link, uint32_t slot, unsigned family,
               uint32_t status) noexcept {
    const SlotAddress client = link.view.slot(slot).identity.client,
                      server = link.view.slot(slot).identity.server;
    if (!can_be_names(l, client, server))
        return false;
    f.status.store(status, std::memory_order_relaxed);
    f.stream.client = client;
    f.stream.server = server;
    return bind_stream(f, link, slot, family);
}

/// An accelerated connection under a new descriptor; -EAGAIN when none waits, -EBADF when the listener has
/// been closed since it had that generation.
/// `*dropped`: what waited was none, or could not be taken.
long accept_link(int fd, File &listener, Listener &l, uint32_t generation, sockaddr *a, socklen_t *n,
                 int flags, bool *dropped) noexcept {
    // The kernel reports "too many open files" before it takes a connection off the queue; so do we. A number
    // that is at hand can be put back; before one is made the queue is looked at.
    long made = take_cached(flags & SOCK_CLOEXEC);
    const bool cached = made >= 0;
    if (!cached) {
        if (!listener_pending(l))
            return -EAGAIN;
        made = placeholder_fd(flags & SOCK_CLOEXEC);
    }
    if (made < 0)
        return made;
    int new_fd = static_cast<int>(made);
    LinkMap *link;
    uint32_t slot;
    File *f = nullptr;
    // Whose names are refused may ask again as fast as that: the call ends all the same.
    for (uint32_t refused = 0;; ++refused) {
        if (long r = refused < kSynEntries ? take_pending(l, generation, &link, &slot, dropped) : -EAGAIN; r < 0) {
            if (cached)
                cache_placeholder(new_fd);
            else
                drop_placeholder(new_fd);
            if (f)
                discard_file(f);
            return r; // another acceptor was faster, maybe
        }
        if (!f)
            f = new_file(FileKind::fresh);
        if (f && take_over(*f, l, *link, slot, listener.family, flags & SOCK_NONBLOCK ? O_NONBLOCK : 0)) {
            SD_PROBE3(accept, new_fd, link->id, slot);
            if (is_captured(*f->ofd)) [[unlikely]]
                capture_born(*f);
            link_unuse(*link); // take_pending's reference; bind_stream has its own
            if (a) {
                long r = write_sockaddr(f->stream.client, listener.family, a, n);
                if (r < 0) { // accept() with a bad pointer loses the connection in the kernel too
                    drop_placeholder(new_fd);
                    discard_file(f);
                    return r;
                }
            }
            inherit_from_listener(fd, listener, *f);
            install_placeholder(new_fd, f, flags & SOCK_CLOEXEC);
            stats().accepts.fetch_add(1, std::memory_order_relaxed);
            note_accepted(link);
            l.turns.fetch_add(1, std::memory_order_relaxed);
            return new_fd;
        }
        refuse(*link, slot);
        link_unuse(*link);
        *dropped = true;
        if (!f) {
            drop_placeholder(new_fd);
            return -ENOMEM;
        }
    }
}

/// Whether the kernel's queue is asked before the links. On account of the time in every second turn only,
/// and not in the one after it was asked by count: a queue that is never empty leaves turns to the links, and
/// reading the clock is a part of what a quick accept costs. Turn 0 is none either (register_listener()).
bool is_kernels_turn(Listener &l, uint32_t turn) noexcept {
    const uint32_t n = turn % kKernelTurn;
    const bool by_count = n == kKernelTurn - 1;
    if (!by_count && (n % 2 != 0 || n == 0))
        return false;
    const uint64_t now = cpu::cycles();
    if (!by_count && now - l.kernel_asked.load(std::memory_order_relaxed) < kKernelCycles)
        return false;
    l.kernel_asked.store(now, std::memory_order_relaxed);
    return true;
}

/// Counts of the thread's signal handlers at one moment.
struct Handlers {
    uint64_t handled, interrupts;
};

/// Waits until a link or the kernel's queue may have something. 0, -EINTR, -ETIMEDOUT. From here on the
/// listener is held by `pin`: it stays for as long as the call lasts, even if its last number is closed
/// meanwhile. `since`: handlers that ran after it end the call, also those that ran while it was not
/// asleep.
long wait_listener(int fd, File &f, int64_t deadline, Pin &pin, Handlers &since) noexcept {
    Listener &l = *f.listener;
    Bell *bell = looking_bell();
    if (!bell)
        return -EMFILE;
    const int number = fd;
    (void)pin.acquire(f, number); // where that fails, this tells:
    if (fd = listener_fd(f, number); fd < 0)
        return 0; // closed before we waited
    int64_t kernel_look = 0;
    for (Spinner spin(*bell);;) {
        if (listener_pending(l)) {
            spin.paid();
            return 0;
        }
        if (self.interrupts != since.interrupts)
            return -EINTR;
        if (int64_t now = sys::now_ns(); now - kernel_look > 20'000) {
            kernel_look = now;
            if (fd = listener_fd(f, number); fd < 0)
                return 0;
            if (has_kernel_client(fd))
                return 0;
        }
        if (!spin.again())
            break;
    }
    if (fd = listener_fd(f, number); fd < 0)
        return 0;
    Sleep sleep(*bell, deadline);
    if (!control::connected() || !listener_announces(l, *bell))
        sleep.nobody_rings();
    constexpr unsigned kMax = 256;
    LinkMap *links[kMax];
    const unsigned mark = CleanupStack::mark();
    const uint64_t seen = l.seen_sequence.load(std::memory_order_acquire);
    unsigned n = hold_listener_links(l, links, kMax); // a client may die, and its link go, while we look
    if (n > kMax) {
        n = kMax;
        sleep.nobody_rings();
    }
    for (unsigned i = 0; i < n; ++i)
        CleanupStack::push([](void *link, size_t) noexcept { link_unuse(*static_cast<LinkMap *>(link)); },
                           links[i], 0, links);
    for (unsigned i = 0; i < n; ++i)
        bell_id(*bell, *links[i]);
    const uint64_t handled = self.handled;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    bool unfenced = false;
    for (unsigned i = 0; i < n; ++i)
        if (const unsigned id = sleep.announce(*links[i]))
            unfenced |= Sleeper::arm(links[i]->view.header().side[1].syn_arm, id);
    if (unfenced) {
        sleep.barrier();
        for (unsigned i = 0; i < n && self.handled == handled; ++i)
            if (const unsigned id = bell->id[links[i]->index])
                Sleeper::settle(*links[i], links[i]->view.header().side[1].syn_arm, id);
    }
    pollfd list[1 + kWakers] = {{fd, POLLIN, 0}};
    long r = 0;
    if (!listener_pending(l) && l.seen_sequence.load(std::memory_order_acquire) == seen)
        r = sleep.in_poll(list, 1, nullptr, since.handled);
    for (unsigned i = 0; i < n; ++i)
        sleep.withdraw(*links[i]);
    CleanupStack::forget_to(mark);
    for (unsigned i = 0; i < n; ++i)
        link_unuse(*links[i]);
    if (r < 0) {
        // In this order, so that a handler that comes now is seen before the next sleep.
        const uint64_t handled = self.handled;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (self.interrupts != since.interrupts || (deadline != INT64_MAX && handled != since.handled))
            return -EINTR;
        since.handled = handled; // they ask for the call to go on
    }
    if (deadline != INT64_MAX && sys::now_ns() >= deadline)
        return -ETIMEDOUT;
    return 0;
}

} // namespace

void leave_waiting_to_kernel(File &listener) noexcept {
    LinkMap *link;
    uint32_t slot;
    Listener &l = *listener.listener;
    const uint32_t generation = l.generation.load(std::memory_order_relaxed);
    listener_refresh(l); // links may have come since anybody looked
    // As many as can wait, though clients may go on asking.
    for (size_t left = size_t{kSynEntries} * listener_links(l, nullptr, 0);
         left > 0 && take_pending(l, generation, &link, &slot) == 0; --left) {
        File *f = new_file(FileKind::fresh);
        if (f && take_over(*f, l, *link, slot, listener.family, 0)) {
            if (become_kernel_request(*f) == 0)
                count_fallback(Cause::passed, nullptr);
        } else {
            refuse(*link, slot);
        }
        link_unuse(*link);
        if (f)
            discard_file(f); // ends the connection, unless it goes on through a bridge
    }
}

uint32_t listener_events(File &f) noexcept { return tell_pending(*f.listener) ? EPOLLIN | EPOLLRDNORM : 0; }

namespace vfs {

long accept(int fd, sockaddr *a, socklen_t *n, int flags) noexcept {
    // Before the number is looked up: who replaces the number and then sends a signal ends the call, or the
    // number is the new one already.
    Handlers since{self.handled, self.interrupts};
    std::atomic_signal_fence(std::memory_order_seq_cst);
    File *f = file_of(fd);
    if (!f)
        return kPass;
    if (f->kind == FileKind::stream || (f->kind == FileKind::fresh && !f->real_socket))
        return -EINVAL;
    if (f->kind != FileKind::listener)
        return kPass;
    if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC))
        return -EINVAL;
    // Another thread may close the listener at any time, and its File and Listener become another's. Until a
    // sleep holds them its generation tells.
    Listener &l = *f->listener;
    const uint32_t generation = l.generation.load(std::memory_order_acquire);
    if (file_of(fd) != f || f->listener != &l) [[unlikely]]
        return accept(fd, a, n, flags);
    CleanupStack::drop_abandoned(__builtin_frame_address(0));
    if (channel_left_out) [[unlikely]]
        ensure_channel();
    int64_t deadline = 0, busy_since = 0;
    Pin pin;
    const AcceptCall call{fd, *f, pin, a, n, flags};
    // What poll() has told of can be accepted without waiting.
    bool promised = is_told_untaken(l), dropped = false;
    int64_t grace = 0;
    for (int number = fd;;) {
        // Accelerated connections first, but for some turns; what the listener's kernel socket says is only
        // asked for then.
        const bool kernel_first = is_kernels_turn(l, l.turns.load(std::memory_order_relaxed));
        if (kernel_first)
            l.turns.fetch_add(1, std::memory_order_relaxed);
        else if (long r = accept_link(fd, *f, l, generation, a, n, flags, &dropped); r != -EAGAIN)
            return r != -EBADF ? r : accept(fd, a, n, flags);
        // As in the kernel, another thread that closes the number from here on does not end the call.
        if (!one_thread()) {
            (void)pin.acquire(*f, number);
            if (fd = listener_fd(*f, number); fd < 0)
                return kPass;
        }
        const bool insist = busy_since != 0 && sys::now_ns() - busy_since > kOthersTurnNs;
        const long from_kernel = accept_from_kernel(fd, call, insist, kernel_first);
        if (from_kernel != -EAGAIN && from_kernel != -EBUSY) {
            if (from_kernel >= 0) {
                note_accepted(nullptr);
                forget_fd(static_cast<int>(from_kernel));
                if (all_begin_in_kernel() || is_discovery_on()) [[unlikely]]
                    install_accepted(static_cast<int>(from_kernel), f->family, flags);
                count_fallback(Cause::plain_client, nullptr);
            }
            return from_kernel;
        }
        if (kernel_first)
            if (long r = accept_link(fd, *f, l, generation, a, n, flags, &dropped); r != -EAGAIN)
                return r != -EBADF ? r : accept(fd, a, n, flags);
        if (from_kernel == -EBUSY && self.interrupts == since.interrupts) {
            // Its turn comes although what is in a link's queue is none that is taken.
            l.turns.fetch_add(1, std::memory_order_relaxed);
            if (busy_since == 0)
                busy_since = sys::now_ns();
            sys::sched_yield();
            continue;
        }
        busy_since = 0;
        if (is_nonblocking_socket(fd))
            return -EAGAIN;
        if (deadline == 0) {
            const int64_t ns = l.options.receive_timeout(fd);
            if (ns == kNoWait)
                return -EAGAIN;
            deadline = deadline_after(ns);
        }
        int64_t until = deadline;
        if (promised && (dropped || is_told_untaken(l))) [[unlikely]] {
            const int64_t now = sys::now_ns();
            if (grace == 0)
                grace = now + kGraceNs;
            if (now >= grace) {
                promised = false;
                stand_in(l, fd);
                continue;
            }
            until = std::min(deadline, grace);
        }
        long w = wait_listener(number, *f, until, pin, since);
        if (until != deadline) { // a time that the program has not set ends nothing, nor do its handlers then
            const bool goes_on = deadline == INT64_MAX && self.interrupts == since.interrupts;
            if (w == -EINTR && goes_on)
                since.handled = self.handled;
            if (w == -ETIMEDOUT || (w == -EINTR && goes_on))
                w = 0;
        }
        if (w == -ETIMEDOUT)
            return -EAGAIN;
        if (w < 0)
            return w;
        fd = listener_fd(*f, number);
        if (fd < 0)
            return kPass; // closed or changed before it was held: the kernel knows what the number is now
        if (l.retired.load(std::memory_order_relaxed))
            return fd == number ? kPass : sys::accept4(fd, a, n, flags);
    }
}

long accept_waiting(int fd, sockaddr *a, socklen_t *n, int flags) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || f->kind != FileKind::listener || sandboxed())
        return kPass;
    if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC))
        return -EINVAL;
    if (channel_left_out) [[unlikely]]
        ensure_channel();
    Listener &l = *f->listener;
    bool dropped = false;
    return accept_link(fd, *f, l, l.generation.load(std::memory_order_acquire), a, n, flags, &dropped);
}

} // namespace vfs

} // namespace sd
