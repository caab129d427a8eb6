// Plays /dev/socksdirect-zerocopy for libsd-pages.so where there is no module: preloaded behind it, so that
// its calls come here. The memory is private anonymous memory, but what the module's memory does otherwise
// (docs/design/zero-copy-memory.md) this does as well: MADV_DONTNEED keeps the contents, mremap() does not
// grow, it cannot be executed.
#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "libsd/cpu/system_call.hpp"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

constexpr uintptr_t kLow = 0x3000'0000'0000, kHigh = 0x5000'0000'0000;
constexpr size_t kPage = 4096;

/// For each page of these addresses whether it is the device's; of the table only what is used is there.
std::atomic<uint8_t> *table() {
    static std::atomic<uint8_t> *const it = [] {
        void *p =
            reinterpret_cast<void *>(syscall(SYS_mmap, nullptr, (kHigh - kLow) / kPage, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (p == MAP_FAILED)
            abort();
        return static_cast<std::atomic<uint8_t> *>(p);
    }();
    return it;
}

bool owned(uintptr_t at) { return at >= kLow && at < kHigh && table()[(at - kLow) / kPage] != 0; }

void set(void *from, size_t length, uint8_t what) {
    for (uintptr_t at = reinterpret_cast<uintptr_t>(from), end = at + length; at < end; at += kPage)
        if (at >= kLow && at < kHigh && (what || owned(at)))
            table()[(at - kLow) / kPage] = what;
}

bool any(void *from, size_t length) {
    for (uintptr_t at = reinterpret_cast<uintptr_t>(from), end = at + length; at < end; at += kPage)
        if (owned(at))
            return true;
    return false;
}

bool all(uintptr_t at, size_t length) {
    for (const uintptr_t end = at + length; at < end; at += kPage)
        if (!owned(at))
            return false;
    return true;
}

/// What /proc/self/fd says of a descriptor. False: it is nothing of ours.
bool is_named(int fd, const char *name) {
    char link[64], target[64] = {};
    strcpy(link, "/proc/self/fd/");
    char digits[12];
    int n = 0;
    do
        digits[n++] = static_cast<char>('0' + fd % 10);
    while ((fd /= 10) > 0);
    for (char *p = link + strlen(link); n >= 0; *p++ = n ? digits[n - 1] : '\0', --n) {
    }
    return syscall(SYS_readlink, link, target, sizeof target - 1) > 0 && strncmp(target, name, strlen(name)) == 0;
}

constexpr char kDeviceName[] = "/memfd:fake_device", kChannelName[] = "/memfd:fake_channel";
bool is_device(int fd) { return is_named(fd, kDeviceName); }

void *early_block = nullptr;

// Runs before libsd-pages.so has begun: the block is the other allocator's.
[[gnu::constructor]] void begin() {
    early_block = malloc(1 << 20);
    memset(early_block, 7, 1 << 20);
}

} // namespace

// Channels: a memfd with the pages that were given, opened twice; O_APPEND tells the second end. Nothing here
// is locked: a process may be killed anywhere, and others go on.
namespace {

constexpr unsigned kSlots = 160;
constexpr size_t kSlotBytes = 1 << 20, kSlotPages = kSlotBytes / kPage;

struct Channel {
    struct Slot {
        std::atomic<uint32_t> used;
        std::atomic<uint32_t> end; ///< at which it waits
        std::atomic<uint64_t> handle, pages;
        std::atomic<uint8_t> taken[kSlotPages];
    } slot[kSlots];
};
constexpr size_t kHead = (sizeof(Channel) + kPage - 1) / kPage * kPage;

std::atomic<unsigned> calls{0};
std::atomic<uint64_t> pages_taken{0};

/// Now and then the module refuses: limits, and no memory.
int refusal(unsigned every) {
    static constexpr int kErrors[] = {ENOMEM, EDQUOT, ENOBUFS};
    const unsigned n = ++calls;
    return n % every == 0 ? kErrors[n / every % 3] : 0;
}

struct Mapping {
    char *at;
    size_t length;
    Mapping(int fd, size_t from, size_t n)
        : at(reinterpret_cast<char *>(syscall(SYS_mmap, nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                                              static_cast<off_t>(from)))),
          length(n) {
        if (at == MAP_FAILED)
            abort();
    }
    Mapping(const Mapping &) = delete;
    ~Mapping() { syscall(SYS_munmap, at, length); }
};

/// As the kernel copies from and to a program. 0, or EFAULT.
int copy(bool from_program, uintptr_t program, void *ours, size_t n) {
    iovec mine{ours, n}, its{reinterpret_cast<void *>(program), n};
    const long done = syscall(from_program ? SYS_process_vm_readv : SYS_process_vm_writev,
                              syscall(SYS_getpid), &mine, 1, &its, 1, 0);
    return done == static_cast<long>(n) ? 0 : EFAULT;
}

int make_channel(sdzc_channel &made) {
    const int first = static_cast<int>(syscall(SYS_memfd_create, "fake_channel", MFD_CLOEXEC));
    char path[32] = "/proc/self/fd/";
    size_t n = strlen(path);
    for (int unit = 1000000; unit > 0; unit /= 10)
        if (first >= unit || unit == 1)
            path[n++] = static_cast<char>('0' + first / unit % 10);
    if (first < 0 || syscall(SYS_ftruncate, first, kHead + kSlots * kSlotBytes) != 0)
        return errno;
    made.end[0] = first;
    made.end[1] = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_APPEND | O_CLOEXEC));
    return made.end[1] < 0 ? errno : 0;
}

