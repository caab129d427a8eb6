// mmap and what changes mappings: large private anonymous ones are memory of the device, and what that cannot
// do as anonymous memory does it is made up for here. docs/design/zero-copy-memory.md has a table.
#include "libpages/changes.hpp"
#include "libpages/device.hpp"
#include "libpages/next.hpp"
#include "libpages/settings.hpp"
#include "libpages/slots.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstring>

#define SD_PAGES_EXPORT extern "C" [[gnu::visibility("default")]]

namespace sd::pages {
namespace {

/// With this flag allocators ask for more than they use, but not for terabytes.
constexpr size_t kMostWithoutReserve = size_t{256} << 20;

bool can_serve(const void *at, size_t length, int protection, int flags) noexcept {
    return length >= least_mapping.load(std::memory_order_relaxed) && !at &&
           protection == (PROT_READ | PROT_WRITE) &&
           (flags == (MAP_PRIVATE | MAP_ANONYMOUS) ||
            (flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE) && length <= kMostWithoutReserve));
}

void *refused(int error) noexcept {
    errno = error;
    return MAP_FAILED;
}

/// The protection of memory of the device that is one mapping. False: it is not.
bool protection_of(uintptr_t at, size_t length, int &protection) noexcept {
    const Mapped m = mapped_behind(at);
    protection = m.protection;
    return m.end != 0 && m.from <= at && m.end - at >= length;
}

/// Grows a mapping that may move: the device's cannot, so its bytes do.
void *move_bytes(void *old, size_t before, size_t length, void *to) noexcept {
    int protection = 0;
    if (!protection_of(reinterpret_cast<uintptr_t>(old), before, protection))
        return refused(EFAULT); // as the kernel says where it is several mappings, or none
    void *const at = next().mmap(to, length, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | (to ? MAP_FIXED : 0), -1, 0);
    if (at == MAP_FAILED)
        return at;
    if (!(protection & PROT_READ))
        next().mprotect(old, before, PROT_READ);
    memcpy(at, old, before < length ? before : length);
    if (protection != (PROT_READ | PROT_WRITE))
        next().mprotect(at, length, protection);
    if (next().munmap(old, before) == 0)
        unmapped(old, before);
    return at;
}

/// mremap() of memory in the window.
void *change(void *old, size_t before, size_t length, int flags, void *to) noexcept {
    before = whole_pages(before);
    const size_t after = whole_pages(length);
    const bool ordinary = before != 0 && after >= length && length != 0 &&
                          reinterpret_cast<uintptr_t>(old) % kPage == 0 &&
                          (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED)) == 0;
    if (ordinary && flags & MREMAP_FIXED) {
        const auto from = reinterpret_cast<uintptr_t>(old), target = reinterpret_cast<uintptr_t>(to);
        if (!(flags & MREMAP_MAYMOVE) || target % kPage != 0 || (target < from + before && from < target + after))
            return refused(EINVAL);
        worn(to, after);
        return move_bytes(old, before, after, to);
    }
    if (ordinary && after > before) {
        // A block of malloc is not the program's to move; its slot would lose its memory.
        if (!(flags & MREMAP_MAYMOVE))
            return refused(ENOMEM); // there is no room behind it
        return move_bytes(old, before, after, nullptr);
    }
    if (before == 0)
        return refused(EINVAL); // makes a second mapping of shared memory, which this is not
    void *const at = next().mremap(old, before, length, flags, to);
    if (at == old && after < before)
        unmapped(static_cast<char *>(old) + after, before - after);
    return at;
}

int change_protection(void *at, size_t length, int protection, int result) noexcept {
    worn(at, length);
    // Devices often lie where nothing may be executed. What a compiler has written there can be, elsewhere.
    int now = 0;
    if (result == 0 || errno != EACCES || !(protection & PROT_EXEC))
        return result;
    const int saved = errno;
    if (!protection_of(reinterpret_cast<uintptr_t>(at), whole_pages(length), now) || !(now & PROT_READ) ||
        !make_anonymous(reinterpret_cast<uintptr_t>(at), whole_pages(length))) {
        errno = saved;
        return result;
    }
    return next().mprotect(at, length, protection);
}

