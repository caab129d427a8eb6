// Keeping libsd's own descriptors out of the program's way.
#include "libsd/control/hidden_fd.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hot_section.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/control/sandbox_state.hpp"
#include <algorithm>
#include <climits>
#include <sys/resource.h>
#include <sys/stat.h>

namespace sd {

namespace {

std::atomic<uint64_t> hidden[kMaxFd / 64];

void set_hidden(unsigned fd, bool on) noexcept {
    if (fd >= kMaxFd)
        return;
    uint64_t bit = uint64_t{1} << (fd % 64);
    if (on) {
        unsigned from = hidden_from.load(std::memory_order_relaxed);
        while (fd < from && !hidden_from.compare_exchange_weak(from, fd, std::memory_order_relaxed)) {
        }
        hidden[fd / 64].fetch_or(bit, std::memory_order_relaxed);
    } else {
        hidden[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
}

/// Numbers from 0 to this one, exclusive, were all in use when the program was told so, with ours among them;
/// 0: it never was. From then on those of ours that are not needed any more are kept, since the program has
/// no reason to find one free.
std::atomic<long> used_up_below{0};
constexpr unsigned kMostReserved = 64;
/// Their numbers, which stay hidden and hold a copy of `filler`; 0: none
std::atomic<int> reserved[kMostReserved];

/// Reserves the number of a hidden descriptor, and closes what stands under it. False: it is not to be
/// reserved.
bool reserve(int fd) noexcept {
    if (fd >= used_up_below.load(std::memory_order_relaxed)) [[likely]]
        return false;
    const int fill = filler.load(std::memory_order_acquire);
    if (fill < 0 || fill == fd || sandboxed() || sys::dup3(fill, fd, O_CLOEXEC) < 0)
        return false;
    for (auto &place : reserved)
        if (int none = 0; place.compare_exchange_strong(none, fd, std::memory_order_acq_rel))
            return true;
    return false;
}

/// `fd` under a number that was reserved; -1 when there is none.
long take_reserved(int fd) noexcept {
    if (used_up_below.load(std::memory_order_relaxed) != 0)
        for (auto &place : reserved)
            if (const int number = place.exchange(0, std::memory_order_acq_rel); number > 0)
                return sys::dup3(fd, number, O_CLOEXEC);
    return -1;
}

void really_close(int fd) noexcept {
    set_hidden(static_cast<unsigned>(fd), false);
    sys::close(fd);
}

/// Hidden numbers start no higher than this, however high the limit is: the kernel's table of descriptors
/// reaches up to the highest one, and every fork copies it (10,000: 20 µs). Above what select() can take,
/// which is all that some programs can use.
constexpr long kHighestStart = 1024;

constexpr rlim_t kSpare = 4096; ///< how far the limit is raised
constexpr rlim_t kSmallTable = 65536;

// Raising the limit for SpareNumbers.
SD_FORK_STATE constinit Lock raise_lock;
SD_FORK_STATE unsigned raise_count = 0;
rlimit before{}, during{};
std::atomic<long> usual_limit{0}; ///< the program's limit while it is raised, else 0

bool raise_limit() noexcept {
    LockGuard g(raise_lock);
    if (raise_count == 0) {
        if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&before)) < 0 ||
            before.rlim_cur >= before.rlim_max)
            return false;
        during = before;
        during.rlim_cur = before.rlim_cur + kSpare < before.rlim_max ? before.rlim_cur + kSpare : before.rlim_max;
        if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&during), 0) < 0)
            return false;
        usual_limit.store(static_cast<long>(before.rlim_cur), std::memory_order_relaxed);
    }
    ++raise_count;
    return true;
}

void lower_limit() noexcept {
    LockGuard g(raise_lock);
    if (--raise_count > 0)
        return;
    usual_limit.store(0, std::memory_order_relaxed);
    rlimit now{}; // the program may have set another one meanwhile
    if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&now)) == 0 && now.rlim_cur == during.rlim_cur)
        sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&before), 0);
}

} // namespace

SD_HOT_STATE std::atomic<unsigned> hidden_from{UINT_MAX};
std::atomic<int> filler{-1};

long hide_copy(int fd) noexcept {
    if (const long number = take_reserved(fd); number >= 0)
        return number;
    // The upper half of what the limit allows: programs fill numbers from below.
    rlimit lim{};
    sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&lim));
    long top = lim.rlim_cur < kMaxFd ? static_cast<long>(lim.rlim_cur) : static_cast<long>(kMaxFd);
    if (long usual = usual_limit.load(std::memory_order_relaxed))
        top = usual;
    long start = top / 2 < kHighestStart ? top / 2 : kHighestStart;
    long r = sys::fcntl(fd, F_DUPFD_CLOEXEC, start);
    if (r == -EMFILE || r == -EINVAL)
        r = sys::fcntl(fd, F_DUPFD_CLOEXEC, top / 4);
    if (r == -EMFILE) {
        SpareNumbers spare;
        r = sys::fcntl(fd, F_DUPFD_CLOEXEC, top);
        if (r == -EINVAL) // the limit is final
            r = -EMFILE;
    }
    if (r >= static_cast<long>(kMaxFd)) {
        sys::close(static_cast<int>(r));
        return -EMFILE;
    }
    if (r >= 0)
        set_hidden(static_cast<unsigned>(r), true);
    return r;
}

