// Private memory of whole pages, for what has to be copied. A little is kept for the next one: fresh memory
// of the size of a frame costs more page faults than its copy costs time.
#pragma once
#include <array>
#include <cstddef>
#include <mutex>
#include <sys/mman.h>
#include <utility>

namespace socksdirect {

/// Any thread. One that finds it busy, in a child perhaps for ever, goes without.
class PageCache {
  public:
    /// With what a former user has left there; null: no memory.
    void *take(size_t bytes) {
        if (const std::unique_lock guard(lock_, std::try_to_lock); guard) {
            for (Entry &entry : kept_) {
                if (entry.memory != nullptr && entry.bytes == bytes) {
                    void *memory = entry.memory;
                    entry.memory = nullptr;
                    total_ -= bytes;
                    return memory;
                }
            }
        }
        void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return memory == MAP_FAILED ? nullptr : memory;
    }
    void give(void *memory, size_t bytes) {
        Entry old{memory, bytes};
        if (const std::unique_lock guard(lock_, std::try_to_lock); guard) {
            Entry &oldest = kept_[next_ % kept_.size()];
            const size_t then = total_ + bytes - (oldest.memory != nullptr ? oldest.bytes : 0);
            if (then <= kMost) {
                total_ = then;
                ++next_;
                std::swap(oldest, old);
            }
        }
        if (old.memory != nullptr) {
            munmap(old.memory, old.bytes);
        }
    }

  private:
    static constexpr size_t kMost = size_t{32} << 20;
    struct Entry {
        void *memory = nullptr;
        size_t bytes = 0;
    };
    std::mutex lock_;
    std::array<Entry, 8> kept_;
    size_t total_ = 0;
    unsigned next_ = 0;
};

} // namespace socksdirect
