// Connections on their way to another process and back.
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/kernel_sockets/kernel_pair.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/inode.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/descriptors/unconnected.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/sharing/handoff.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstring>
#include <linux/tcp.h>

namespace sd {

namespace {

/// Gives the monitor a parcel: `passed` is the kernel socket that stands for `f`, `far` what it is connected
/// to. Both stay the caller's.
long hand_in(File &f, wire::BridgeStart start, int passed, int far) noexcept {
    wire::Pass msg{};
    write_handoff(f, msg.handoff);
    msg.segment = f.seg == own_segment_index.load(std::memory_order_acquire) ? 0 : segments[f.seg].owner_client;
    msg.start = static_cast<uint32_t>(start);
    const bool holds = hold_for_parcel(f.seg, f.ofd_index);
    const int fds[] = {passed, far};
    const auto r = control::request(wire::Op::pass, &msg, sizeof msg, fds, 2);
    if (r.status >= 0 || r.status == -EALREADY) // another one's parcel holds it then
        return r.status;
    if (holds) // else it is another parcel's
        unhold_for_parcel(f.seg, f.ofd_index);
    return r.status == -ECONNREFUSED || r.status == -ECONNRESET ? -ENOBUFS : r.status;
}

} // namespace

long make_parcel(File &f, wire::BridgeStart start) noexcept {
    Cause why;
    if (has_paths(*f.ofd)) // a bridge knows the ring only
        return -EBUSY;
    if (!control::ensure(&why))
        return -ENOBUFS; // without a monitor there is nobody to hold it on the way
    SpareNumbers spare;
    int end[2];
    const bool client = f.side == 0;
    if (long r = kernel_pair(client ? f.stream.client : f.stream.server,
                             client ? f.stream.server : f.stream.client, f.family, end);
        r < 0)
        return r == -EMFILE || r == -ENFILE || r == -ENOMEM
                   ? r
                   : -ENOBUFS; // nothing that a network says is known of this call
    const int on = 1;
    if (f.unconnected.options)
        replay_options(end[0], *f.unconnected.options);
    replay_stored_options(end[0], f);
    sys::setsockopt(end[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (start != wire::BridgeStart::for_all) // nobody can claim that
        sys::setsockopt(end[0], IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kParcelMark, sizeof kParcelMark);
    sys::fcntl(end[0], F_SETFL, O_RDWR | f.ofd->status.load(std::memory_order_relaxed));
    // While a parcel is on its way, a FIN at the monitor's end says that nobody has it any more.
    const bool bridged_now = start == wire::BridgeStart::for_all || start == wire::BridgeStart::at_once;
    if (bridged_now && f.ofd->rx_shut.load(std::memory_order_relaxed))
        sys::call(SYS_shutdown, end[0], SHUT_RD);
    if (bridged_now && (f.ofd->tx_block.load(std::memory_order_relaxed) & kTxShut))
        sys::call(SYS_shutdown, end[0], SHUT_WR);

    const long r = hand_in(f, start, end[0], end[1]);
    sys::close(end[1]);
    if (r < 0) {
        sys::close(end[0]);
        return r;
    }
    return end[0];
}

long become_kernel_request(File &f) noexcept {
    SpareNumbers spare;
    const long made = kernel_request(f.stream.client, f.stream.server, f.family);
    if (made < 0)
        return made;
    const int fd = static_cast<int>(made), on = 1;
    sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // What it is connected to lies in the listener's queue and has no descriptor yet; the parcel goes by this
    // end's name instead.
    const long r = hand_in(f, wire::BridgeStart::at_once, fd, fd);
    sys::close(fd);
    return r;
}

long become_kernel(File &f, Cause why) noexcept {
    long made = -EBUSY;
    for (unsigned n = 0; made == -EBUSY && n < kTriesToPass; ++n) {
        if (has_paths(*f.ofd)) [[unlikely]] {
            if (!come_home(f) || !leave_paths(f))
                return -ENOBUFS;
            count_fallback(why, nullptr);
            return 0;
        }
        if (moved(f) || held_elsewhere(f.seg, f.ofd_index))
            return move_to_kernel(f, why);
        made = make_parcel(f, wire::BridgeStart::at_once);
    }
    if (made < 0)
        return made == -EBUSY ? -ENOBUFS : made;
    count_fallback(why, nullptr);
    exchange_numbers(f, static_cast<int>(made));
    sys::close(static_cast<int>(made));
    return 0;
}

void exchange_numbers(File &f, int made) noexcept {
    bool first = true;
    if (f.kind == FileKind::stream)
        note_told_inode(made, inode_of(f));
    f.exchanged.store(true, std::memory_order_relaxed); // before the table says so
    for_each_number(f, [&](int fd) {
        if (first && f.real_socket) { // who is to be signalled, and how, was kept in the file that goes now
            f_owner_ex owner{};
            if (sys::fcntl(fd, F_GETOWN_EX, sys::arg(&owner)) == 0 && owner.pid != 0)
                sys::fcntl(made, F_SETOWN_EX, sys::arg(&owner));
            if (const long signal = sys::fcntl(fd, F_GETSIG); signal > 0)
                sys::fcntl(made, F_SETSIG, signal);
        }
        first = false;
        (void)replace_number(fd, made); // fails for one that the kernel has no more
        epoll_file_became_kernel(f, fd);
        give_up_number(fd, f);
    });
}

namespace {

SD_FORK_STATE constinit Lock admission;

/// Our mapping of a link that was passed to us, with a reference for the caller; ownership of the descriptor
/// passes.
LinkMap *link_for(uint64_t id, unsigned side, int memfd) noexcept {
    if (LinkMap *l = link_in_use(id, side)) {
        close_hidden(memfd);
        return l;
    }
    // The slots are the sender's to give out; who has the other side it does not say.
    return map_hidden_link(memfd, id, side, 0, LinkPeer::stranger);
}

/// What this process has for the connection already, with a reference for the caller: it was passed to itself
/// or came back.
File *file_we_have(unsigned seg, uint32_t ofd_index) noexcept {
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd) {
        File *f = file_of(static_cast<int>(fd));
        if (!f || f->kind != FileKind::stream || f->seg != seg || f->ofd_index != ofd_index)
            continue;
        if (!take_reference(*f))
            continue;
        if (f->kind == FileKind::stream && f->seg == seg && f->ofd_index == ofd_index)
            return f;
        release_file(f);
    }
    return nullptr;
}

/// The File for a connection that is claimed, with a reference for the caller. There is one bit that says
/// whether this process holds it, so two Files for one connection would each end what the other one still
/// has.
File *admit_once(const HandoffRecord &p, unsigned seg, LinkMap &l) noexcept {
    const QuietGuard g(admission);
    for (unsigned n = 0; n < 1000; ++n) {
        if (File *f = file_we_have(seg, p.ofd_index))
            return f;
        if (!holds_ofd(seg, p.ofd_index))
            break;
        sys::sched_yield(); // a thread of ours is about to give it up
    }
    hold_ofd(seg, p.ofd_index);
    File *f = admit(p, seg, l);
    if (f)
        f->refs.store(1, std::memory_order_relaxed);
    else
        (void)drop_ofd(seg, p.ofd_index); // it is not the last one: the parcel holds it
    return f;
}

/// For a socket that stood for a connection. For a minute its names could not be used for the next that is
/// passed, else.
void end_without_a_trace(int fd) noexcept {
    const linger at_once{1, 0};
    sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/// With segment and link in hand: the descriptor becomes a handle of the connection. False: it stays what it
/// is. `carries`: this is sd-bridge.
bool take_over(int fd, const HandoffRecord &p, int seg, LinkMap &l, bool carries) noexcept {
    if (!handoff_valid(p, static_cast<unsigned>(seg), l))
        return false;
    const long dummy = dummy_socket();
    if (dummy < 0 || sys::fcntl(fd, F_GETFD) < 0)
        return false;
    File *f = admit_once(p, static_cast<unsigned>(seg), l);
    if (!f)
        return false;
    if (carries)
        f->stream.carried = true;
    end_without_a_trace(fd);
    (void)replace_number(fd, static_cast<int>(dummy)); // fails if somebody has closed it
    install_file(fd, f);
    release_file(f);
    return true;
}

bool claim(int fd) noexcept {
    auto r = control::request(wire::Op::claim, nullptr, 0, &fd, 1);
    if (r.status < 0 || r.fds != 2 || r.length != sizeof(wire::ClaimReply)) {
        if (r.status == -EPERM && r.length == sizeof(wire::Refused)) {
            if (r.fds == 1) { // its holders share that one by now
                end_without_a_trace(fd);
                (void)replace_number(fd, r.fd[0]); // fails where another thread has closed it
            }
            note_told_inode(fd, r.as<wire::Refused>().inode);
        }
        control::close_received(r);
        return false;
    }
    const wire::ClaimReply reply = r.as<wire::ClaimReply>();
    const long segment_fd = hide_fd(r.fd[0]), link_fd = hide_fd(r.fd[1]);
    bool done = false;
    if (segment_fd >= 0 && link_fd >= 0) {
        const int seg = join_segment(static_cast<int>(segment_fd), reply.segment);
        LinkMap *l = link_for(reply.handoff.link_id, reply.handoff.side, static_cast<int>(link_fd));
        done = seg >= 0 && l && take_over(fd, reply.handoff, seg, *l, reply.tell != 0);
        if (l)
            link_unuse(*l);
    } else {
        close_hidden(static_cast<int>(segment_fd));
        close_hidden(static_cast<int>(link_fd));
    }
    if (reply.tell || !done) { // what we cannot take is bridged to us
        wire::ParcelRef ref{reply.parcel};
        control::request(wire::Op::claimed, &ref, sizeof ref);
    }
    return done;
}

} // namespace

SD_FORK_CODE void descriptor_passing_fork_child() noexcept { admission.reset(); }

void claim_parcel(int fd) noexcept {
    int mark = 0;
    socklen_t n = sizeof mark;
    if (static_cast<unsigned>(fd) >= kMaxFd || !vfs::enabled() ||
        sys::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &mark, &n) < 0 || mark != kParcelMark)
        return;
    SpareNumbers spare;
    Cause why = Cause::passed;
    if (!control::ensure(&why) || !claim(fd)) {
        count_fallback(why == Cause::none ? Cause::passed : why, nullptr);
        mark = 0; // the system's default
        sys::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &mark, sizeof mark);
    }
}

namespace {

/// Calls fn(int &) for each descriptor in the control data; it may be read only.
template <class Fn> void each_right(void *control, size_t length, Fn fn) noexcept {
    auto *at = static_cast<unsigned char *>(control);
    while (length >= sizeof(cmsghdr)) {
        cmsghdr h;
        memcpy(&h, at, sizeof h);
        if (h.cmsg_len < sizeof h || h.cmsg_len > length)
            return;
        if (h.cmsg_level == SOL_SOCKET && h.cmsg_type == SCM_RIGHTS)
            for (size_t i = CMSG_LEN(0); i + sizeof(int) <= h.cmsg_len; i += sizeof(int))
                fn(at + i);
        const size_t step = CMSG_ALIGN(h.cmsg_len);
        if (step >= length)
            return;
        at += step;
        length -= step;
    }
}

int number_at(const void *p) noexcept {
    int fd;
    memcpy(&fd, p, sizeof fd);
    return fd;
}

bool means_nothing_elsewhere(int fd) noexcept {
    if (is_hidden(fd))
        return true;
    const File *f = still_ours(fd, file_of(fd));
    return f && (f->kind == FileKind::stream || (f->kind == FileKind::fresh && !f->real_socket));
}

} // namespace

bool OutgoingRights::concerns(const msghdr &m) noexcept {
    // Control data that cannot be read, or is larger than any that makes sense, is the kernel's to refuse.
    unsigned char copy[1200];
    if (m.msg_controllen < sizeof(cmsghdr) || m.msg_controllen > sizeof copy || !m.msg_control ||
        sd_copy(copy, m.msg_control, m.msg_controllen))
        return false;
    bool found = false;
    each_right(copy, m.msg_controllen, [&](const unsigned char *at) {
        const int fd = number_at(at);
        found |= means_nothing_elsewhere(fd);
        if (File *f = file_of(fd); f && f->kind == FileKind::epoll)
            epoll_passed(*f, fd);
        else if (f && f->kind == FileKind::fresh && f->real_socket)
            mark_shared(*f), give_up_joining(*f);
    });
    return found;
}

long OutgoingRights::pass_stream(File &f) noexcept {
    long made = -EBUSY;
    for (unsigned n = 0; made == -EBUSY && n < kTriesToPass; ++n) {
        if (moved(f) && follow(f))
            return kGoesItself;
        if (has_paths(*f.ofd))
            return come_home(f) ? kGoesItself : -ENOBUFS;
        made = count_ == kMost ? -EINVAL : make_parcel(f, wire::BridgeStart::unclaimed);
    }
    return made == -EBUSY ? -ENOBUFS : made;
}

long OutgoingRights::rewrite(msghdr &m, void *room) noexcept {
    if (sd_copy(room, m.msg_control, m.msg_controllen))
        return -EFAULT;
    m.msg_control = room;
    long error = 0;
    each_right(room, m.msg_controllen, [&](unsigned char *at) {
        const int fd = number_at(at);
        if (error || !means_nothing_elsewhere(fd))
            return;
        File *f = file_of(fd);
        if (is_hidden(fd) || !f) {
            error = -EBADF;
        } else if (f->kind != FileKind::stream) {
            // Not connected: from now on it is one kernel socket, here and there.
            error = fall_back(fd, f, Cause::passed, nullptr);
        } else {
            const long made = pass_stream(*f);
            if (made >= 0 && made != kGoesItself) {
                const int number = static_cast<int>(made);
                made_[count_++] = number;
                memcpy(at, &number, sizeof number);
            } else if (made < 0) {
                error = made;
            }
        }
    });
    return error;
}

OutgoingRights::~OutgoingRights() {
    for (unsigned i = 0; i < count_; ++i)
        sys::close(made_[i]);
}

} // namespace sd
