// malloc and what belongs to it: large blocks are memory of the device, everything else is the program's own
// allocator's. An address tells which.
#include "libpages/next.hpp"
#include "libpages/settings.hpp"
#include "libpages/slots.hpp"

#include <cerrno>
#include <cstring>

#define SD_PAGES_EXPORT extern "C" [[gnu::visibility("default")]]

namespace sd::pages {
namespace {

bool power_of_two(size_t n) noexcept { return n != 0 && (n & (n - 1)) == 0; }

void *none() noexcept {
    errno = ENOMEM;
    return nullptr;
}

/// A block of the device's of at least that alignment; null: the program's allocator has to do it.
void *large(size_t alignment, size_t size) noexcept {
    return serves_block(size) && power_of_two(alignment) ? take_block(size, alignment).at : nullptr;
}

/// One that grows will grow again: it gets the whole slot. Pages that are not touched are not there.
void *large_to_grow(size_t size) noexcept {
    if (!serves_block(size))
        return nullptr;
    const unsigned kind = class_of(size);
    return kind < kClasses ? take_block(slot_size(kind), 1).at : nullptr;
}

void *resize_block(void *old, size_t before, size_t size) noexcept {
    if (size <= before && serves_block(size)) {
        if (const size_t left = whole_pages(size); left <= before / 2)
            shrink_block(old, left);
        return old;
    }
    void *at = size > before ? large_to_grow(size) : nullptr;
    if (!at)
        at = next().malloc(size);
    if (!at)
        return nullptr;
    memcpy(at, old, size < before ? size : before);
    (void)release_block(old); // it is one
    return at;
}

/// One of the program's allocator becomes large.
void *resize_other(void *old, size_t size) noexcept {
    const size_t before = next().malloc_usable_size(old);
    if (before >= size || serves_block(before)) // a mapped one its allocator can grow without copying
        return next().realloc(old, size);
    void *const at = large_to_grow(size);
    if (!at)
        return next().realloc(old, size);
    memcpy(at, old, before);
    next().free(old);
    return at;
}

} // namespace
} // namespace sd::pages

using namespace sd::pages;

SD_PAGES_EXPORT void *malloc(size_t size) noexcept {
    if (void *const at = large(1, size))
        return at;
    return next().malloc ? next().malloc(size) : none();
}

SD_PAGES_EXPORT void *calloc(size_t count, size_t each) noexcept {
    size_t size = 0;
    if (!__builtin_mul_overflow(count, each, &size) && serves_block(size)) {
        const Block b = take_block(size, 1);
        if (b.at && !b.fresh)
            memset(b.at, 0, size);
        if (b.at)
            return b.at;
    }
    return next().calloc ? next().calloc(count, each) : none();
}

SD_PAGES_EXPORT void *realloc(void *old, size_t size) noexcept {
    if (!old)
        return malloc(size);
    if (const size_t before = block_length(old)) {
        if (size != 0)
            return resize_block(old, before, size);
        (void)release_block(old); // what glibc does; other C libraries have blocks of no bytes
        return nullptr;
    }
    if (serves_block(size))
        return resize_other(old, size);
    return next().realloc ? next().realloc(old, size) : none();
}

SD_PAGES_EXPORT void *reallocarray(void *old, size_t count, size_t each) noexcept {
    size_t size = 0;
    return __builtin_mul_overflow(count, each, &size) ? none() : realloc(old, size);
}

SD_PAGES_EXPORT void free(void *at) noexcept {
    if (!release_block(at) && next().free)
        next().free(at);
}

// Of C23. Without these an allocator that stands behind would be given blocks of ours.
SD_PAGES_EXPORT void free_sized(void *at, size_t) noexcept { free(at); }
SD_PAGES_EXPORT void free_aligned_sized(void *at, size_t, size_t) noexcept { free(at); }

SD_PAGES_EXPORT void *memalign(size_t alignment, size_t size) noexcept {
    if (void *const at = large(alignment, size))
        return at;
    return next().memalign ? next().memalign(alignment, size) : none();
}

SD_PAGES_EXPORT void *aligned_alloc(size_t alignment, size_t size) noexcept {
    if (void *const at = large(alignment, size))
        return at;
    return next().aligned_alloc ? next().aligned_alloc(alignment, size) : none();
}

SD_PAGES_EXPORT int posix_memalign(void **out, size_t alignment, size_t size) noexcept {
    if (alignment % sizeof(void *) == 0)
        if (void *const at = large(alignment, size)) {
            *out = at;
            return 0;
        }
    return next().posix_memalign ? next().posix_memalign(out, alignment, size) : ENOMEM;
}

SD_PAGES_EXPORT void *valloc(size_t size) noexcept {
    if (void *const at = large(kPage, size))
        return at;
    return next().valloc ? next().valloc(size) : none();
}

SD_PAGES_EXPORT void *pvalloc(size_t size) noexcept {
    if (void *const at = large(kPage, size))
        return at;
    return next().pvalloc ? next().pvalloc(size) : none();
}

SD_PAGES_EXPORT size_t malloc_usable_size(void *at) noexcept {
    if (const size_t length = block_length(at))
        return length;
    return next().malloc_usable_size ? next().malloc_usable_size(at) : 0;
}
