// What the environment says: SD_ZERO_COPY, SD_ZERO_COPY_FROM.
#pragma once
#include <atomic>
#include <cstddef>

namespace sd::pages {

/// Where glibc begins to map blocks one by one: below, a block costs more with us than with it.
constexpr size_t kDefaultLeast = 128 << 10;
constexpr size_t kNever = ~size_t{0};

/// From that size on; kNever until the constructor has run, and without the device.
extern std::atomic<size_t> least_block, least_mapping;

inline bool serves_block(size_t size) noexcept { return size >= least_block.load(std::memory_order_relaxed); }

} // namespace sd::pages
