#include "libpages/device.hpp"

#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "libpages/changes.hpp"
#include "libpages/next.hpp"
#include "libpages/window.hpp"
#include "libsd/control/sys.hpp"

#include <cerrno>
#include <cstring>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>

namespace sd::pages {

constinit std::atomic<uintptr_t> window{kNowhere};
constinit Module module{1, 0, 0};

namespace {

struct KeepErrno {
    int saved = errno;
    ~KeepErrno() { errno = saved; }
};

} // namespace

bool is_device(int fd) noexcept {
    const KeepErrno keep;
    sdzc_info info{};
    if (next().ioctl(fd, SDZC_INFO, &info) != 0 || info.version < 1 || info.page_size != kPage)
        return false;
    module.version.store(info.version, std::memory_order_relaxed);
    module.least_give.store(info.least_give, std::memory_order_relaxed);
    module.least_copy.store(info.least_copy, std::memory_order_relaxed);
    return true;
}

namespace {

constexpr char kDevice[] = "/dev/socksdirect-zerocopy";
/// One below it can be replaced by the program with dup2() before it knows: not used for long.
constexpr rlim_t kHighNumber = 1000, kSmallTable = 4096;

constinit std::atomic<int> device{-1};
/// How often it may be opened again after the program has closed it, as daemons close what they do not know.
constinit std::atomic<int> reopens{4};

/// A number that is out of the program's way: beyond its limit, where that may be, and the kernel's table of
/// descriptors stays small. Ownership of `fd` passes.
int move_up(int fd) noexcept {
    rlimit limit{};
    const bool known = sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&limit)) == 0;
    long moved = -1;
    if (known && limit.rlim_cur <= kSmallTable && limit.rlim_max > limit.rlim_cur + 64) {
        rlimit more = limit;
        more.rlim_cur += 64;
        if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&more), 0) == 0) {
            moved = sys::fcntl(fd, F_DUPFD_CLOEXEC, static_cast<long>(limit.rlim_cur) + 32);
            sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, sys::arg(&limit), 0);
        }
    }
    if (moved < 0 && known && limit.rlim_cur > 16)
        moved =
            sys::fcntl(fd, F_DUPFD_CLOEXEC,
                       static_cast<long>(limit.rlim_cur > kHighNumber + 8 ? kHighNumber : limit.rlim_cur - 8));
    sys::close(fd);
    return static_cast<int>(moved);
}

