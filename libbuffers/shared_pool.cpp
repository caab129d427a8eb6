// A pool of libsd's, and which of its pages are whose.
#include "libbuffers/shared_pool.hpp"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace socksdirect {

SharedPool::SharedPool(const sd::BufferCalls &calls, const sd::OwnPoolView &view)
    : calls_(calls), view_(view), sent_(sd::kPoolBuffers), pages_(view.size / kPage) {
    numbers_.reserve(sd::kPoolBuffers); // so that what is given back always finds room
    lent_.reserve(sd::kPoolBuffers);
    for (uint32_t i = sd::kPoolBuffers; i-- > 0;) {
        numbers_.push_back(i);
    }
}

std::optional<SharedPool::Place> SharedPool::take(uint64_t bytes) {
    const std::lock_guard guard(lock_);
    auto place = take_free(bytes);
    if (!place && reclaim()) {
        place = take_free(bytes);
    }
    return place;
}

std::optional<SharedPool::Place> SharedPool::take_free(uint64_t bytes) {
    if (numbers_.empty()) {
        return std::nullopt;
    }
    const auto first = pages_.take(bytes / kPage);
    if (!first) {
        return std::nullopt;
    }
    const Place place{*first * kPage, bytes, numbers_.back()};
    numbers_.pop_back();
    return place;
}

void SharedPool::give(const Place &place) {
    const std::lock_guard guard(lock_);
    lent_.push_back(place);
}

/// Takes back what nobody reads any more. False: nothing.
bool SharedPool::reclaim() {
    const auto free_if_unread = [this](const Place &place) {
        if (is_read(place.number)) {
            return false;
        }
        pages_.give(place.offset / kPage, place.bytes / kPage);
        numbers_.push_back(place.number);
        return true;
    };
    return std::erase_if(lent_, free_if_unread) != 0;
}

// Who releases counts it, and then looks at `waiters`; this is the other way round.
void SharedPool::wait_for_release(uint32_t seen, std::chrono::nanoseconds most) const {
    sd::PoolLedger &ledger = *view_.ledger;
    const timespec limit{0, static_cast<long>(most.count())};
    ledger.waiters.fetch_add(1, std::memory_order_seq_cst);
    if (ledger.releases.load(std::memory_order_seq_cst) == seen) {
        syscall(SYS_futex, &ledger.releases, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    ledger.waiters.fetch_sub(1, std::memory_order_seq_cst);
}

} // namespace socksdirect
