// connect(): deciding whether a connection can be accelerated, and making it without a system call once a
// link exists.
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/backlog.hpp"
#include "libsd/vfs/connections/choice.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/kernel_queue.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/descriptors/unconnected.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/options/packet_options.hpp"
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/paths/short_lived.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstring>
#include <linux/tcp.h>

namespace sd {

bool namespace_changed = false;

namespace {

SD_FORK_STATE constinit Lock link_lock; ///< making links: one thread at a time asks the monitor

/// For a client whose port is the slot's; `port` 0: for one that has a port of its own. The kernel gives a
/// client no port on which somebody listens, and all of a link leads to one: that slot is left out, for as
/// long as the link lives. Given back, it would be the next one, and in the end the only one that is left.
int64_t take_slot_of(LinkMap &l, uint16_t port) noexcept {
    QuietGuard g(l.slot_lock);
    const int64_t slot = take_slot(l);
    const bool unfit =
        slot >= 0 && port != 0 && client_port(l.view.header().port_base, static_cast<uint32_t>(slot)) == port;
    return unfit ? take_slot(l) : slot;
}
void give_back(LinkMap &l, uint32_t slot) noexcept {
    QuietGuard g(l.slot_lock);
    give_slot_back(l, slot);
}

bool usable(const LinkMap &l, uint32_t listener, uint32_t reach) noexcept {
    return l.side == 0 && !l.retired.load(std::memory_order_relaxed) && l.listener_id == listener &&
           (l.reach & reach) &&
           !(l.view.header().side[1].flags.load(std::memory_order_acquire) &
             (kLinkListenerClosed | kLinkServerDead));
}

/// The monitor does not look at what could object to connections over a link that is idle: it is asked to,
/// before the next one. False: none can be made over it.
bool may_connect_over(LinkMap &l) noexcept {
    if (!(l.view.header().side[1].flags.load(std::memory_order_acquire) & kLinkPaused)) [[likely]]
        return true;
    const wire::LinkRef msg{l.id, 0, 0};
    auto r = control::request(wire::Op::renew, &msg, sizeof msg);
    control::close_received(r);
    return r.status == 0;
}

/// What the monitor said last: who may not have a link asks once, until something changes that matters
/// (Directory::birth_sequence). A word each for some listeners: sequence << 40 | listener << 8 | cause.
constexpr unsigned kRefusals = 16;
constinit std::atomic<uint64_t> refusals[2 * kRefusals];

std::atomic<uint64_t> &refusal_of(uint32_t listener, uint32_t reach) noexcept {
    return refusals[listener % kRefusals * 2 + (reach != wire::kLoopbackAddresses)];
}
constexpr uint64_t refusal_word(uint32_t listener, uint64_t sequence) {
    return sequence << 40 | uint64_t{listener} << 8;
}
void remember_refusal(uint32_t listener, uint32_t reach, uint64_t sequence, Cause why) noexcept {
    static_assert(static_cast<unsigned>(Cause::rules_unseen) < 256);
    if (why >= Cause::firewalled && why <= Cause::rules_unseen)
        refusal_of(listener, reach)
            .store(refusal_word(listener, sequence) | static_cast<uint64_t>(why), std::memory_order_relaxed);
}
Cause refused_before(uint32_t listener, uint32_t reach) noexcept {
    const uint64_t word = refusal_of(listener, reach).load(std::memory_order_relaxed);
    if (!word) [[likely]]
        return Cause::none;
    const uint64_t now = control::directory()->birth_sequence.load(std::memory_order_acquire);
    return (word & ~uint64_t{255}) == refusal_word(listener, now) ? static_cast<Cause>(word & 255) : Cause::none;
}

/// A link of this process to the listener with a free slot in it; makes one if need be. The link gets one
/// more user. `port`: as in take_slot_of().
LinkMap *link_to(uint32_t listener, uint32_t reach, uint16_t port, int64_t *slot, Cause *why) noexcept {
    if (crossing_under_way()) {
        *why = Cause::crossed;
        return nullptr;
    }
    QuietGuard g(link_lock);
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        LinkMap *l = link_by_index(i);
        if (!l || !usable(*l, listener, reach) || !link_use(*l))
            continue;
        // Held: another thread may have found it dead just now, and it have become another.
        *slot = may_connect_over(*l) && usable(*l, listener, reach) ? take_slot_of(*l, port) : -1;
        if (*slot >= 0)
            return l;
        link_unuse(*l);
    }
    const uint64_t asked = control::directory()->birth_sequence.load(std::memory_order_acquire);
    const wire::Connect msg{listener, reach};
    auto r = control::request(wire::Op::connect, &msg, sizeof msg);
    if (r.status < 0 || r.fds != 1 || r.length != sizeof(wire::ConnectReply)) {
        control::close_received(r);
        *why = control::cause_of(r, r.status == -ENOENT ? Cause::listener_gone : Cause::no_monitor);
        remember_refusal(listener, reach, asked, *why);
        return nullptr;
    }
    const long fd = hide_fd(r.fd[0]);
    if (fd < 0) {
        *why = Cause::no_descriptor;
        return nullptr;
    }
    const auto &reply = r.as<wire::ConnectReply>();
    LinkMap *l = map_hidden_link(static_cast<int>(fd), reply.link_id, 0, static_cast<uint8_t>(reply.reach),
                                 peer_of(reply.is_own));
    if (!l) {
        *why = Cause::no_memory;
        return nullptr;
    }
    l->listener_id = listener;
    *slot = take_slot_of(*l, port);
    return l;
}

/// No new connections there, if it is one of this process's that `which` says yes to.
template <class Which> void retire_link(uint32_t index, Which which) noexcept {
    LinkMap *l = link_by_index(index);
    const auto to_be_retired = [&] { // without a reference at first, when it may become another
        return __atomic_load_n(&l->side, __ATOMIC_RELAXED) == 0 && !l->retired.load() && which(*l);
    };
    if (!l || !to_be_retired() || !link_use(*l))
        return;
    if (to_be_retired() && !l->retired.exchange(true)) // held: it is the same still
        link_unuse(*l);
    link_unuse(*l);
}

void retire_dead_links() noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        retire_link(i, [](const LinkMap &l) {
            return (l.view.header().side[1].flags.load(std::memory_order_acquire) &
                    (kLinkListenerClosed | kLinkServerDead)) != 0;
        });
}