/// Only while there is one thread: it has a low number for a moment.
int open_high() noexcept {
    if (!next().open || !next().ioctl)
        return -1;
    const int fd = next().open(kDevice, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    const int high = move_up(fd);
    if (high >= 0 && !is_device(high)) {
        sys::close(high);
        return -1;
    }
    return high;
}

/// The device's descriptor, if it is still that; else -1.
int usable() noexcept {
    int fd = device.load(std::memory_order_relaxed);
    if (fd < 0 || is_device(fd))
        return fd;
    // The number is the program's now.
    if (!&::__libc_single_threaded || !::__libc_single_threaded || reopens.load(std::memory_order_relaxed) <= 0)
        return -1;
    reopens.fetch_sub(1, std::memory_order_relaxed);
    fd = open_high();
    if (fd >= 0)
        device.store(fd, std::memory_order_relaxed);
    return fd;
}

/// The part of it that is in one mapping of the device at a time.
bool discard_in_parts(int fd, uintptr_t at, size_t length) noexcept {
    sdzc_discard what{.address = at, .length = length, .flags = 0, .reserved = 0};
    if (next().ioctl(fd, SDZC_DISCARD, &what) == 0)
        return true;
    if (errno != EFAULT)
        return false;
    if (length <= kPage)
        return true; // other memory, or none
    const size_t half = whole_pages(length / 2);
    const bool first = discard_in_parts(fd, at, half);
    return discard_in_parts(fd, at + half, length - half) && first;
}

/// Where the device is not at hand any more.
bool replace_by_zeros(uintptr_t at, size_t length) noexcept {
    const uintptr_t end = at + length;
    while (at < end) {
        const Mapped m = mapped_behind(at);
        if (!m.end)
            return false;
        const uintptr_t from = m.from > at ? m.from : at, to = m.end < end ? m.end : end;
        if (from >= end)
            return true;
        if (m.shared && next().mmap(reinterpret_cast<void *>(from), to - from, m.protection,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            return false;
        at = to;
    }
    return true;
}

/// A line of the file: "from-end rwxp ...".
struct MapsLine {
    uintptr_t number = 0, from = 0, end = 0;
    int field = 0, protection = 0;
    bool shared = false;

    /// True: the line is complete.
    bool take(char c) noexcept {
        if (c == '\n')
            return true;
        if (field < 2) {
            if (c == '-') {
                from = number;
                number = 0;
                field = 1;
            } else if (c == ' ') {
                end = number;
                field = 2;
            } else {
                number = number * 16 + static_cast<uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
            }
        } else if (field == 2) {
            protection |= c == 'r' ? PROT_READ : c == 'w' ? PROT_WRITE : c == 'x' ? PROT_EXEC : 0;
            shared = shared || c == 's';
            field += c == ' ';
        }
        return false;
    }
};

} // namespace

void open_device() noexcept {
    const KeepErrno keep;
    const Next &n = next();
    if (!n.malloc || !n.free || !n.realloc || !n.malloc_usable_size || !n.mmap || !n.munmap || !n.mremap ||
        !n.madvise || !n.mprotect)
        return;
    const int fd = open_high();
    if (fd < 0)
        return;
    uint32_t chance = 0;
    sys::call(SYS_getrandom, sys::arg(&chance), sizeof chance, GRND_NONBLOCK);
    const uintptr_t steps = (kHighestWindow - kLowestWindow) >> 30;
    device.store(fd, std::memory_order_relaxed);
    window.store(kLowestWindow + ((chance % steps) << 30), std::memory_order_release);
}

int map_device(uintptr_t at, size_t length) noexcept {
    const KeepErrno keep;
    const int fd = usable();
    if (fd < 0)
        return ENODEV;
    void *const wanted = reinterpret_cast<void *>(at);
    void *const got =
        next().mmap(wanted, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (got == MAP_FAILED)
        return errno;
    if (got != wanted) { // a kernel before 4.17
        next().munmap(got, length);
        return EEXIST;
    }
    return 0;
}

bool discard(uintptr_t at, size_t length) noexcept {
    const KeepErrno keep;
    const int fd = usable();
    return fd >= 0 && discard_in_parts(fd, at, length) ? true : replace_by_zeros(at, length);
}

Mapped mapped_behind(uintptr_t at) noexcept {
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return {};
    Mapped found{};
    MapsLine line;
    char text[2048];
    long n = 0;
    while (!found.end && (n = sys::read(static_cast<int>(fd), text, sizeof text)) > 0)
        for (long i = 0; i < n && !found.end; ++i)
            if (line.take(text[i])) {
                if (line.end > at)
                    found = {line.from, line.end, line.protection, line.shared};
                line = {};
            }
    sys::close(static_cast<int>(fd));
    return found;
}

bool make_anonymous(uintptr_t at, size_t length) noexcept {
    const KeepErrno keep;
    const Next &n = next();
    void *const copy = n.mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return false;
    void *const to = reinterpret_cast<void *>(at);
    memcpy(copy, to, length);
    if (n.mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to)
        return true;
    n.munmap(copy, length);
    return false;
}

int take_descriptor() noexcept {
    reopens.store(0, std::memory_order_relaxed);
    const int fd = usable();
    device.store(-1, std::memory_order_relaxed);
    return fd;
}

long make_channel(int end[2]) noexcept {
    const KeepErrno keep;
    const Change guard;
    const int fd = usable();
    if (fd < 0)
        return -ENODEV;
    sdzc_channel made{};
    if (next().ioctl(fd, SDZC_CHANNEL, &made) != 0)
        return -errno;
    end[0] = made.end[0];
    end[1] = made.end[1];
    return 0;
}

long call_end(int end, unsigned long request, void *argument) noexcept {
    const KeepErrno keep;
    return next().ioctl(end, request, argument) == 0 ? 0 : -errno;
}

} // namespace sd::pages
