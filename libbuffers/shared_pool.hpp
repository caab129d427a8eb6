// A pool of libsd's, and which of its pages are whose.
#pragma once
#include "libbuffers/page_allocator.hpp"
#include "libsd/layout/buffer_calls.hpp"

#include <chrono>
#include <mutex>
#include <vector>

namespace socksdirect {

/// Lives until the last buffer of it has been put. Any thread.
class SharedPool {
  public:
    SharedPool(const sd::BufferCalls &calls, const sd::OwnPoolView &view);
    ~SharedPool() { calls_.drop_pool(view_.pool); }
    SharedPool(const SharedPool &) = delete;
    SharedPool &operator=(const SharedPool &) = delete;

    void *handle() const { return view_.pool; }
    uint8_t *bytes() const { return view_.bytes; }
    uint64_t size() const { return view_.size; }

    struct Place {
        uint64_t offset = 0, bytes = 0;
        uint32_t number = 0; ///< of the buffer
    };
    /// Nothing: no room. `bytes`: of whole pages.
    std::optional<Place> take(uint64_t bytes);
    /// The program has put the buffer, whose bytes may still be read.
    void give(const Place &place);

    /// Some of its bytes were handed over.
    void count_sent(uint32_t number, uint64_t bytes) {
        sent_[number].fetch_add(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
    }
    bool is_read(uint32_t number) const {
        return sent_[number].load(std::memory_order_relaxed) !=
               view_.ledger->released[number].load(std::memory_order_acquire);
    }

    /// How often something was released.
    uint32_t releases() const { return view_.ledger->releases.load(std::memory_order_acquire); }
    /// Sleeps until that is not `seen` any more, or for so long.
    void wait_for_release(uint32_t seen, std::chrono::nanoseconds most) const;

  private:
    std::optional<Place> take_free(uint64_t bytes);
    bool reclaim();

    const sd::BufferCalls &calls_;
    const sd::OwnPoolView view_;
    std::vector<std::atomic<uint32_t>> sent_; ///< of each buffer, as PoolLedger::released
    std::mutex lock_;                         ///< of what follows
    PageAllocator pages_;
    std::vector<uint32_t> numbers_; ///< of buffers, that are free
    std::vector<Place> lent_;       ///< put by the program, and perhaps still read
};

} // namespace socksdirect