/// What the kernel has ended together with a process that the program has waited for is gone from the
/// directory afterwards.
void hear_of_ends() noexcept {
    static std::atomic<uint32_t> heard{0};
    const uint32_t ended = vfs::children_ended.load(std::memory_order_acquire);
    if (heard.load(std::memory_order_relaxed) == ended) [[likely]]
        return;
    control::request(wire::Op::ends, nullptr, 0);
    heard.store(ended, std::memory_order_relaxed);
}

/// Everything that decides before any memory is touched. None: go ahead.
Cause decide(const File &f, const SlotAddress &to, SlotAddress *source, ListenerEntry *entry) noexcept {
    if (f.unconnected.refuse_cause)
        return static_cast<Cause>(f.unconnected.refuse_cause);
    // HAProxy's checks connect so, and reset the connection at once: servers never see them.
    if (handshake_waits(f))
        return Cause::option;
    if (namespace_changed)
        return Cause::foreign_namespace;
    if (landlocked.load(std::memory_order_relaxed))
        return Cause::landlocked;
    if (is_detached()) {
        leave_pages_if_told();
        return Cause::detached;
    }
    bool loopback = is_loopback(to.ip);
    if (!loopback && !is_any(to.ip) && !is_on_this_host(to, source))
        return Cause::remote_host;
    Cause why = Cause::none;
    if (!control::ensure(&why))
        return why;
    hear_of_ends();
    if (!look_up_listener(to, entry))
        return Cause::peer_unaccelerated;
    return is_worth_forking(to) ? Cause::none : Cause::forked_briefly;
}

/// Nothing of the connection was seen by anybody: the socket is fresh again. `slot_free`: and the slot may be
/// used for another.
void undo_stream(File &f, LinkMap &l, uint32_t slot, bool slot_free) noexcept {
    if (unbind_stream(f) && slot_free)
        give_back(l, slot);
}

