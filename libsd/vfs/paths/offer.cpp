// Connections that began in the kernel, until their two ends are joined.
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/kernel_sockets/cookie.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/address.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/paths/back_again.hpp"
#include "libsd/vfs/paths/inherited.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/short_lived.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include <cstring>
#include <fcntl.h>
#include <linux/tcp.h>

namespace sd {

PathMode path_mode = PathMode::off;

namespace {

/// One thread at a time asks the monitor, so that of two calls on one socket the second finds what the first
/// made.
SD_FORK_STATE constinit Lock joining;
/// Held over a fork, and while a socket becomes a stream. Not `joining`: with that one the device may be
/// asked, and so memory allocated, whose lock a handler of the program's for forks may have taken before.
SD_FORK_STATE constinit Lock becoming;
SD_FORK_STATE uint64_t offer_fork_mask = 0; ///< between the two halves of a fork

/// Calls that move data, before the monitor is asked about the connection: most that are short never ask.
constexpr uint8_t kCallsUnoffered = 8;

constexpr uint8_t as_byte(OfferState s) { return static_cast<uint8_t>(s); }
void set_state(File &f, OfferState s) noexcept {
    f.unconnected.offer.store(as_byte(s), std::memory_order_seq_cst);
}
bool is_state(const File &f, OfferState s) noexcept {
    return f.unconnected.offer.load(std::memory_order_acquire) == as_byte(s);
}

bool is_established(int fd) noexcept {
    tcp_info info{};
    socklen_t n = sizeof info;
    return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state == kTcpEstablished;
}

/// Changes whenever the monitor has joined one of ours. 0: it cannot have, or another thread has just left
/// the segment in which it says so.
uint32_t joined_so_far() noexcept {
    const int own = own_segment_index.load(std::memory_order_acquire);
    return own < 0 ? 0 : segments[own].view.header().joined.load(std::memory_order_acquire);
}

/// The connection stays with the kernel: for the link's sake this end has ended.
void let_go(LinkMap &l, uint32_t slot, unsigned side) noexcept {
    l.view.slot(slot).side[side].control.flags.fetch_or(kFlagDead | kFlagClosed | kFlagReleased,
                                                        std::memory_order_seq_cst);
}

/// Our mapping of the link, with a reference for the caller. The first one stays for as long as the peer
/// lives: a link that went with its last connection would be made anew for the next.
LinkMap *link_for(const wire::OfferReply &reply, unsigned side, int memfd, Cause *why) noexcept {
    *why = Cause::no_memory;
    if (LinkMap *l = link_in_use(reply.link_id, side)) {
        sys::close(memfd);
        return l;
    }
    const long fd = hide_fd(memfd);
    LinkMap *l = fd < 0 ? nullptr
                        : map_hidden_link(static_cast<int>(fd), reply.link_id, side, 0, peer_of(reply.is_own));
    if (!l) { // as far as the monitor knows we have it
        const wire::LinkRef ref{reply.link_id, side, 0};
        control::tell(wire::Op::drop_link, &ref, sizeof ref);
    }
    if (l && rdma::is_remote(*l) && !rdma::begin(*l, reply.slot)) {
        let_go(*l, reply.slot, side);
        *why = Cause::no_rdma;
        link_unuse(*l);
        return nullptr;
    }
    if (l)
        l->users.fetch_add(1, std::memory_order_acq_rel);
    return l;
}

/// Those whose other side has ended need not be kept.
void drop_dead_links() noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i) {
        LinkMap *l = link_by_index(i);
        if (!l || l->listener_id != 0 || !link_use(*l))
            continue;
        const uint32_t flags = l->view.header().side[1 - l->side].flags.load(std::memory_order_acquire);
        const uint32_t own = l->view.header().side[l->side].flags.load(std::memory_order_acquire);
        // Ours, and the one of link_for()
        if (l->listener_id == 0 && ((flags & (kLinkClientDead | kLinkServerDead)) || (own & kLinkLost)) &&
            l->users.load(std::memory_order_acquire) == 2)
            link_unuse(*l);
        link_unuse(*l);
    }
}

/// The names that the kernel has given the connection.
bool take_names(int fd, File &f) noexcept {
    SlotAddress here, there;
    if (kernel_address(fd, &here) < 0 || kernel_peer(fd, &there) < 0)
        return false;
    here.family = there.family = f.family;
    f.stream.client = f.unconnected.side == 0 ? here : there;
    f.stream.server = f.unconnected.side == 0 ? there : here;
    return true;
}

/// Why the connection stays with the kernel. That its peer is another host, connect() has counted.
void count_refusal(const File &f, Cause why) noexcept {
    if (why != Cause::remote_host || f.unconnected.side != 0)
        count_fallback(why, nullptr);
}

/// none: it is a stream.
Cause become_if_alone(int fd, File &f, LinkMap &l, uint32_t slot) noexcept {
    if (rdma::is_remote(l))
        l.transport->recycle(l, slot);
    const LockGuard g(becoming); // no fork meanwhile
    if (!is_held_alone(f))
        return Cause::shared_unjoined;
    // A call that began before the state was changed is counted; one that begins now finds it given up.
    if (f.unconnected.inside.load(std::memory_order_seq_cst) != 0 || !become_joined(fd, f, l, slot))
        return Cause::limit;
    return Cause::none;
}

