// Sockets by which processes of other trust domains ring a waiter.
#include "libsd/queue/foreign_ends.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/queue/bell.hpp"
#include <sys/un.h>

namespace sd {

namespace {

constexpr int kPassRights = 83;          ///< SO_PASSRIGHTS
constexpr unsigned kMessagesAtOnce = 32; ///< messages taken from one end; fewer than any queue can hold
constexpr unsigned kLongest =
    1024; ///< queue that is emptied to close it; net.core.wmem_max as it usually is allows 740
static_assert(kMostForeignEnds <= 32);

/// The kernel is older than SO_PASSRIGHTS.
std::atomic<bool> descriptors_may_come{false};

enum class Front { nothing, message, descriptors };

/// What is first in the queue. Descriptors are only told by the flag: without room for them the kernel sets
/// it, and with MSG_PEEK they stay where they are.
Front look_at(int fd) noexcept {
    char byte;
    iovec io{&byte, 1};
    msghdr m{};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    const long n = sys::recvmsg(fd, &m, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 ? Front::nothing : m.msg_flags & MSG_CTRUNC ? Front::descriptors : Front::message;
}

long take_one(int fd) noexcept {
    char byte;
    return sys::call(SYS_recvfrom, fd, sys::arg(&byte), 1, MSG_DONTWAIT, 0, 0);
}

/// Takes the messages of one end. True: it is of no use any more, since nobody has the other one, or nobody
/// who may be trusted with it.
bool take_all(int fd) noexcept {
    const bool careful = descriptors_may_come.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < kMessagesAtOnce; ++i) {
        if (careful)
            if (const Front front = look_at(fd); front != Front::message) {
                if (front == Front::descriptors)
                    sys::call(SYS_shutdown, fd, SHUT_RDWR);
                return front == Front::descriptors;
            }
        if (const long n = take_one(fd); n <= 0) // 0: the end, or an empty message, which is none of ours
            return n != -EAGAIN;
    }
    return false;
}

/// False: closing it could take as long as somebody else likes; it stays open, to be closed with the process,
/// where nothing lingers.
bool may_be_closed(int fd) noexcept {
    if (!descriptors_may_come.load(std::memory_order_relaxed))
        return true;
    sys::call(SYS_shutdown, fd, SHUT_RDWR);
    for (unsigned i = 0; i < kLongest; ++i) { // the end of the queue looks like an empty message
        if (look_at(fd) == Front::descriptors)
            return false;
        take_one(fd);
    }
    return true;
}

class BusyEnds {
  public:
    explicit BusyEnds(ForeignEnds &f) noexcept
        : f_(f), got_(!f.busy.exchange(true, std::memory_order_acquire)) {}
    ~BusyEnds() {
        if (got_)
            f_.busy.store(false, std::memory_order_release);
    }
    BusyEnds(const BusyEnds &) = delete;
    BusyEnds &operator=(const BusyEnds &) = delete;
    explicit operator bool() const noexcept { return got_; }

  private:
    ForeignEnds &f_;
    const bool got_;
};

/// The place of a new end, which `fd` takes; -1 when all are in use.
int take_place(ForeignEnds &f, int fd) noexcept {
    const BusyEnds busy(f);
    if (!busy)
        return -1;
    uint32_t used = f.used.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < kMostForeignEnds; ++i)
        if (const uint32_t bit = uint32_t{1} << i;
            (used & f.ended.load(std::memory_order_relaxed) & bit) && may_be_closed(f.end[i])) {
            f.ended.fetch_and(~bit, std::memory_order_relaxed);
            used = f.used.fetch_and(~bit, std::memory_order_relaxed) & ~bit;
            close_hidden(f.end[i]);
        }
    for (unsigned i = 0; i < kMostForeignEnds; ++i)
        if (const uint32_t bit = uint32_t{1} << i; !(used & bit)) {
            epoll_event e{};
            e.events = EPOLLIN | EPOLLET;
            e.data.u32 = i;
            if (sys::epoll_ctl(f.set.load(std::memory_order_relaxed), EPOLL_CTL_ADD, fd, &e) < 0)
                return -1;
            f.end[i] = fd;
            f.used.fetch_or(bit, std::memory_order_release);
            return static_cast<int>(i);
        }
    return -1;
}

/// Makes a pair, of which one end is hidden. False: not possible now.
bool make_pair(int *own, int *theirs) noexcept {
    int pair[2];
    if (sys::call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sys::arg(pair)) < 0)
        return false;
    *theirs = pair[1];
    const long hidden = hide_fd(pair[0]);
    if (hidden < 0) {
        sys::close(pair[1]);
        return false;
    }
    *own = static_cast<int>(hidden);
    const int no = 0;
    if (sys::setsockopt(*own, SOL_SOCKET, kPassRights, &no, sizeof no) < 0)
        descriptors_may_come.store(true, std::memory_order_relaxed);
    return true;
}

bool make_set(ForeignEnds &f) noexcept {
    if (f.set.load(std::memory_order_relaxed) >= 0)
        return true;
    const long made = sys::epoll_create1(EPOLL_CLOEXEC);
    const long hidden = made < 0 ? made : hide_fd(static_cast<int>(made));
    if (hidden >= 0)
        f.set.store(static_cast<int>(hidden), std::memory_order_release);
    return hidden >= 0;
}

} // namespace

