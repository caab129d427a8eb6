// A connection that stays with its kernel socket, because somebody without libsd is about to have that.
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/give_back.hpp"
#include "libsd/vfs/paths/keepalive.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include <fcntl.h>
#include <linux/tcp.h>

namespace sd {

namespace {

constexpr int64_t kAnswerNs = 200'000'000; ///< for a peer to answer
constexpr int64_t kLookNs = 200'000;

/// With the receive token: will all that is received from now on come by the socket? What was agreed to may
/// be on its way already.
bool reads_socket_only(const File &f) noexcept {
    const PathStep reads =
        path_step(static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(std::memory_order_relaxed)));
    const bool over = reads == kPathRing && !rx_pending(f) && socket_has_ended(path_socket(f)) &&
                      (f.peer->control.flags.load(std::memory_order_acquire) & kFlagWriteShut);
    return over || (reads != kPathAsked && reads != kPathRing && !is_reading_stopped(*f.ofd));
}

/// Has the peer left the ring, as far as it has said?
bool is_ring_left(const File &f) noexcept {
    const auto reads = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(std::memory_order_relaxed));
    return senders_word(f) == path_word((reads >> 8) + 1, kPathKernel);
}

/// With the receive token: what the peer sends is to come by the socket, also what lies in the ring. False:
/// something lies there that only a read takes out.
bool call_back(int fd, File &f) noexcept {
    const Ofd &o = *f.ofd;
    if (is_reading_stopped(o))
        resume_reading(fd, f, is_ring_left(f)); // if it went without giving back, it is too late
    if (!is_reading_stopped(o))
        follow_sender(fd, f);
    if (is_reading_stopped(o) || (receives_in_ring(o) && !rx_pending(f)))
        return true;
    return stop_reading(f) || !receives_in_ring(o);
}

/// The other end may be ours, too, and nobody in a call on it.
void answer_in_this_process(const File &f) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        File *other = fd_table[i].load(std::memory_order_acquire);
        if (!other || other->kind != FileKind::stream || !take_reference(*other))
            continue;
        const bool is_peer = other->kind == FileKind::stream && other->link->id == f.link->id &&
                             other->slot == f.slot && other->side != f.side;
        if (is_peer)
            answer_call_home(*other);
        release_file(other);
        if (is_peer)
            return;
    }
}

} // namespace

void hand_back(const File &f) noexcept {
    Ofd &o = *f.ofd;
    const int nodelay = o.opt.nodelay.load(std::memory_order_relaxed) != 0;
    const int fd = path_socket(f), low = (o.opt.*kPathRcvlowat).load(std::memory_order_relaxed);
    end_hidden_keepalive(fd, o);
    sys::fcntl(fd, F_SETFL, O_RDWR | o.status.load(std::memory_order_relaxed));
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
    sys::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
    (o.opt.*kPathStays).fetch_and(~kNoNagle, std::memory_order_relaxed);
}

bool stay_in_socket(File &f) noexcept {
    Ofd &o = *f.ofd;
    const Claim tx(f.seg, o.tx.token, f.tx_token_id(), Claim::patient);
    const Claim rx(f.seg, o.rx.token, f.rx_token_id(), Claim::patient);
    const uint32_t block = o.tx_block.load(std::memory_order_acquire);
    if (!tx || !rx || (sends_in_ring(o) && !(block & kTxEnded)) || !(reads_socket_only(f) || (block & kTxReset)))
        return false;
    if (sends_in_ring(o) && (block & kTxShut)) // what the ring holds the peer reads before it looks at a FIN
        sys::call(SYS_shutdown, path_socket(f), SHUT_WR);
    (o.opt.*kPathStays).fetch_or(kStaysPinned, std::memory_order_release);
    hand_back(f);
    return true;
}

bool come_home(File &f) noexcept {
    if (stay_in_socket(f))
        return true;
    Ofd &o = *f.ofd;
    const int64_t end = sys::now_ns() + kAnswerNs;
    const Recipient reader = peers_reader(f), writer = peers_writer(f);
    if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
        (void)call_back(path_socket(f), f); // before the peer hears of it, who would leave the ring
    (o.opt.*kPathWanted).store(kWantKernel, std::memory_order_relaxed);
    o.tx_block.fetch_or(kTxPath, std::memory_order_seq_cst);
    f.mine->control.flags.fetch_or(kFlagHome, std::memory_order_seq_cst);
    do {
        const int fd = path_socket(f);
        bool tell = false;
        if (const Claim tx{f.seg, o.tx.token, f.tx_token_id(), Claim::patient})
            prepare_send(fd, f, &tell);
        if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
            if (!call_back(fd, f))
                return false;
        answer_in_this_process(f);
        reader.tell(); // who sleeps on the other side comes home as well
        writer.tell();
        if (stay_in_socket(f))
            return true;
        sys::nap(kLookNs);
    } while (sys::now_ns() < end);
    if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
        follow_sender(path_socket(f), f); // who reads goes on in the ring
    return false;
}