/// The end is not wanted, or not now.
void refuse(File &f, Cause why) noexcept {
    if (will_try_again(f, why)) {
        set_state(f, OfferState::marked);
        return;
    }
    count_refusal(f, why);
    set_state(f, OfferState::given_up);
}

bool join(int fd, File &f, control::Reply &r) noexcept {
    const auto reply = r.as<wire::OfferReply>();
    const unsigned side = f.unconnected.side;
    set_state(f, OfferState::given_up);
    if (reply.slot >= kLinkSlots) {
        count_fallback(Cause::no_slot, nullptr);
        control::close_received(r);
        return false;
    }
    drop_dead_links();
    Cause why;
    LinkMap *l = link_for(reply, side, r.fd[0], &why);
    if (!l) {
        refuse(f, why);
        return false;
    }
    why = become_if_alone(fd, f, *l, reply.slot);
    if (why != Cause::none) {
        let_go(*l, reply.slot, side);
        count_fallback(why, nullptr);
    }
    link_unuse(*l); // link_for's; the connection has its own
    return why == Cause::none;
}

} // namespace

SD_START_CODE void read_path_mode(const char *text) noexcept {
    constexpr const char *kNames[] = {"", "kernel", "shm", "storm"};
    for (uint8_t i = 1; text && i < 4; ++i)
        if (strcmp(text, kNames[i]) == 0)
            path_mode = static_cast<PathMode>(i);
}

bool is_discovery_on() noexcept {
    const Directory *directory = control::directory();
    return directory && directory->discovery.load(std::memory_order_relaxed);
}

bool mark_for_discovery(int fd, int how) noexcept {
    return sys::setsockopt(fd, kMarkLevel, kMarkName, &how, sizeof how) == 0;
}

void mark_offered(File &f, unsigned side, uint32_t destination) noexcept {
    SD_ASSERT(side < 2 && !is_state(f, OfferState::offered)); // that one would have to be taken back
    rdma::open_device();
    f.unconnected.side = static_cast<uint8_t>(side);
    f.unconnected.destination = destination;
    hold_alone(f);
    f.unconnected.inside.store(0, std::memory_order_relaxed);
    f.unconnected.calls.store(0, std::memory_order_relaxed);
    set_state(f, OfferState::marked);
}

void install_accepted(int fd, unsigned family, int flags) noexcept {
    File *f = static_cast<unsigned>(fd) < kMaxFd ? new_file(FileKind::free) : nullptr;
    if (!f)
        return;
    f->family = static_cast<uint8_t>(family);
    f->real_socket = true;
    f->status.store(flags & SOCK_NONBLOCK ? O_NONBLOCK : 0, std::memory_order_relaxed);
    mark_offered(*f, 1);
    f->kind = FileKind::fresh;
    install_file(fd, f);
}

void give_up_joining(File &f) noexcept {
    if (is_state(f, OfferState::marked))
        note_short_lived(f.unconnected.destination);
    if (is_state(f, OfferState::offered))
        if (const wire::Offered msg{f.unconnected.cookie}; is_of_this_process(f))
            control::tell(wire::Op::take_back, &msg, sizeof msg);
    if (!is_state(f, OfferState::none))
        set_state(f, OfferState::given_up);
}

void closed_unjoined(File &f) noexcept {
    if (is_held_alone(f) || !is_state(f, OfferState::marked))
        return;
    const LockGuard g(joining); // another thread may be about to offer it
    if (is_state(f, OfferState::marked) && f.refs.load(std::memory_order_seq_cst) == 1 &&
        f.unconnected.inside.load(std::memory_order_seq_cst) == 0)
        leave_to_child(f);
}

namespace {

/// Shown by the monitor, for which a child must be more than its parent's (a segment of its own).
void count_shared() noexcept {
    Cause missing;
    if (control::ensure(&missing))
        (void)own_segment();
    count_fallback(Cause::shared_unjoined, nullptr);
}

/// Another process has the socket, too, and this one uses it: the kernel carries it, at least for now.
[[gnu::cold]] void note_shared(File &f) noexcept {
    const uint8_t calls = f.unconnected.calls.load(std::memory_order_relaxed);
    if (inside_operation())
        return;
    if (calls <= kCallsUnoffered)
        f.unconnected.calls.store(static_cast<uint8_t>(calls + 1), std::memory_order_relaxed);
    if (calls == kCallsUnoffered)
        count_shared();
    if (calls >= kCallsUnoffered && !(is_state(f, OfferState::marked) && may_be_left_here(f)))
        give_up_joining(f);
}

/// The parent has left it here. False: it will not be joined all the same.
[[gnu::cold]] bool take_from_parent(File &f) noexcept {
    const LockGuard one(joining);
    if (!may_be_joined(f))
        return false;
    if (!is_held_alone(f) && epoll_is_in_inherited(f)) { // where the parent has it, too
        give_up_joining(f);
        count_shared();
        return false;
    }
    const LockGuard g(becoming); // no fork meanwhile
    if (!is_held_alone(f) && is_left_here(f))
        hold_alone(f);
    return is_held_alone(f);
}

} // namespace