/// 0: the File is a stream now. -1: `*why_out` tells why not. 1: the queue was full; it is worth another try.
int accelerate(int fd, File &f, SlotAddress to, Patience &patience, int64_t *why_out) noexcept {
    Cause why = Cause::none;
    SlotAddress source{};
    ListenerEntry entry{};
    if (is_any(to.ip)) // connect() to the wildcard address means this host
        set_loopback(to.ip, f.family == AF_INET6 && !is_v4(to.ip));
    why = decide(f, to, &source, &entry);
    if (why == Cause::none && all_begin_in_kernel()) [[unlikely]] {
        mark_offered(f, 0);
        why = Cause::born_on_kernel;
    }
    *why_out = static_cast<int64_t>(why);
    if (why != Cause::none)
        return -1;
    if (is_loopback(to.ip)) {
        memcpy(source.ip, to.ip, 16);
        if (is_v4(to.ip))
            set_loopback(source.ip, false); // the kernel answers from 127.0.0.1 whatever 127.x it is
    }
    source.port = 0;
    if (f.unconnected.bound) {
        SlotAddress own;
        if (kernel_address(fd, &own) < 0)
            return -1;
        if (own.port != 0 && own.port < kFirstFreePort) { // no server would take our word for it
            *why_out = static_cast<int64_t>(Cause::bound_source);
            return -1;
        }
        if (!is_any(own.ip))
            memcpy(source.ip, own.ip, 16);
        source.port = own.port;
    }
    retire_dead_links();
    int64_t slot = -1;
    // A source that the program chose may be another address than the kernel would take.
    const uint32_t reach =
        is_loopback(to.ip) && is_loopback(source.ip) ? wire::kLoopbackAddresses : wire::kOtherAddresses;
    why = refused_before(entry.id, reach);
    if (why != Cause::none) [[unlikely]] {
        *why_out = static_cast<int64_t>(why);
        return -1;
    }
    LinkMap *l = link_to(entry.id, reach, source.port == 0 ? to.port : 0, &slot, &why);
    if (!l || slot < 0) {
        if (l)
            link_unuse(*l);
        *why_out = static_cast<int64_t>(l ? Cause::no_slot : why);
        return -1;
    }
    const uint64_t now = cpu::cycles();
    if (!kernel_agrees(*l, entry, to, now)) {
        give_back(*l, static_cast<uint32_t>(slot));
        link_unuse(*l);
        *why_out = static_cast<int64_t>(Cause::peer_unaccelerated);
        return -1;
    }
    if (source.port == 0)
        source.port = client_port(l->view.header().port_base, static_cast<uint32_t>(slot));
    Slot &s = l->view.slot(static_cast<uint32_t>(slot));
    source.family = to.family = f.family;
    s.identity.client = source;
    s.identity.server = to;
    note_packet_marks(f, fd, s.identity);
    s.identity.arrival = now;
    s.identity.connected_ns = static_cast<uint64_t>(sys::coarse_now_ns());
    f.stream.client = source;
    f.stream.server = to;
    if (!bind_stream(f, *l, static_cast<uint32_t>(slot), f.family)) {
        give_back(*l, static_cast<uint32_t>(slot));
        link_unuse(*l);
        *why_out = static_cast<int64_t>(Cause::limit);
        return -1;
    }
    inherit_options(*f.ofd, f, fd);
    if (!push_syn(*l, static_cast<uint32_t>(slot), entry.backlog, &why)) {
        patience.timeout = f.ofd->sndtimeo_ns.load(std::memory_order_relaxed);
        undo_stream(f, *l, static_cast<uint32_t>(slot), why == Cause::backlog_full);
        const bool again = why == Cause::backlog_full && wait_for_backlog(*l, entry.backlog, patience);
        link_unuse(*l); // link_to's
        *why_out = static_cast<int64_t>(why);
        return again ? 1 : -1;
    }
    if (!may_connect_over(*l) && take_request_back(*l, static_cast<uint32_t>(slot))) [[unlikely]] {
        why = Cause::listener_gone;
    } else {
        notify_acceptors(*l);
        why = acceptor_in_kernel(*l) && !accepted_soon(*l, static_cast<uint32_t>(slot)) ? Cause::kernel_acceptor
                                                                                        : Cause::none;
    }
    if (why != Cause::none) [[unlikely]] { // the request has been taken back
        undo_stream(f, *l, static_cast<uint32_t>(slot), true);
        link_unuse(*l); // link_to's
        *why_out = static_cast<int64_t>(why);
        return -1;
    }
    SD_PROBE4(connect, fd, l->id, slot, to.port);
    if (is_captured(*f.ofd)) [[unlikely]]
        capture_born(f);
    link_unuse(*l); // link_to's; bind_stream has its own
    stats().connects.fetch_add(1, std::memory_order_relaxed);
    return 0;
}

} // namespace

