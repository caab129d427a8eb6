// Memory for the fuzzers that is shared with nobody, where a step too far ends in a page that cannot be
// touched.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/segment_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sdfuzz {

inline void must(bool ok) {
    if (!ok) {
        abort();
    }
}

/// A memfd of that size, sealed as an honest one is; `head` stands at its beginning.
inline int sealed_memory(const char *name, size_t bytes, const void *head = nullptr, size_t head_bytes = 0) {
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    must(head_bytes == 0 || pwrite(fd, head, head_bytes, 0) == static_cast<ssize_t>(head_bytes));
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

inline int copy_of(int fd) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    must(copy >= 0);
    return copy;
}

inline int link_memory(uint64_t id) {
    sd::LinkHeader h{};
    h.magic = sd::kLinkMagic;
    h.version = sd::kLayoutVersion;
    h.slots = sd::kLinkSlots;
    h.link_id = id;
    for (auto &side : h.side) {
        side.arena_open = sd::kArenaBytes;
    }
    return sealed_memory("link", sd::kLinkBytes, &h, sizeof h);
}

inline int segment_memory() {
    sd::SegmentHeader h{};
    h.magic = sd::kSegmentMagic;
    h.version = sd::kLayoutVersion;
    h.bytes = sd::kSegmentBytes;
    return sealed_memory("segment", sd::kSegmentBytes, &h, 32);
}

/// All of it is zero again, and takes no memory.
inline void wipe(int fd, size_t from, size_t to) {
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                   static_cast<off_t>(to - from)) == 0);
}

/// Leaves a gap of that size between two pages that cannot be touched, where the next mapping of that size
/// lands, unless the kernel finds a place it likes better.
inline void leave_gap(size_t bytes) {
    constexpr size_t kPage = 4096;
    void *p = mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(p != MAP_FAILED);
    munmap(static_cast<char *>(p) + kPage, bytes);
}

/// Where 64 KiB begin that cannot be touched, and behind 64 KiB that can be.
inline void *no_memory() {
    constexpr size_t kBytes = 64 << 10;
    void *p = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(p != MAP_FAILED && mprotect(static_cast<char *>(p) + kBytes, kBytes, PROT_NONE) == 0);
    return static_cast<char *>(p) + kBytes;
}

/// Room of up to 128 KiB for a call to fill or to read: what it was given ends where a page begins that
/// cannot be touched. The library copies with assembly of its own, at which AddressSanitizer does not look.
class Room {
  public:
    static constexpr size_t kBytes = 128 << 10;
    Room() {
        void *p = mmap(nullptr, kBytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(p != MAP_FAILED && mprotect(static_cast<char *>(p) + kBytes, 4096, PROT_NONE) == 0);
        end_ = static_cast<char *>(p) + kBytes;
    }
    void *last(size_t bytes) const {
        must(bytes <= kBytes);
        return end_ - bytes;
    }

  private:
    char *end_;
};

} // namespace sdfuzz
