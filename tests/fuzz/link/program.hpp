// The program of link_fuzz: the calls that it makes on a connection and on what belongs to it.
#pragma once
#include "libsd/vfs/family/orphans.hpp"
#include "tests/fuzz/link/rare_calls.hpp"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <vector>

namespace sdfuzz {

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
class Program {
  public:
    Program(Process &process, unsigned side) : process_(process), side_(side) {
        fds_.push_back(process.connection(0, side));
        static const int set = [] {
            const int fd = epoll_create1(EPOLL_CLOEXEC);
            vfs::epoll_created(fd);
            return fd;
        }();
        set_ = set;
    }
    ~Program() {
        for (const int fd : fds_) {
            if (file_of(fd) != nullptr) {
                vfs::close(fd);
            } else {
                close(fd);
            }
        }
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    int first() const { return fds_.front(); }
    /// Waits in a call and in the set, so that both have ids for the link, which they keep.
    void wait_once() const {
        const timeval soon{0, 1};
        const timespec wait{0, 1000};
        epoll_event e{EPOLLIN, {}};
        (void)vfs::setsockopt(first(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        (void)vfs::recv(first(), file_of(first()), in_room.last(1), 1, 0);
        (void)vfs::epoll_ctl(set_, EPOLL_CTL_ADD, first(), &e);
        (void)vfs::epoll_wait(set_, &e, 1, &wait, nullptr);
    }
    void add(int fd) { fds_.push_back(fd); }
    void act_otherwise(Input &in) {
        const int fd = any(in);
        File *f = file_of(fd);
        if (f != nullptr && f->kind == FileKind::stream && end_otherwise(fd, *f, in)) {
            std::erase(fds_, fd);
            begin_next();
        }
    }

    void act(Input &in) {
        const int fd = any(in);
        File *f = file_of(fd);
        if (f != nullptr && may_be_joined(*f)) {
            call_unjoined(fd, *f, in);
            return;
        }
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
            const size_t n = call_size(in);
            const int more = in.below(4) == 0 ? MSG_MORE : in.below(8) == 0 ? MSG_OOB : 0;
            (void)vfs::send(fd, f, out_room.last(n), n, flags | more);
            break;
        }
        case 3:
        case 4:
        case 5: {
            const size_t n = call_size(in);
            constexpr int kKinds[] = {0,       0,           MSG_PEEK, MSG_TRUNC,
                                      MSG_OOB, MSG_WAITALL, MSG_PEEK, MSG_ERRQUEUE};
            must_fit(vfs::recv(fd, f, in_room.last(n), n, flags | kKinds[in.below(8)]), n);
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
            (void)vfs::getsockopt(fd, o.level, o.name, in_room.last(n), &n);
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
                begin_next();
            }
        }
    }

  private:
  private:
    static constexpr uint8_t kRarer = 244;
    /// Where none is left.
    void begin_next() {
        if (fds_.empty()) {
            process_.slot(1).side[0].control.flags = process_.slot(1).side[1].control.flags = 0;
            fds_.push_back(process_.connection(1, side_));
        }
    }
    int any(Input &in) const { return fds_[in.below(static_cast<unsigned>(fds_.size()))]; }
    /// More than was asked for has never been received.
    static void must_fit(long got, size_t n) {
        must(got == vfs::kPass || got <= static_cast<long>(n) || got <= 1 << 22);
    }
    void gather(int fd, File &f, Input &in, int flags) {
        std::array<iovec, 3> v;
        for (iovec &part : v) {
            const size_t n = in.take<uint8_t>();
            part = {in_room.last(n), n};
        }
        if (in.below(2) != 0) {
            (void)vfs::recvv(fd, &f, v.data(), 3, flags);
        } else {
            (void)vfs::sendv(fd, &f, v.data(), 3, flags);
        }
    }
    void message(int fd, File &f, Input &in, int flags) {
        std::array<mmsghdr, 2> two{};
        std::array<iovec, 2> v;
        alignas(cmsghdr) std::array<char, 64> control{};
        sockaddr_storage name{};
        for (unsigned i = 0; i < 2; ++i) {
            const size_t n = in.take<uint8_t>();
            v[i] = {in_room.last(n), n};
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
    void look(int fd, Input &in) const {
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
    void watch(int fd, Input &in) const {
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
    static void set_option(int fd, Input &in) {
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
    void take(Input &in) {
        if (in.below(2) != 0) { // an honest request comes first
            Slot &s = process_.slot(1);
            s.identity.client = Process::name(static_cast<uint16_t>(40000 + in.below(255)));
            s.identity.server = Process::name(80);
            s.identity.state = static_cast<uint32_t>(SlotState::syn);
            process_.link[0]->view.syn(process_.listener_segment->link[0].syn_head) = kFirstSlot + 2;
        }
        if (const long fd = vfs::accept(process_.listening, nullptr, nullptr, SOCK_NONBLOCK); fd >= 0) {
            fds_.push_back(static_cast<int>(fd));
        }
    }
    /// The thread that had a direction was killed in the middle, and the survivors go on.
    static void die(File &f, Input &in) {
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
    void move_file(int fd, Input &in) const {
        static const int file = [] {
            const int made = memfd_create("file", MFD_CLOEXEC);
            must(ftruncate(made, 1 << 20) == 0);
            return made;
        }();
        static const std::array<int, 2> pipe = [] {
            int ends[2];
            must(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
            return std::array<int, 2>{ends[0], ends[1]};
        }();
        (void)vfs::fcntl(fd, F_SETFL, O_NONBLOCK);
        off64_t at = 0;
        const size_t n = call_size(in);
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
    void block(int fd, File &f, Input &in) const {
        if (in.below(2) != 0) {
            return;
        }
        const timeval soon{0, 1};
        (void)vfs::fcntl(fd, F_SETFL, 0);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        (void)vfs::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
        const size_t n = call_size(in);
        if (in.below(2) != 0) {
            (void)vfs::recv(fd, &f, in_room.last(n), n, MSG_NOSIGNAL | (in.below(2) != 0 ? MSG_WAITALL : 0));
        } else {
            (void)vfs::send(fd, &f, out_room.last(n), n, MSG_NOSIGNAL);
        }
    }

    Process &process_;
    unsigned side_;
    int set_ = -1;
    std::vector<int> fds_;
};

} // namespace sdfuzz