SD_FORK_CODE void connect_fork_child() noexcept {
    link_lock.reset();
    // New connections of the child need links of its own: the slots of these belong to the parent.
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i); l && l->side == 0 && !l->retired.load(std::memory_order_relaxed)) {
            l->retired.store(true, std::memory_order_relaxed);
            l->inherited.store(true, std::memory_order_relaxed);
        }
}

void retire_client_links() noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        retire_link(i, [](const LinkMap &) { return true; });
        if (LinkMap *l = link_by_index(i); l && l->inherited.load() && link_use(*l)) {
            if (l->inherited.exchange(false))
                link_unuse(*l);
            link_unuse(*l);
        }
    }
}

namespace {

/// Calls that are blocked on the connection that was undone hold the File, but it does not hold the link any
/// more, which has to stay mapped until they have let go: with the File. Ends a reference of the link's.
/// Their words in the slot may be another connection's by now, so whoever sleeps on the link is woken.
void wake_former_waiters(File &f, LinkMap &link, uint32_t slot) noexcept {
    LinkMap *none = nullptr;
    const bool keep = pinned.load(std::memory_order_acquire) != 0;
    if (keep)
        ring_own(link, slot, link.view.header().side[link.side].sleep_mask.load(std::memory_order_seq_cst));
    if (!keep || (!f.stream.undone.compare_exchange_strong(none, &link) && none == &link))
        link_unuse(link);
    // else kept for as long as the File, or, where it has another one already, for good
}

/// The error that waits, taken.
int error_of(int fd, File &f) noexcept {
    return has_paths(*f.ofd) ? take_path_error(fd, f) : take_error(*f.ofd);
}

void disconnect(File &f, int error) noexcept;

/// Of one that began in the kernel: its socket knows whether the first connect() is still to be answered.
long connect_again(int fd, File &f, const sockaddr_storage &to, socklen_t n) noexcept {
    const bool closed = tcp_state(f) == kTcpClose;
    const long r = sys::call(SYS_connect, fd, sys::arg(&to), n);
    if (!closed || r == 0 || r == -EISCONN)
        return r;
    const int error = take_error(*f.ofd); // it was made, and ended since
    disconnect(f, 0);
    return error ? -error : r;
}

/// Undoes the connection: the peer is reset, and the socket is as new, but for an error that waits.
void disconnect(File &f, int error) noexcept {
    const uint32_t status = f.ofd->status.load(std::memory_order_relaxed);
    LinkMap *const link = f.link;
    const uint32_t slot = f.slot;
    link->users.fetch_add(1, std::memory_order_acq_rel);
    f.generation.fetch_add(1, std::memory_order_release); // what calls are blocked in has gone
    if (has_paths(*f.ofd)) {                              // others may have its socket, too
        sockaddr nothing{};
        nothing.sa_family = AF_UNSPEC;
        sys::call(SYS_connect, path_socket(f), sys::arg(&nothing), sizeof nothing);
    }
    close_stream(f, true);
    f.status.store(status, std::memory_order_relaxed);
    f.stream.connect_answer = ConnectAnswer::connected;
    f.unconnected.error.store(error, std::memory_order_relaxed);
    f.unconnected.last_port = f.stream.client.port;
    f.kind = FileKind::fresh;
    epoll_stream_ends(f); // we have the link still
    // A kernel socket that only answered for options knows nothing of the error.
    if (long spare = f.real_socket && !f.unconnected.bound ? placeholder_fd(false) : -1; spare >= 0) {
        for_each_number(f, [&](int fd) {
            (void)replace_number(fd, static_cast<int>(spare)); // fails for one that the kernel has no more
        });
        sys::close(static_cast<int>(spare));
        f.real_socket = false;
    }
    for_each_number(f, note_unconnected);
    wake_former_waiters(f, *link, slot);
    epoll_touch(f);
}

/// Why no connection could begin in memory: may both ends have libsd all the same, in two network namespaces?
bool may_be_found(Cause why) noexcept {
    return why == Cause::remote_host || why == Cause::peer_unaccelerated;
}

} // namespace