bool become_joined(int fd, File &f, LinkMap &l, uint32_t slot) noexcept {
    SD_ASSERT(!is_state(f, OfferState::none) && f.unconnected.side == l.side && slot < kLinkSlots);
    unsigned seg = 0;
    uint32_t index = 0;
    Ofd *o = take_names(fd, f) ? allocate_ofd(l.id, slot, l.side, &seg, &index) : nullptr;
    if (!o)
        return false;
    o->family = f.family;
    const long status = sys::fcntl(fd, F_GETFL);
    o->status.store(status > 0 ? static_cast<uint32_t>(status) & (O_NONBLOCK | O_APPEND) : 0,
                    std::memory_order_relaxed);
    options_from_kernel(*o, fd);
    begin_paths(*o);
    // What more the program asks for is looked at here. Not set where it is so already: the kernel would tell
    // anew of what is there.
    if (const int one = 1; (o->opt.*kPathRcvlowat).load(std::memory_order_relaxed) != one)
        sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    f.stream.path_fd = fd;
    join_stream(f, l, seg, index, slot, f.family);
    epoll_file_became_stream(f);
    connections_joined.fetch_add(1, std::memory_order_relaxed);
    stats().joined.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool consider_joining(int fd, File &f) noexcept {
    if (sandboxed()) {
        give_up_joining(f);
        return false;
    }
    if (!is_held_alone(f)) [[unlikely]] {
        if (!is_left_here(f)) {
            note_shared(f);
            return false;
        }
        if (inside_operation() || !take_from_parent(f))
            return false;
    }
    if (is_detached()) [[unlikely]] {
        leave_pages_if_told();
        return false;
    }
    if (is_state(f, OfferState::offered) && f.unconnected.joined == joined_so_far()) [[likely]]
        return false;
    if (f.unconnected.inside.load(std::memory_order_relaxed) != 0 || inside_operation())
        return false;
    // Only one of several threads may count it, which is of no importance.
    if (const uint8_t calls = f.unconnected.calls.load(std::memory_order_relaxed);
        calls < kCallsUnoffered && !all_begin_in_kernel()) {
        f.unconnected.calls.store(static_cast<uint8_t>(calls + 1), std::memory_order_relaxed);
        return false;
    }
    if (is_state(f, OfferState::marked)) {
        if (is_too_early(f)) [[unlikely]]
            return false;
        rdma::open_device(); // a child has none yet
    }
    const LockGuard g(joining);
    Cause why;
    if (!may_be_joined(f))
        return f.kind == FileKind::stream;
    if (is_state(f, OfferState::marked) && (!is_established(fd) || !is_held_alone(f)))
        return false;
    const bool has_monitor = control::ensure(&why);
    if (!has_monitor || !own_segment()) {
        count_fallback(has_monitor ? Cause::no_memory : why, nullptr);
        set_state(f, OfferState::given_up);
        return false;
    }
    const uint32_t joined = joined_so_far();
    control::Reply r;
    if (is_state(f, OfferState::marked)) {
        note_lasting(f.unconnected.destination);
        f.unconnected.cookie = cookie_of(fd);
        const wire::Offer msg{f.unconnected.side, static_cast<uint32_t>(rdma::why_not())};
        r = control::request(wire::Op::offer, &msg, sizeof msg, &fd, 1);
        f.unconnected.joined = joined;
        if (r.status < 0 || r.length != sizeof(wire::OfferReply)) {
            refuse(f, control::cause_of(r, Cause::no_monitor));
            control::close_received(r);
            return false;
        }
        if (r.as<wire::OfferReply>().link_id == 0) {
            set_state(f, OfferState::offered);
            control::close_received(r);
            return false;
        }
    } else {
        r = control::request(wire::Op::other_end, nullptr, 0, &fd, 1);
        f.unconnected.joined = joined;
        if (r.status < 0 || r.length != sizeof(wire::OfferReply)) {
            if (const Cause refused = control::cause_of(r, Cause::none);
                r.status == -EACCES && refused != Cause::none) {
                refuse(f, refused); // the other host
            }
            control::close_received(r);
            return false;
        }
    }
    if (r.fds != 1) { // the process had no room for it
        count_fallback(Cause::no_descriptor, nullptr);
        control::close_received(r);
        set_state(f, OfferState::given_up);
        return false;
    }
    return join(fd, f, r);
}

SD_FORK_CODE void offers_fork_prepare() noexcept {
    uint64_t mask;
    becoming.lock(&mask);
    offer_fork_mask = mask; // only now: another thread may be between its own fork's two halves
    inherited_fork_prepare();
}

SD_FORK_CODE void offers_fork_parent() noexcept {
    const uint64_t mask = offer_fork_mask;
    becoming.unlock(&mask);
}

SD_FORK_CODE void offers_fork_child() noexcept {
    joining.reset();
    becoming.reset();
    sys::restore_signals(&offer_fork_mask);
}

} // namespace sd
