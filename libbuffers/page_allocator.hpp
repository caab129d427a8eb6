// Which pages of a pool are free: extents, by their first page.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace socksdirect {

constexpr size_t kPage = 4096;

class PageAllocator {
  public:
    explicit PageAllocator(uint64_t pages) { free_[0] = pages; }
    /// The first of `n` pages in a row: where the lowest are free, since those were in use before.
    std::optional<uint64_t> take(uint64_t n) {
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            const auto [first, length] = *it;
            if (length < n) {
                continue;
            }
            if (length > n) { // before anything is changed: it may throw
                free_[first + n] = length - n;
            }
            free_.erase(it);
            return first;
        }
        return std::nullopt;
    }
    void give(uint64_t first, uint64_t n) {
        auto next = free_.lower_bound(first);
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == first) {
                before->second += n;
                join(before, next);
                return;
            }
        }
        join(free_.emplace_hint(next, first, n), next);
    }

  private:
    using Extents = std::map<uint64_t, uint64_t>;
    void join(Extents::iterator at, Extents::iterator next) {
        if (next != free_.end() && at->first + at->second == next->first) {
            at->second += next->second;
            free_.erase(next);
        }
    }
    Extents free_;
};

} // namespace socksdirect