int advise(void *at, size_t length, int advice) noexcept {
    const auto from = reinterpret_cast<uintptr_t>(at);
    int now = 0;
    switch (advice) {
    case MADV_FREE: // may be done at once
        advice = MADV_DONTNEED;
        [[fallthrough]];
    case MADV_DONTNEED:
    case 24: { // MADV_DONTNEED_LOCKED
        const int result = next().madvise(at, length, advice);
        if (result != 0 && errno != ENOMEM) // with that it has done what is mapped
            return result;
        const int error = errno;
        if (!discard(from, whole_pages(length))) {
            errno = EAGAIN;
            return -1;
        }
        errno = error;
        return result;
    }
    case MADV_REMOVE:
        errno = EINVAL;
        return -1;
    case MADV_WIPEONFORK:
        worn(at, length);
        if (from % kPage == 0 && protection_of(from, whole_pages(length), now) && now == (PROT_READ | PROT_WRITE))
            (void)make_anonymous(from, whole_pages(length)); // else the kernel refuses it below
        break;
    default:
        worn(at, length);
    }
    return next().madvise(at, length, advice);
}

} // namespace
} // namespace sd::pages

using namespace sd::pages;

SD_PAGES_EXPORT void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    if (can_serve(at, length, protection, flags) && offset % static_cast<off_t>(kPage) == 0)
        if (void *const ours = take_mapping(whole_pages(length)))
            return ours;
    if (!next().mmap)
        return refused(ENOSYS);
    const Change guard(flags & MAP_FIXED && meets_window(at, length));
    void *const got = next().mmap(at, length, protection, flags, fd, offset);
    if (flags & MAP_FIXED && got != MAP_FAILED && meets_window(got, length))
        worn(got, length);
    return got;
}

SD_PAGES_EXPORT void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    return mmap(at, length, protection, flags, fd, offset);
}

SD_PAGES_EXPORT int munmap(void *at, size_t length) noexcept {
    if (!next().munmap) {
        errno = ENOSYS;
        return -1;
    }
    const Change guard(meets_window(at, length));
    const int result = next().munmap(at, length);
    if (result == 0 && meets_window(at, length))
        unmapped(at, length);
    return result;
}

SD_PAGES_EXPORT void *mremap(void *old, size_t before, size_t length, int flags, ...) noexcept {
    va_list list;
    va_start(list, flags);
    void *const to = flags & MREMAP_FIXED ? va_arg(list, void *) : nullptr;
    va_end(list);
    const Change guard(in_window(old) || (flags & MREMAP_FIXED && meets_window(to, length)));
    if (in_window(old))
        return change(old, before, length, flags, to);
    if (!next().mremap)
        return refused(ENOSYS);
    void *const at = next().mremap(old, before, length, flags, to);
    if (flags & MREMAP_FIXED && at != MAP_FAILED && meets_window(at, length))
        worn(at, length);
    return at;
}

SD_PAGES_EXPORT int mprotect(void *at, size_t length, int protection) noexcept {
    if (!next().mprotect) {
        errno = ENOSYS;
        return -1;
    }
    const Change guard(meets_window(at, length));
    const int result = next().mprotect(at, length, protection);
    return meets_window(at, length) ? change_protection(at, length, protection, result) : result;
}

SD_PAGES_EXPORT int pkey_mprotect(void *at, size_t length, int protection, int key) noexcept {
    if (!next().pkey_mprotect) {
        errno = ENOSYS;
        return -1;
    }
    const Change guard(meets_window(at, length));
    if (meets_window(at, length))
        worn(at, length);
    return next().pkey_mprotect(at, length, protection, key);
}

SD_PAGES_EXPORT int madvise(void *at, size_t length, int advice) noexcept {
    const Change guard(meets_window(at, length));
    if (meets_window(at, length) && next().madvise && reinterpret_cast<uintptr_t>(at) % kPage == 0)
        return advise(at, length, advice);
    if (next().madvise)
        return next().madvise(at, length, advice);
    errno = ENOSYS;
    return -1;
}
