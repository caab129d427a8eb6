// memfds: making them, deciding whether one from a client can be mapped safely, and looking at them without
// filling holes.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

/// Which file a descriptor means, whoever holds it.
struct FileId {
    dev_t dev = 0;
    ino_t ino = 0;
    bool operator==(const FileId &) const = default;
};
struct FileIdHash {
    size_t operator()(const FileId &id) const {
        return std::hash<uint64_t>{}(id.dev * 0x9e3779b97f4a7c15ULL ^ id.ino);
    }
};
FileId file_id(int fd);

class Mapping {
  public:
    Mapping() = default;
    /// Maps the first `bytes` of fd, shared and writable; throws std::system_error.
    Mapping(int fd, size_t bytes);
    Mapping(Mapping &&other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping &operator=(Mapping &&other) noexcept;
    ~Mapping();
    uint8_t *base() const { return base_; }

  private:
    uint8_t *base_ = nullptr;
    size_t bytes_ = 0;
};

/// A new memfd of that size, not sealed yet. Throws std::system_error.
UniqueFd make_memfd(const char *name, size_t bytes);
/// Adds seals; throws std::system_error.
void seal(int fd, int seals);

/// Whether fd is ordinary shared memory of at least `bytes` that nobody can shrink. Only then can an access
/// of ours through a mapping never fault (a hole punched into it reads as zeros; huge pages, which could be
/// missing, are refused).
[[nodiscard]] bool safe_to_map(int fd, size_t bytes);

// Which pages of a memory file have memory behind them, asked without the lock of its inode.
// lseek(SEEK_DATA) says it best, and waits for that lock. A client that is in a write() to the file has it
// for as long as it likes: the call reads the client's memory, which may lie in a file system of its own
// (FUSE). The wait is one that no signal ends. So nothing of the monitor may take that lock of a client's
// file.

constexpr size_t kFilePage = 4096;

/// Told of pages from `first` to before `last`; false: that is enough.
using PagesFound = std::function<bool(size_t first, size_t last)>;

/// Calls `found` for each run of pages in [first, last) that have memory, also in swap, in their order. Runs
/// may touch each other. A page that gets memory, or loses it, meanwhile may be found or not.
void find_pages(int fd, size_t first, size_t last, const PagesFound &found);

/// The ways to find them; each is false where it does not work here, and then may have found some already.
/// By cachestat(2), which the kernel has since 6.5.
bool find_counted_pages(int fd, size_t first, size_t last, const PagesFound &found);
/// By mincore(2), which looks at each page, and where it does not know of swap, by what can be read: there a
/// page that is all 0 is taken for one without memory. Not for who may not write to the file: it is told that
/// all pages are there.
bool find_resident_pages(int fd, size_t first, size_t last, const PagesFound &found);
/// By reading, which does not fill holes. A page that is all 0 is taken for one without memory.
bool find_pages_that_say_something(int fd, size_t first, size_t last, const PagesFound &found);

/// The parts of [from, to) of a memfd that have memory behind them. Reading a hole through a mapping would
/// allocate it, so everything that walks a client's tables walks only these.
class DataExtents {
  public:
    DataExtents(int fd, size_t from, size_t to);
    struct Range {
        size_t from, to;
    };
    const std::vector<Range> &ranges() const { return ranges_; }
    bool contains(size_t from, size_t bytes) const;

  private:
    std::vector<Range> ranges_;
};

/// The first place from `from` on, below `to`, that has memory behind it; `to` if there is none. For walks in
/// pieces: what DataExtents says grows old.
size_t next_data(int fd, size_t from, size_t to);

} // namespace sd::monitor
