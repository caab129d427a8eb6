// memfds: making them, deciding whether one from a client can be mapped safely, and looking at them without
// filling holes.
#include "monitor/kernel/shared_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <system_error>
#include <unistd.h>

namespace sd::monitor {

namespace {

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

} // namespace

FileId file_id(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        fail("fstat");
    }
    return {st.st_dev, st.st_ino};
}

Mapping::Mapping(int fd, size_t bytes) : bytes_(bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        fail("mmap");
    }
    base_ = static_cast<uint8_t *>(p);
}

Mapping &Mapping::operator=(Mapping &&other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (base_ != nullptr) {
        munmap(base_, bytes_);
    }
}

UniqueFd make_memfd(const char *name, size_t bytes) {
    UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) {
        fail("memfd_create");
    }
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        fail("ftruncate");
    }
    return fd;
}

void seal(int fd, int seals) {
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        fail("F_ADD_SEALS");
    }
}

bool safe_to_map(int fd, size_t bytes) {
    struct stat st;
    struct statfs fs;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           st.st_size >= 0 && static_cast<size_t>(st.st_size) >= bytes && fstatfs(fd, &fs) == 0 &&
           fs.f_type == TMPFS_MAGIC;
}

namespace {

constexpr long kCachestat = 451; // the headers of older systems do not have it
struct CachestatRange {
    uint64_t offset, bytes;
};
struct Cachestat {
    uint64_t cached, dirty, under_writeback, evicted, recently_evicted;
};

/// Looks at blocks that grow: who searches for the next page is told of it soon, and no page is counted too
/// often.
template <typename Fn> void by_blocks(size_t first, size_t last, size_t most, Fn look) {
    for (size_t block = 16; first < last; block = std::min(2 * block, most)) {
        const size_t end = std::min(first + block, last);
        if (!look(first, end)) {
            return;
        }
        first = end;
    }
}

class CountedPages {
  public:
    CountedPages(int fd, const PagesFound &found) : fd_(fd), found_(found) {}
    int error() const { return error_; } ///< of cachestat()
    /// False: that is enough, or it has failed.
    bool search(size_t first, size_t last) {
        constexpr size_t kFew = 8; // looked at one by one
        const size_t there = count(first, last);
        if (there == 0) {
            return error_ == 0;
        }
        if (there >= last - first) {
            return found_(first, last);
        }
        if (last - first > kFew) {
            const size_t middle = first + (last - first) / 2;
            return search(first, middle) && search(middle, last);
        }
        for (size_t page = first; page < last && error_ == 0; ++page) {
            if (count(page, page + 1) != 0 && !found_(page, page + 1)) {
                return false;
            }
        }
        return error_ == 0;
    }

  private:
    /// How many pages have memory. What was evicted from a memory file is in swap.
    size_t count(size_t first, size_t last) {
        CachestatRange range{first * kFilePage, (last - first) * kFilePage};
        Cachestat result{};
        if (syscall(kCachestat, fd_, &range, &result, 0) != 0) {
            error_ = errno;
            return 0;
        }
        return result.cached + result.evicted;
    }

    const int fd_;
    const PagesFound &found_;
    int error_ = 0;
};

/// 0, or why it cannot be asked.
int search_counted_pages(int fd, size_t first, size_t last, const PagesFound &found) {
    CountedPages pages(fd, found);
    by_blocks(first, last, 1024, [&](size_t from, size_t to) { return pages.search(from, to); });
    return pages.error();
}

bool is_swap_used() {
    struct sysinfo info {};
    return sysinfo(&info) != 0 || info.freeswap != info.totalswap;
}

/// Nothing: it cannot be read.
std::optional<bool> says_something(int fd, size_t page) {
    uint64_t words[kFilePage / sizeof(uint64_t)];
    const ssize_t n = pread(fd, words, sizeof words, static_cast<off_t>(page * kFilePage));
    if (n < 0) {
        return std::nullopt;
    }
    const size_t got = static_cast<size_t>(n) / sizeof *words;
    return std::any_of(words, words + got, [](uint64_t word) { return word != 0; });
}

} // namespace

bool find_counted_pages(int fd, size_t first, size_t last, const PagesFound &found) {
    return search_counted_pages(fd, first, last, found) == 0;
}

bool find_resident_pages(int fd, size_t first, size_t last, const PagesFound &found) {
    constexpr size_t kAtOnce = 512;
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (access(name, W_OK) != 0) {
        return false;
    }
    const bool swap = is_swap_used();
    bool works = true;
    by_blocks(first, last, kAtOnce, [&](size_t from, size_t to) {
        unsigned char there[kAtOnce];
        const size_t bytes = (to - from) * kFilePage;
        // Only to ask about: nothing is touched through it.
        void *at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd,
                        static_cast<off_t>(from * kFilePage));
        works = at != MAP_FAILED && mincore(at, bytes, there) == 0;
        if (at != MAP_FAILED) {
            munmap(at, bytes);
        }
        for (size_t page = from; works && page < to; ++page) {
            std::optional<bool> data = (there[page - from] & 1) != 0;
            if (!*data && swap) {
                data = says_something(fd, page);
            }
            works = data.has_value();
            if (works && *data && !found(page, page + 1)) {
                return false;
            }
        }
        return works;
    });
    return works;
}

bool find_pages_that_say_something(int fd, size_t first, size_t last, const PagesFound &found) {
    for (; first < last; ++first) {
        const auto said = says_something(fd, first);
        if (!said) {
            return false;
        }
        if (*said && !found(first, first + 1)) {
            return true;
        }
    }
    return true;
}

void find_pages(int fd, size_t first, size_t last, const PagesFound &found) {
    // The kernel has each of these or has it not, and a filter lets it through or does not.
    static std::atomic<bool> counts{true};
    size_t next = first; // from here on none has been found
    const auto note = [&](size_t from, size_t to) {
        next = to;
        return found(from, to);
    };
    if (counts.load(std::memory_order_relaxed)) {
        const int error = search_counted_pages(fd, first, last, note);
        if (error == 0) {
            return;
        }
        counts.store(error != ENOSYS && error != EPERM, std::memory_order_relaxed);
    }
    if (!find_resident_pages(fd, next, last, note)) {
        (void)find_pages_that_say_something(fd, next, last, note);
    }
}

DataExtents::DataExtents(int fd, size_t from, size_t to) {
    find_pages(fd, from / kFilePage, (to + kFilePage - 1) / kFilePage, [&](size_t first, size_t last) {
        const Range found{std::max(from, first * kFilePage), std::min(to, last * kFilePage)};
        if (!ranges_.empty() && ranges_.back().to == found.from) {
            ranges_.back().to = found.to;
        } else {
            ranges_.push_back(found);
        }
        return true;
    });
}

bool DataExtents::contains(size_t from, size_t bytes) const {
    auto it = std::upper_bound(ranges_.begin(), ranges_.end(), from,
                               [](size_t value, const Range &range) { return value < range.to; });
    return it != ranges_.end() && it->from <= from && from + bytes <= it->to;
}

size_t next_data(int fd, size_t from, size_t to) {
    size_t result = to;
    find_pages(fd, from / kFilePage, (to + kFilePage - 1) / kFilePage, [&](size_t first, size_t) {
        result = std::min(to, std::max(from, first * kFilePage));
        return false;
    });
    return result;
}

} // namespace sd::monitor