void watch_as_well(Bell &b, int fd) noexcept {
    SpareNumbers spare;
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u32 = kMostForeignEnds;
    if (make_set(b.foreign) &&
        sys::epoll_ctl(b.foreign.set.load(std::memory_order_relaxed), EPOLL_CTL_ADD, fd, &e) == 0) {
        const bool is_first = b.foreign.other.load(std::memory_order_relaxed) == -1;
        b.foreign.other.store(is_first ? fd : ForeignEnds::kSeveral, std::memory_order_release);
    }
}

void provide_foreign_ends(Bell &b, LinkMap &l, unsigned id) noexcept {
    ForeignEnds &f = b.foreign;
    SpareNumbers spare;
    if (!make_set(f))
        return;
    for (bool more = true; more;) {
        int own, theirs;
        if (!make_pair(&own, &theirs))
            return;
        const int place = take_place(f, own);
        if (place < 0) {
            close_hidden(own);
            sys::close(theirs);
            return;
        }
        const wire::BellRef ref{l.id, l.side, id};
        const auto r = control::request(wire::Op::foreign_bell, &ref, sizeof ref, &theirs, 1);
        // If the monitor did not take it, that is the end of it, which the next drain finds
        sys::close(theirs);
        more = r.status == 0 && r.length == sizeof(wire::BellReply) && r.as<wire::BellReply>().foreign;
    }
}

namespace {

/// How many were ready, 1 while another thread is at it. `*events`: of watch_as_well().
long drain_ends(ForeignEnds &f, bool *events) noexcept {
    const BusyEnds busy(f);
    if (!busy)
        return 1;
    epoll_event e[8];
    const long n = sys::epoll_pwait(f.set.load(std::memory_order_relaxed), e, 8, 0, nullptr);
    for (long i = 0; i < n; ++i) {
        const uint32_t place = e[i].data.u32;
        *events = *events || place == kMostForeignEnds;
        if (place >= kMostForeignEnds || !(f.used.load(std::memory_order_acquire) >> place & 1))
            continue;
        if (take_all(f.end[place]))
            f.ended.fetch_or(uint32_t{1} << place, std::memory_order_relaxed);
    }
    return n > 0 ? n : 0;
}

} // namespace

bool drain_foreign_ends(Bell &b) noexcept {
    ForeignEnds &f = b.foreign;
    bool events = false;
    const long n = drain_ends(f, &events);
    if (events) // without `busy`
        upward.take_events();
    return n != 0;
}

int only_end(const Bell &b) noexcept {
    const ForeignEnds &f = b.foreign;
    const uint32_t used = f.used.load(std::memory_order_acquire);
    if (used == 0 || (used & (used - 1)) != 0 || f.ended.load(std::memory_order_relaxed) != 0 ||
        f.other.load(std::memory_order_acquire) != -1 || descriptors_may_come.load(std::memory_order_relaxed))
        return -1;
    return f.end[__builtin_ctz(used)];
}

void take_from_only_end(Bell &b) noexcept {
    ForeignEnds &f = b.foreign;
    const BusyEnds busy(f);
    const int fd = busy ? only_end(b) : -1;
    if (fd < 0)
        return; // another thread is at it, or there are several by now: the next sleep finds what is left
    if (const long n = take_one(fd); n != 1 && n != -EAGAIN)
        f.ended.fetch_or(f.used.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void close_foreign_ends(Bell &b) noexcept {
    ForeignEnds &f = b.foreign;
    const int set = f.set.exchange(-1, std::memory_order_acq_rel);
    if (set < 0)
        return;
    f.other.store(-1, std::memory_order_relaxed);
    close_hidden(set);
    for (uint32_t used = f.used.exchange(0, std::memory_order_acq_rel); used; used &= used - 1)
        if (const int fd = f.end[__builtin_ctz(used)]; may_be_closed(fd))
            close_hidden(fd);
    f.ended.store(0, std::memory_order_relaxed);
}

SD_FORK_CODE void drop_foreign_ends_in_child(Bell &b) noexcept {
    ForeignEnds &f = b.foreign;
    f.busy.store(false, std::memory_order_relaxed);
    if (f.set.load(std::memory_order_relaxed) < 0)
        return;
    f.other.store(-1, std::memory_order_relaxed);
    close_hidden(f.set.exchange(-1, std::memory_order_relaxed));
    for (uint32_t used = f.used.exchange(0, std::memory_order_relaxed); used; used &= used - 1)
        close_hidden(f.end[__builtin_ctz(used)]);
    f.ended.store(0, std::memory_order_relaxed);
}

void foreign_ends_moved(Bell &b, int from, int to) noexcept {
    ForeignEnds &f = b.foreign;
    int set = from;
    f.set.compare_exchange_strong(set, to);
    int other = from;
    f.other.compare_exchange_strong(other, to);
    for (uint32_t used = f.used.load(std::memory_order_acquire); used; used &= used - 1)
        if (int &fd = f.end[__builtin_ctz(used)]; fd == from)
            fd = to;
}

} // namespace sd