long hide_fd(int fd) noexcept {
    const long r = hide_copy(fd);
    sys::close(fd);
    return r;
}

SD_FORK_CODE void close_hidden(int fd) noexcept {
    if (fd >= 0 && !reserve(fd))
        really_close(fd);
}

bool give_up_reserved(int fd) noexcept {
    for (auto &place : reserved)
        if (int number = fd; place.compare_exchange_strong(number, 0, std::memory_order_acq_rel))
            return true;
    return false;
}

bool is_among_hidden(int fd) noexcept {
    auto n = static_cast<unsigned>(fd);
    return n < kMaxFd && (hidden[n / 64].load(std::memory_order_relaxed) >> (n % 64) & 1);
}

void mark_hidden(int fd) noexcept {
    if (fd >= 0)
        set_hidden(static_cast<unsigned>(fd), true);
}

void unhide(int fd) noexcept { set_hidden(static_cast<unsigned>(fd), false); }

void SpareNumbers::tried(long probe) noexcept {
    if (probe >= 0)
        sys::close(static_cast<int>(probe));
    else if (probe == -EMFILE)
        raised_ = raise_limit();
}

SpareNumbers::SpareNumbers() noexcept {
    if (!sandboxed())
        tried(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC));
}

SpareNumbers::SpareNumbers(int own) noexcept {
    if (!sandboxed())
        tried(sys::fcntl(own, F_DUPFD_CLOEXEC, 0));
}

SpareNumbers::~SpareNumbers() {
    if (raised_)
        lower_limit();
}

bool single_threaded() noexcept {
    struct stat s {};
    return sys::call(SYS_newfstatat, AT_FDCWD, sys::arg("/proc/self/task"), sys::arg(&s), 0) == 0 &&
           s.st_nlink == 3;
}

int give_way(bool early) noexcept {
    LockGuard g(raise_lock);
    rlimit limit{};
    if (sandboxed() || sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&limit)) < 0)
        return -1;
    unsigned fd = next_hidden(0);
    const rlim_t most = early ? kSmallTable : kMaxFd;
    if (limit.rlim_cur >= most || fd >= limit.rlim_cur)
        return -1;
    auto stay = [&] {
        if (!early)
            used_up_below.store(static_cast<long>(limit.rlim_cur), std::memory_order_relaxed);
        return -1;
    };
    if (!single_threaded())
        return stay();
    rlimit wider{limit.rlim_cur + kSpare, limit.rlim_max};
    if (limit.rlim_max <= limit.rlim_cur)
        wider.rlim_max = wider.rlim_cur; // CAP_SYS_RESOURCE
    else if (wider.rlim_cur > wider.rlim_max)
        wider.rlim_cur = wider.rlim_max;
    if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&wider), 0) < 0)
        return stay();
    int lowest = INT_MAX;
    used_up_below.store(0, std::memory_order_relaxed);
    for (auto &place : reserved)
        if (const int number = place.exchange(0, std::memory_order_acq_rel); number > 0) {
            really_close(number);
            lowest = std::min(lowest, number);
        }
    for (fd = next_hidden(0); fd < limit.rlim_cur; fd = next_hidden(fd + 1)) {
        const int from = static_cast<int>(fd);
        const long flags = sys::fcntl(from, F_GETFD);
        if (flags < 0)
            continue;
        const long to =
            sys::fcntl(from, flags & FD_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, static_cast<long>(limit.rlim_cur));
        if (to >= static_cast<long>(kMaxFd))
            sys::close(static_cast<int>(to));
        if (to < 0 || to >= static_cast<long>(kMaxFd))
            break;
        set_hidden(static_cast<unsigned>(to), true);
        upward.hidden_moved(from, static_cast<int>(to));
        really_close(from);
        lowest = std::min(lowest, from);
    }
    hidden_from.store(next_hidden(0), std::memory_order_relaxed);
    sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&limit), 0);
    return lowest == INT_MAX ? -1 : lowest;
}

SD_FORK_CODE void spare_numbers_fork_child() noexcept {
    raise_lock.reset();
    if (raise_count) {
        raise_count = 1;
        lower_limit();
    }
}

unsigned next_hidden(unsigned fd) noexcept {
    for (unsigned w = fd / 64; w < kMaxFd / 64; ++w) {
        uint64_t bits = hidden[w].load(std::memory_order_relaxed);
        if (w == fd / 64)
            bits &= ~uint64_t{0} << (fd % 64);
        if (bits)
            return w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
    }
    return kMaxFd;
}

} // namespace sd