void end_in_error(File &f) noexcept {
    sockaddr nothing{};
    nothing.sa_family = AF_UNSPEC;
    f.ofd->tx_block.fetch_or(kTxReset, std::memory_order_release);
    set_ended(*f.mine, kFlagReset);
    sys::call(SYS_connect, path_socket(f), sys::arg(&nothing), sizeof nothing); // which sends a reset
    peers_reader(f).tell();
    peers_writer(f).tell();
}

void answer_call_home(File &f) noexcept {
    const PathStep step =
        path_step(static_cast<uint32_t>((f.ofd->opt.*kPathTx).load(std::memory_order_relaxed)));
    if (!has_paths(*f.ofd) || step == kPathKernel || step == kPathNone || !is_told_home(f))
        return;
    const Recipient reader = peers_reader(f);
    bool tell = false;
    if (const Claim tx{f.seg, f.ofd->tx.token, f.tx_token_id(), Claim::patient}) {
        const int fd = path_socket(f);
        if (prepare_send(fd, f, &tell) && (f.ofd->tx_block.load(std::memory_order_relaxed) & kTxEnded))
            (void)sys::call(SYS_shutdown, fd, SHUT_WR); // the FIN that the ring's end stood for
    }
    if (tell)
        reader.tell();
}

bool leave_paths(File &f) noexcept {
    if (!stay_in_socket(f))
        return false;
    for_each_number(f, [&f](int fd) {
        epoll_file_became_kernel(f, fd);
        give_up_number(fd, f);
    });
    return true;
}

void paths_before_sandbox(bool all) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || !take_reference(*f))
            continue;
        if (may_be_joined(*f))
            give_up_joining(*f);
        else if (f->kind == FileKind::stream && has_paths(*f->ofd) && (!all || come_home(*f)))
            (void)leave_paths(*f);
        release_file(f);
    }
}

namespace {

/// Does what is sent go into the ring, or what comes from it, as far as either end has said?
bool is_between_paths(const File &f) noexcept {
    const auto reads = static_cast<uint32_t>((f.ofd->opt.*kPathRx).load(std::memory_order_relaxed));
    // What the peer has left lies here already, whoever reads it.
    return sends_in_ring(*f.ofd) || path_step(reads) == kPathAsked ||
           (path_step(reads) == kPathRing && sender_is_in_ring(f));
}

/// Also one that is in its socket has to be told to stay there.
bool is_home_for_good(const File &f) noexcept {
    return !is_between_paths(f) && (f.ofd->opt.*kPathWanted).load(std::memory_order_relaxed) == kWantKernel &&
           (f.mine->control.flags.load(std::memory_order_relaxed) & kFlagHome);
}

/// The own direction, and the call to the peer. True: both are done.
bool begin_coming_home(File &f) noexcept {
    Ofd &o = *f.ofd;
    const Recipient reader = peers_reader(f), writer = peers_writer(f);
    (o.opt.*kPathWanted).store(kWantKernel, std::memory_order_relaxed);
    o.tx_block.fetch_or(kTxPath, std::memory_order_seq_cst);
    f.mine->control.flags.fetch_or(kFlagHome, std::memory_order_seq_cst);
    const int fd = path_socket(f);
    bool tell = false;
    if (const Claim tx{f.seg, o.tx.token, f.tx_token_id(), Claim::patient})
        prepare_send(fd, f, &tell);
    if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
        follow_sender(fd, f);
    answer_in_this_process(f);
    reader.tell();
    writer.tell();
    return !is_between_paths(f);
}

template <class Act> void for_each_from_host(bool cloexec_too, Act act) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || f->kind != FileKind::stream || !take_reference(*f))
            continue;
        if (f->kind == FileKind::stream && has_paths(*f->ofd) && rdma::is_remote(*f->link) &&
            (cloexec_too || !(sys::fcntl(static_cast<int>(i), F_GETFD) & FD_CLOEXEC)))
            act(*f);
        release_file(f);
    }
}

} // namespace

void leave_device(bool cloexec_too) noexcept {
    constexpr int64_t kBriefNs = 50'000'000; // a fork or an exec waits meanwhile
    if (rdma::remote_links.load(std::memory_order_relaxed) == 0 || inside_operation())
        return;
    const int64_t end = sys::now_ns() + kBriefNs;
    for (bool all = false; !all && sys::now_ns() < end;) {
        all = true;
        for_each_from_host(cloexec_too,
                           [&all](File &f) { all = (is_home_for_good(f) || begin_coming_home(f)) && all; });
        if (all)
            return;
        rdma::progress();
        sys::nap(kLookNs);
    }
    // A child, or the next image, has no device: the monitor carries what the peer has not followed in.
    for_each_from_host(cloexec_too, [](File &f) {
        if (is_between_paths(f))
            rdma::end(*f.link);
    });
}

bool is_path_number(unsigned fd) noexcept {
    const File *f = file_of(static_cast<int>(fd));
    return f && f->kind == FileKind::stream && has_paths(*f->ofd);
}

} // namespace sd
