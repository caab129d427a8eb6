// A program that sends, receives, waits, accepts and dies on a connection whose other side writes anywhere in
// the link: between its calls as the input says, and in every fourth run from a second thread while they go
// on. In some runs the connection has a kernel socket as well (far_socket.hpp), or the peer hands bytes over
// out of a pool, or the monitor has marked the connection as moved to the kernel.
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "tests/fuzz/far_socket.hpp"
#include "tests/fuzz/link_peer.hpp"

#include <array>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <vector>

using namespace sd;

namespace {

constexpr unsigned kSteps = 64;

struct Option {
    int level, name;
};
constexpr Option kOptions[] = {
    {SOL_SOCKET, SO_LINGER},       {SOL_SOCKET, SO_SNDBUF},    {SOL_SOCKET, SO_RCVLOWAT},
    {SOL_SOCKET, SO_OOBINLINE},    {SOL_SOCKET, SO_ZEROCOPY},  {SOL_SOCKET, SO_ERROR},
    {SOL_SOCKET, SO_KEEPALIVE},    {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK},
    {IPPROTO_TCP, TCP_QUICKACK},   {IPPROTO_TCP, TCP_INFO},    {IPPROTO_TCP, TCP_USER_TIMEOUT},
    {IPPROTO_IPV6, IPV6_ADDRFORM}, {SOL_SOCKET, SO_RCVTIMEO},  {SOL_SOCKET, SO_SNDTIMEO},
};

/// The program.
class Victim {
  public:
    Victim(sdfuzz::Process &process, unsigned side) : process_(process), side_(side) {
        fds_.push_back(process.connection(0, side));
        static const int set = [] {
            const int fd = epoll_create1(EPOLL_CLOEXEC);
            vfs::epoll_created(fd);
            return fd;
        }();
        set_ = set;
    }
    ~Victim() {
        for (const int fd : fds_) {
            if (file_of(fd) != nullptr) {
                vfs::close(fd);
            } else {
                close(fd);
            }
        }
    }
    Victim(const Victim &) = delete;
    Victim &operator=(const Victim &) = delete;

    int first() const { return fds_.front(); }

    void act(sdfuzz::Input &in) {
        const int fd = any(in);
        File *f = file_of(fd);
        if (f == nullptr || f->kind != FileKind::stream) {
            return;
        }
        const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        const uint8_t what = in.take<uint8_t>();
        if (what >= kRarer) {
            act_rarely(fd, *f, what - kRarer, in, flags);
            return;
        }
        switch (what % 24) {
        case 0:
        case 1:
        case 2: {
            const size_t n = size(in);
            const int more = in.below(4) == 0 ? MSG_MORE : in.below(8) == 0 ? MSG_OOB : 0;
            (void)vfs::send(fd, f, out_.last(n), n, flags | more);
            break;
        }
        case 3:
        case 4:
        case 5: {
            const size_t n = size(in);
            constexpr int kKinds[] = {0,       0,           MSG_PEEK, MSG_TRUNC,
                                      MSG_OOB, MSG_WAITALL, MSG_PEEK, MSG_ERRQUEUE};
            must_fit(vfs::recv(fd, f, in_.last(n), n, flags | kKinds[in.below(8)]), n, in);
            break;
        }
        case 6:
            gather(fd, *f, in, flags);
            break;
        case 7:
            message(fd, *f, in, flags);
            break;
        case 8:
        case 9:
            look(fd, in);
            break;
        case 10:
        case 11:
            watch(fd, in);
            break;
        case 12:
            set_option(fd, in);
            break;
        case 13: {
            const Option o = kOptions[in.below(sizeof kOptions / sizeof kOptions[0])];
            socklen_t n = static_cast<socklen_t>(in.below(255));
            (void)vfs::getsockopt(fd, o.level, o.name, in_.last(n), &n);
            break;
        }
        case 14: {
            int n = 0;
            constexpr unsigned long kAsked[] = {FIONREAD, TIOCOUTQ, SIOCATMARK};
            (void)vfs::ioctl(fd, kAsked[in.below(3)], &n);
            break;
        }
        case 15:
            (void)vfs::shutdown(fd, static_cast<int>(in.below(3)));
            break;
        case 16:
        case 17:
            take(in);
            break;
        case 18:
            if (const long copy = vfs::dup(fd, 0, true); copy >= 0) {
                fds_.push_back(static_cast<int>(copy));
            }
            break;
        case 19: {
            sockaddr_storage a{};
            socklen_t n = sizeof a;
            (void)vfs::getpeername(fd, reinterpret_cast<sockaddr *>(&a), &n);
            break;
        }
        case 20:
            die(*f, in);
            break;
        case 21:
            move_file(fd, in);
            break;
        case 22:
            block(fd, *f, in);
            break;
        default:
            if (in.rarely(8)) {
                narrow_arena(*process_.link[side_]); // its address space is limited from now on
            } else if (in.below(4) == 0) {           // ends one, begins another
                vfs::close(fd);
                std::erase(fds_, fd);
                if (fds_.empty()) {
                    process_.slot(1).side[0].control.flags = process_.slot(1).side[1].control.flags = 0;
                    fds_.push_back(process_.connection(1, side_));
                }
            }
        }
    }