int give(int fd, unsigned to, sdzc_give &g, Channel &c) {
    const bool once = (g.flags & SDZC_GIVE_COPY) != 0;
    if ((!once && g.address % kPage) || g.length % kPage || g.length == 0 || g.length > kSlotBytes)
        return EINVAL;
    if (!once && !all(g.address, g.length))
        return EFAULT;
    // Now and then the sender is said to have written all of it anew.
    g.copied =
        (g.flags & SDZC_GIVE_COUNT) != 0 && calls / 64 % 3 == 2 ? static_cast<uint32_t>(g.length / kPage) : 0;
    if (const int refused = refusal(23))
        return refused;
    for (unsigned i = 0; i < kSlots; ++i) {
        Channel::Slot &slot = c.slot[i];
        uint32_t none = 0;
        if (!slot.used.compare_exchange_strong(none, 1))
            continue;
        const Mapping bytes(fd, kHead + i * kSlotBytes, kSlotBytes);
        if (copy(true, g.address, bytes.at, g.length)) {
            slot.used = 0;
            return EFAULT;
        }
        for (auto &taken : slot.taken)
            taken = 0;
        slot.pages = g.length / kPage;
        slot.end = to;
        syscall(SYS_getrandom, &g.handle, sizeof g.handle, 0);
        g.handle |= 1;
        slot.handle = g.handle;
        return 0;
    }
    return ENOBUFS;
}

void drop(int fd, Channel &c, unsigned slot) {
    c.slot[slot].handle = 0;
    sd::cpu::call(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<long>(kHead + slot * kSlotBytes), static_cast<long>(kSlotBytes));
    c.slot[slot].used = 0;
}

int take(int fd, Channel &c, unsigned at, const sdzc_take &t) {
    Channel::Slot &slot = c.slot[at];
    if (t.address % kPage || t.offset % kPage || t.length % kPage || t.length == 0 || t.length > kSlotBytes ||
        (t.offset + t.length) / kPage > slot.pages)
        return EINVAL;
    if (!all(t.address, t.length))
        return EFAULT;
    for (size_t i = 0; i < t.length / kPage; ++i)
        if (slot.taken[t.offset / kPage + i])
            return ENOENT;
    if (const int refused = refusal(19))
        return refused;
    const Mapping bytes(fd, kHead + at * kSlotBytes, kSlotBytes);
    if (copy(false, t.address, bytes.at + t.offset, t.length))
        return EFAULT;
    bool left = false;
    for (size_t i = 0; i < t.length / kPage; ++i)
        slot.taken[t.offset / kPage + i] = 1;
    for (size_t i = 0; i < slot.pages; ++i)
        left = left || !slot.taken[i];
    pages_taken += t.length / kPage;
    if (!left)
        drop(fd, c, at);
    return 0;
}

int read_bytes(int fd, Channel &c, unsigned at, const sdzc_read &r) {
    Channel::Slot &slot = c.slot[at];
    if (r.offset + r.length > slot.pages * kPage)
        return EINVAL;
    for (uint64_t i = r.offset / kPage; i * kPage < r.offset + r.length; ++i)
        if (slot.taken[i])
            return ENOENT;
    const Mapping bytes(fd, kHead + at * kSlotBytes, kSlotBytes);
    return copy(false, r.address, bytes.at + r.offset, r.length);
}

int on_channel(int fd, unsigned long request, void *argument) {
    const Mapping head(fd, 0, kHead);
    Channel &c = *reinterpret_cast<Channel *>(head.at);
    // Not by syscall(), which hides this number from the program.
    const unsigned end = (sd::cpu::call(SYS_fcntl, fd, F_GETFL, 0) & O_APPEND) != 0;
    if (request == SDZC_GIVE)
        return give(fd, 1 - end, *static_cast<sdzc_give *>(argument), c);
    // The handle is what all others begin with.
    const uint64_t handle = *static_cast<const uint64_t *>(argument);
    for (unsigned i = 0; i < kSlots; ++i)
        if (c.slot[i].used && c.slot[i].handle == handle && c.slot[i].end == end) {
            if (request == SDZC_TAKE)
                return take(fd, c, i, *static_cast<const sdzc_take *>(argument));
            if (request == SDZC_READ)
                return read_bytes(fd, c, i, *static_cast<const sdzc_read *>(argument));
            if (request == SDZC_DROP) {
                drop(fd, c, i);
                return 0;
            }
            return ENOTTY;
        }
    return ENOENT;
}

int answer(int error) {
    errno = error;
    return error ? -1 : 0;
}

} // namespace

#define EXPORT extern "C" [[gnu::visibility("default")]]