namespace vfs {

long connect(int fd, const sockaddr *a, socklen_t n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || f->kind == FileKind::epoll)
        return kPass;
    sockaddr_storage copy;
    socklen_t len = n < sizeof copy ? n : sizeof copy;
    if (static_cast<int>(n) < 0)
        return -EINVAL;
    if (sd_copy(&copy, a, len))
        return -EFAULT;
    const bool unspecified = len >= sizeof copy.ss_family && copy.ss_family == AF_UNSPEC;
    if (f->kind == FileKind::stream && unspecified) {
        // The error tells of it, unless another one waits already.
        disconnect(*f, tcp_state(*f) == kTcpClose ? error_of(fd, *f) : ECONNRESET);
        return 0;
    }
    if (f->kind == FileKind::stream) {
        if (len < sizeof copy.ss_family)
            return -EINVAL;
        if (has_paths(*f->ofd)) [[unlikely]]
            return connect_again(fd, *f, copy, len);
        if (f->stream.connect_answer != ConnectAnswer::made)
            return f->stream.connect_answer == ConnectAnswer::invalid ? -EINVAL : -EISCONN;
        f->stream.connect_answer = ConnectAnswer::connected;
        if (tcp_state(*f) != kTcpClose)
            return 0;
        const int error = error_of(fd, *f); // it was made, and ended since
        disconnect(*f, 0);
        return error ? -error : -ECONNABORTED;
    }
    if (f->kind == FileKind::listener && unspecified) { // stops listening, as shutdown does
        long r = sys::call(SYS_connect, fd, sys::arg(a), n);
        if (r == 0)
            retire_listener(*f->listener);
        return r;
    }
    if (f->kind != FileKind::fresh)
        return kPass;
    if (f->unconnected.offer.load(std::memory_order_relaxed)) [[unlikely]] { // the kernel connects it, or has
        if (unspecified)
            give_up_joining(*f);
        return kPass;
    }
    SlotAddress to;
    const bool parsed = parse_address(copy, len, f->family, &to);
    // AF_UNSPEC, wrong family or length: the kernel knows what to answer
    if (!parsed || (is_v4(to.ip) && is_v6only(*f)))
        return f->real_socket ? kPass : materialise(fd, *f) < 0 ? -ENOBUFS : kPass;
    int64_t why = 0;
    Patience patience{(f->status.load(std::memory_order_relaxed) & O_NONBLOCK) != 0};
    int made;
    do
        made = accelerate(fd, *f, to, patience, &why);
    while (made > 0);
    if (made == 0) {
        epoll_file_became_stream(*f);
        // A non-blocking connect is never answered at once by the kernel, and some programs rely on that.
        if (f->ofd->status.load(std::memory_order_relaxed) & O_NONBLOCK) {
            f->stream.connect_answer = ConnectAnswer::made;
            return -EINPROGRESS;
        }
        return 0;
    }
    if (may_be_joined(*f) || may_be_found(static_cast<Cause>(why))) [[unlikely]] {
        if (const long r = materialise(fd, *f); r < 0) {
            count_fallback(static_cast<Cause>(why), &to);
            return r;
        }
        const uint32_t destination = destination_of(to);
        if (!all_begin_in_kernel() && !is_worth_marking(destination)) {
            why = static_cast<int64_t>(Cause::short_lived);
        } else if (mark_for_discovery(fd)) {
            Cause missing; // somebody's monitor is there, and ours?
            if (!control::ensure(&missing))
                why = static_cast<int64_t>(missing);
            else if (is_discovery_on())
                mark_offered(*f, 0, destination);
        }
        if (may_be_joined(*f)) { // it keeps its File
            count_fallback(static_cast<Cause>(why), &to);
            return kPass;
        }
    }
    long r = fall_back(fd, f, static_cast<Cause>(why), &to);
    return r < 0 ? r : kPass;
}

} // namespace vfs

} // namespace sd