  private:
    static constexpr uint8_t kRarer = 244;
    /// What programs seldom do.
    void act_rarely(int fd, File &f, unsigned what, sdfuzz::Input &in, int flags) {
        static char *const nowhere = static_cast<char *>(sdfuzz::no_memory());
        const size_t n = size(in);
        const timeval soon{0, 1};
        switch (what) {
        case 0:
            (void)vfs::send(fd, &f, nowhere - n / 2, n, flags);
            break;
        case 1:
            (void)vfs::recv(fd, &f, nowhere - n / 2, n, flags | (in.below(4) == 0 ? MSG_WAITALL : 0));
            break;
        case 2: { // a good piece, and then a bad one or one that is too long
            std::array<iovec, 2> v{iovec{out_.last(n), n}, iovec{nowhere, in.below(4) == 0 ? SIZE_MAX : n}};
            (void)(in.below(2) != 0 ? vfs::recvv(fd, &f, v.data(), 2, flags)
                                    : vfs::sendv(fd, &f, v.data(), 2, flags));
            break;
        }
        case 3: // the monitor marks it
            f.ofd->tx_block.fetch_or(kTxMoved);
            break;
        case 4: {
            ReceivedBytes got{};
            const long r = receive_in_place(fd, in_.last(n), n, n, flags, &got);
            if (r > 0 && got.pool != nullptr) {
                release_taken(got.pool, got.epoch, got.buffer, static_cast<uint64_t>(r));
            }
            break;
        }
        case 5: // waits, and takes nothing
            (void)vfs::fcntl(fd, F_SETFL, 0);
            (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
            (void)vfs::recv(fd, &f, in_.last(n), n, MSG_PEEK | (in.below(2) != 0 ? MSG_WAITALL : 0));
            break;
        case 6: { // waits for more than there is
            const int low = 1 + in.take<uint8_t>();
            (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
            (void)vfs::fcntl(fd, F_SETFL, 0);
            (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
            (void)vfs::recv(fd, &f, in_.last(n), n, 0);
            break;
        }
        case 7:
            (void)vfs::send(fd, &f, out_.last(n), n, flags | MSG_ZEROCOPY | (in.below(4) == 0 ? MSG_MORE : 0));
            break;
        case 8:
            move_meanwhile(fd, f, in, n);
            break;
        case 9: // as programs do that have SIGPIPE ignored
            (void)vfs::send(fd, &f, out_.last(n), n, MSG_DONTWAIT);
            break;
        case 10: {
            const std::array<iovec, 2> v{iovec{in_.last(n), n}, iovec{in_.last(0), 0}};
            const int fresh = static_cast<int>(vfs::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
            File *const unconnected = file_of(fresh);
            if (in.below(2) != 0) {
                (void)vfs::recv(fresh, unconnected, in_.last(n), n, flags);
                (void)vfs::sendv(fresh, unconnected, v.data(), 2, flags);
            } else {
                (void)vfs::send(fresh, unconnected, out_.last(n), n, flags);
                (void)vfs::recvv(fresh, unconnected, v.data(), 2, flags);
            }
            vfs::close(fresh);
            break;
        }
        default: { // a list that is none
            const std::array<iovec, 2> v{iovec{in_.last(n), SIZE_MAX}, iovec{in_.last(n), SIZE_MAX}};
            (void)(in.below(2) != 0 ? vfs::recvv(fd, &f, v.data(), 2, flags)
                                    : vfs::sendv(fd, &f, v.data(), 2, flags));
        }
        }
    }
    /// A call waits, and the monitor marks the connection as moved.
    static void move_meanwhile(int fd, File &f, sdfuzz::Input &in, size_t n) {
        if (in.below(4) != 0 || !take_reference(f)) {
            return;
        }
        const timeval brief{0, 20000};
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
        std::thread monitor([&f] {
            usleep(50);
            f.ofd->tx_block.fetch_or(kTxMoved);
            notify_own(f);
        });
        if (in.below(2) != 0) {
            (void)vfs::recv(fd, &f, in_.last(n), n, MSG_WAITALL);
        } else {
            (void)vfs::send(fd, &f, out_.last(sdfuzz::Room::kBytes), sdfuzz::Room::kBytes, MSG_NOSIGNAL);
        }
        monitor.join();
        release_file(&f);
    }
    int any(sdfuzz::Input &in) const { return fds_[in.below(static_cast<unsigned>(fds_.size()))]; }
    static size_t size(sdfuzz::Input &in) {
        const size_t n = in.take<uint8_t>();
        return in.below(8) == 0 ? n * 512 : n * 2; // 0 is one, too
    }
    /// More than was asked for has never been received.
    static void must_fit(long got, size_t n, const sdfuzz::Input &) {
        sdfuzz::must(got == vfs::kPass || got <= static_cast<long>(n) || got <= 1 << 22);
    }
    void gather(int fd, File &f, sdfuzz::Input &in, int flags) {
        std::array<iovec, 3> v;
        for (iovec &part : v) {
            const size_t n = in.take<uint8_t>();
            part = {in_.last(n), n};
        }
        if (in.below(2) != 0) {
            (void)vfs::recvv(fd, &f, v.data(), 3, flags);
        } else {
            (void)vfs::sendv(fd, &f, v.data(), 3, flags);
        }
    }
    void message(int fd, File &f, sdfuzz::Input &in, int flags) {
        std::array<mmsghdr, 2> two{};
        std::array<iovec, 2> v;
        alignas(cmsghdr) std::array<char, 64> control{};
        sockaddr_storage name{};
        for (unsigned i = 0; i < 2; ++i) {
            const size_t n = in.take<uint8_t>();
            v[i] = {in_.last(n), n};
            two[i].msg_hdr.msg_iov = &v[i];
            two[i].msg_hdr.msg_iovlen = 1;
            if (in.below(4) == 0) {
                two[i].msg_hdr.msg_control = control.data();
                two[i].msg_hdr.msg_controllen = control.size();
                two[i].msg_hdr.msg_name = &name;
                two[i].msg_hdr.msg_namelen = sizeof name;
            }
        }
        const int peek = in.below(4) == 0 ? MSG_PEEK : in.below(8) == 0 ? MSG_ERRQUEUE : 0;
        switch (in.below(4)) {
        case 0:
            (void)vfs::recvmsg(fd, &f, &two[0].msg_hdr, flags | peek);
            break;
        case 1:
            two[0].msg_hdr.msg_controllen = 0;
            (void)vfs::sendmsg(fd, &f, &two[0].msg_hdr, flags);
            break;
        case 2:
            (void)vfs::recvmmsg(fd, &f, two.data(), 2, flags, nullptr);
            break;
        default:
            two[0].msg_hdr.msg_controllen = two[1].msg_hdr.msg_controllen = 0;
            (void)vfs::sendmmsg(fd, &f, two.data(), 2, flags);
        }
    }
    void look(int fd, sdfuzz::Input &in) const {
        const timespec now{0, in.below(32) == 0 ? 1000 : 0};
        if (in.below(2) != 0) {
            std::array<pollfd, 2> p{pollfd{fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0},
                                    pollfd{process_.listening, POLLIN, 0}};
            (void)vfs::poll(p.data(), 1 + in.below(2), &now, nullptr);
            return;
        }
        fd_set r, w, e;
        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_ZERO(&e);
        FD_SET(fd, &r);
        FD_SET(fd, &w);
        FD_SET(fd, &e);
        (void)vfs::select(fd + 1, &r, &w, &e, &now, nullptr);
    }
    void watch(int fd, sdfuzz::Input &in) const {
        epoll_event e{};
        e.events = in.below(2) != 0 ? uint32_t{EPOLLIN | EPOLLOUT | EPOLLRDHUP} : uint32_t{EPOLLIN};
        constexpr uint32_t kKinds[] = {0, EPOLLET, EPOLLONESHOT, EPOLLPRI};
        e.events |= kKinds[in.below(4)];
        const int member = in.below(8) == 0 ? process_.listening : fd;
        switch (in.below(6)) {
        case 0:
        case 1:
            (void)vfs::epoll_ctl(set_, EPOLL_CTL_ADD, member, &e);
            break;
        case 2:
            (void)vfs::epoll_ctl(set_, EPOLL_CTL_MOD, member, &e);
            break;
        case 3:
            (void)vfs::epoll_ctl(set_, EPOLL_CTL_DEL, member, nullptr);
            break;
        default: {
            std::array<epoll_event, 4> events;
            const timespec wait{0, in.below(32) == 0 ? 1000 : 0};
            (void)vfs::epoll_wait(set_, events.data(), 1 + static_cast<int>(in.below(4)), &wait, nullptr);
        }
        }
    }
    static void set_option(int fd, sdfuzz::Input &in) {
        const Option o = kOptions[in.below(sizeof kOptions / sizeof kOptions[0])];
        std::array<int, 4> value{static_cast<int>(in.take<uint8_t>()), static_cast<int>(in.below(4)), 0, 0};
        socklen_t n = sizeof(int);
        if (o.name == SO_LINGER && o.level == SOL_SOCKET) {
            n = sizeof(linger);
            value[0] = static_cast<int>(in.below(2));
            value[1] = 0; // nobody waits
        } else if (o.name == SO_SNDBUF && o.level == SOL_SOCKET) {
            value[0] <<= 12;
        } else if (o.level == SOL_SOCKET && (o.name == SO_RCVTIMEO || o.name == SO_SNDTIMEO)) {
            const timeval soon{0, 1};
            memcpy(value.data(), &soon, sizeof soon);
            n = sizeof soon;
        } else if (o.level == IPPROTO_IPV6) {
            value[0] = AF_INET;
        }
        (void)vfs::setsockopt(fd, o.level, o.name, value.data(), in.below(16) != 0 ? n : in.below(16));
    }
    /// accept(), with nothing from the kernel's queue.
    void take(sdfuzz::Input &in) {
        if (in.below(2) != 0) { // an honest request comes first
            Slot &s = process_.slot(1);
            s.identity.client = sdfuzz::Process::name(static_cast<uint16_t>(40000 + in.below(255)));
            s.identity.server = sdfuzz::Process::name(80);
            s.identity.state = static_cast<uint32_t>(SlotState::syn);
            process_.link[0]->view.syn(process_.listener_segment->link[0].syn_head) = sdfuzz::kFirstSlot + 2;
        }
        if (const long fd = vfs::accept(process_.listening, nullptr, nullptr, SOCK_NONBLOCK); fd >= 0) {
            fds_.push_back(static_cast<int>(fd));
        }
    }
    /// The thread that had a direction was killed in the middle, and the survivors go on.
    static void die(File &f, sdfuzz::Input &in) {
        Ofd &o = *f.ofd;
        SegmentView v = segments[f.seg].view;
        constexpr uint32_t kDead = 5, kLife = 9;
        ThreadRecord &dead = v.thread(kDead);
        dead.generation = kLife;
        dead.state = in.below(4) == 0 ? 1 : 0; // or another has the record by now
        if (dead.state != 0) {
            dead.generation = kLife + 1;
        }
        if (in.below(2) != 0) {
            o.rx.token.owner = make_thread_id(kDead, kLife);
            if (in.below(2) != 0 && !ring::inside(o.rx.s)) {
                o.rx.s.changing = static_cast<uint16_t>(o.rx.s.cls + 1);
            }
        }
        if (in.below(2) != 0) {
            o.tx.token.owner = make_thread_id(kDead, kLife);
            if (in.below(2) != 0 && o.tx.s.tail == o.tx.s.base && o.tx.s.tail != 0) {
                o.tx.s.tail -= 8; // changed to this ring, and did not say so
                o.tx.s.changing = static_cast<uint16_t>(o.tx.s.cls + 1);
            }
        }
        v.header().deaths.fetch_add(1);
        look_after_orphans();
        dead.state = 0;
    }
    void move_file(int fd, sdfuzz::Input &in) const {
        static const int file = [] {
            const int made = memfd_create("file", MFD_CLOEXEC);
            sdfuzz::must(ftruncate(made, 1 << 20) == 0);
            return made;
        }();
        static const std::array<int, 2> pipe = [] {
            int ends[2];
            sdfuzz::must(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
            return std::array<int, 2>{ends[0], ends[1]};
        }();
        (void)vfs::fcntl(fd, F_SETFL, O_NONBLOCK);
        off64_t at = 0;
        const size_t n = size(in);
        switch (in.below(3)) {
        case 0:
            (void)vfs::sendfile(fd, file, &at, n);
            break;
        case 1:
            (void)vfs::splice(fd, nullptr, pipe[1], nullptr, n, SPLICE_F_NONBLOCK);
            break;
        default:
            (void)vfs::splice(pipe[0], nullptr, fd, nullptr, n, SPLICE_F_NONBLOCK);
        }
    }
    /// A call that waits, for as short as there is.
    void block(int fd, File &f, sdfuzz::Input &in) const {
        if (in.below(2) != 0) {
            return;
        }
        const timeval soon{0, 1};
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
        const size_t n = size(in);
        if (in.below(2) != 0) {
            (void)vfs::recv(fd, &f, in_.last(n), n, MSG_NOSIGNAL | (in.below(2) != 0 ? MSG_WAITALL : 0));
        } else {
            (void)vfs::send(fd, &f, out_.last(n), n, MSG_NOSIGNAL);
        }
    }

    sdfuzz::Process &process_;
    unsigned side_;
    int set_ = -1;
    std::vector<int> fds_;
    static inline const sdfuzz::Room in_, out_;
};

} // namespace

/// What the monitor has ready for those who ask: pools of the peer's, or the socket that a connection which
/// has moved goes on as.
class Answers {
  public:
    void make(sdfuzz::Process &process, bool moves) {
        const int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
        sdfuzz::must(lowest >= 0 && close(lowest) == 0);
        lowest_ = lowest;
        for (unsigned n = 0; n < 3; ++n) {
            process.monitor.answer(nullptr, 0, moves ? &other_ : pool_.data(), moves ? 1 : 2);
        }
    }
    /// Some were for requests whose answers honest monitors send without descriptors.
    void close_left() const {
        for (int fd = lowest_; fd >= 0 && fd < lowest_ + 128; ++fd) {
            if (is_same(fd, other_) || is_same(fd, pool_[0]) || is_same(fd, pool_[1])) {
                close(fd);
            }
        }
    }

  private:
    static bool is_same(int fd, int own) {
        struct stat a {
        }, b{};
        return fd != own && fstat(fd, &a) == 0 && fstat(own, &b) == 0 && a.st_ino == b.st_ino &&
               a.st_dev == b.st_dev;
    }
    static std::array<int, 2> make_pool() {
        const std::array<int, 2> made{memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                                      memfd_create("ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
        sdfuzz::must(ftruncate(made[0], 16 << 10) == 0 && ftruncate(made[1], sizeof(PoolLedger)) == 0 &&
                     fcntl(made[0], F_ADD_SEALS, kPoolSeals) == 0 &&
                     fcntl(made[1], F_ADD_SEALS, kLedgerSeals) == 0);
        return made;
    }
    int lowest_ = -1;
    static inline const std::array<int, 2> pool_ = make_pool();
    static inline const int other_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

/// In the upper half of an input's first byte.
constexpr unsigned kHasMoved = 12, kHandsOver = 13, kInRing = 14, kInSocket = 15;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sdfuzz::Process process;
    // It waits for work when all ends.
    static sdfuzz::Scribbler &scribbler = *new sdfuzz::Scribbler(process.link[0]->view);
    static bool bells = [] { // ids for the thread and for the set, which they keep
        const wire::BellReply reply{5, 1, 0, 0}, other{6, 1, 0, 0};
        process.monitor.answer(&reply, sizeof reply, nullptr, 0);
        process.monitor.answer(&other, sizeof other, nullptr, 0);
        return true;
    }();
    static const bool recovers = (sdfuzz::recover_from_bad_pointers(), true);
    (void)bells;
    (void)recovers;
    Answers answers;
    sdfuzz::Input in(data, size);
    const uint8_t how = in.take<uint8_t>();
    const unsigned side = how & 1, kind = how >> 4;
    {
        Victim victim(process, side);
        sdfuzz::Peer peer{process.link[1 - side], 1 - side, sdfuzz::kFirstSlot};
        sdfuzz::FarSocket far;
        if (kind == kInRing || kind == kInSocket) {
            far.join(victim.first(), *file_of(victim.first()), kind == kInRing);
        } else if (kind == kHandsOver || kind == kHasMoved) {
            answers.make(process, kind == kHasMoved);
        }
        if ((how & 6) == 6) {
            scribbler.begin(in.take<uint64_t>());
        }
        for (unsigned step = 0; step < kSteps && !in.empty(); ++step) {
            const uint8_t who = in.take<uint8_t>();
            if (who >= 192 && far.is_open()) {
                Slot &s = peer.words();
                far.act(in, s.side[peer.side], s.side[side], peer.tx.tail);
                continue;
            }
            if (who >= 208 && kind == kHandsOver) {
                peer.hand_over(in);
                continue;
            }
            switch (who % 8) {
            case 0:
            case 1:
                peer.speak(in);
                break;
            case 2:
                peer.listen(in);
                break;
            case 3:
                if (in.below(4) == 0) {
                    peer.end(in);
                } else {
                    sdfuzz::scribble(in, process.link[0]->view);
                }
                break;
            default:
                victim.act(in);
            }
        }
        scribbler.end();
    }
    process.reset();
    answers.close_left();
    return 0;
}
