// Plays /dev/socksdirect-zerocopy for libsd-pages.so where there is no module: preloaded behind it, so that
// its calls come here. The memory is private anonymous memory, but what the module's memory does otherwise
// (docs/design/zero-copy.md) this does as well: MADV_DONTNEED keeps the contents, mremap() does not grow, it
// cannot be executed.
#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

/// The device is a memfd of this name.
bool is_device(int fd) {
    char link[64], name[64] = {};
    strcpy(link, "/proc/self/fd/");
    char digits[12];
    int n = 0;
    do
        digits[n++] = static_cast<char>('0' + fd % 10);
    while ((fd /= 10) > 0);
    for (char *p = link + strlen(link); n >= 0; *p++ = n ? digits[n - 1] : '\0', --n) {
    }
    return syscall(SYS_readlink, link, name, sizeof name - 1) > 0 && strncmp(name, "/memfd:fake_device", 18) == 0;
}

void *early_block = nullptr;

// Runs before libsd-pages.so has begun: the block is the other allocator's.
[[gnu::constructor]] void begin() {
    early_block = malloc(1 << 20);
    memset(early_block, 7, 1 << 20);
}

} // namespace

#define EXPORT extern "C" [[gnu::visibility("default")]]

EXPORT bool fake_device_owns(const void *at) { return owned(reinterpret_cast<uintptr_t>(at)); }
EXPORT void *fake_device_early_block() { return early_block; }

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