EXPORT bool fake_device_owns(const void *at) { return owned(reinterpret_cast<uintptr_t>(at)); }
EXPORT void *fake_device_early_block() { return early_block; }
EXPORT uint64_t fake_device_taken() { return pages_taken; }

// For the monitor, which looks at the kind of what it is given.
EXPORT ssize_t readlink(const char *path, char *to, size_t size) noexcept {
    static constexpr char kEnd[] = "anon_inode:[socksdirect-zerocopy]";
    const ssize_t n = syscall(SYS_readlink, path, to, size);
    if (n < static_cast<ssize_t>(strlen(kChannelName)) || memcmp(to, kChannelName, strlen(kChannelName)) != 0)
        return n;
    const size_t length = size < strlen(kEnd) ? size : strlen(kEnd);
    memcpy(to, kEnd, length);
    return static_cast<ssize_t>(length);
}

EXPORT int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const int mode = va_arg(list, int);
    va_end(list);
    if (strcmp(path, "/dev/socksdirect-zerocopy") == 0) {
        if (getenv("FAKE_DEVICE_MISSING")) {
            errno = ENOENT;
            return -1;
        }
        return static_cast<int>(syscall(SYS_memfd_create, "fake_device", MFD_CLOEXEC));
    }
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list list;
    va_start(list, request);
    void *const argument = va_arg(list, void *);
    va_end(list);
    if (request == SDZC_INFO && is_device(fd)) {
        auto *info = static_cast<sdzc_info *>(argument);
        info->version = SDZC_VERSION;
        info->page_size = kPage;
        return 0;
    }
    if (request == SDZC_CHANNEL && is_device(fd))
        return answer(make_channel(*static_cast<sdzc_channel *>(argument)));
    if ((request >> 8 & 0xff) == SDZC_MAGIC && is_named(fd, kChannelName)) {
        if (request == SDZC_INFO) {
            *static_cast<sdzc_info *>(argument) = {};
            static_cast<sdzc_info *>(argument)->version = SDZC_VERSION;
            static_cast<sdzc_info *>(argument)->page_size = kPage;
            return 0;
        }
        return answer(on_channel(fd, request, argument));
    }
    if (request == SDZC_DISCARD && is_device(fd)) {
        const auto *what = static_cast<const sdzc_discard *>(argument);
        if (!all(what->address, what->length)) {
            errno = EFAULT;
            return -1;
        }
        return static_cast<int>(syscall(SYS_madvise, what->address, what->length, MADV_DONTNEED));
    }
    return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

EXPORT void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    const bool ours = fd >= 0 && flags & MAP_SHARED && is_device(fd);
    if (ours && ++*[] {
            static std::atomic<unsigned> count{0};
            return &count;
        }() % 97 == 0) {
        errno = ENOMEM; // a limit
        return MAP_FAILED;
    }
    if (ours) {
        flags = (flags & ~MAP_SHARED & ~MAP_SHARED_VALIDATE) | MAP_PRIVATE | MAP_ANONYMOUS;
        fd = -1;
    }
    void *const got = reinterpret_cast<void *>(syscall(SYS_mmap, at, length, protection, flags, fd, offset));
    if (got != MAP_FAILED)
        set(got, length, ours);
    return got;
}

EXPORT int munmap(void *at, size_t length) noexcept {
    set(at, length, 0); // first: another thread may map there at once
    return static_cast<int>(syscall(SYS_munmap, at, length));
}

EXPORT void *mremap(void *old, size_t before, size_t length, int flags, ...) noexcept {
    va_list list;
    va_start(list, flags);
    void *const to = va_arg(list, void *);
    va_end(list);
    const bool ours = owned(reinterpret_cast<uintptr_t>(old));
    if (ours && length > before && reinterpret_cast<uintptr_t>(old) % kPage == 0) {
        errno = EFAULT;
        return MAP_FAILED;
    }
    void *const at = reinterpret_cast<void *>(syscall(SYS_mremap, old, before, length, flags, to));
    if (at != MAP_FAILED) {
        set(old, before, 0);
        set(at, length, ours);
    }
    return at;
}

EXPORT int mprotect(void *at, size_t length, int protection) noexcept {
    if (protection & PROT_EXEC && any(at, length)) {
        errno = EACCES;
        return -1;
    }
    return static_cast<int>(syscall(SYS_mprotect, at, length, protection));
}

EXPORT int madvise(void *at, size_t length, int advice) noexcept {
    if (reinterpret_cast<uintptr_t>(at) % kPage == 0 && any(at, length)) {
        if (advice == MADV_FREE || advice == MADV_REMOVE || advice == MADV_WIPEONFORK) {
            errno = EINVAL;
            return -1;
        }
        // Private parts of the range lose their contents here as with the module.
        if (advice == MADV_DONTNEED) {
            int error = 0;
            for (char *p = static_cast<char *>(at), *end = p + length; p < end; p += kPage)
                if (!owned(reinterpret_cast<uintptr_t>(p)) && syscall(SYS_madvise, p, kPage, advice) != 0)
                    error = errno;
            errno = error;
            return error ? -1 : 0;
        }
    }
    return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}
