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
