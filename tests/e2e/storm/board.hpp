// What the processes of a storm share.
#pragma once

#include <atomic>
#include <cstdint>

namespace storm {

constexpr int kWreckers = 2, kThreads = 4; ///< processes that do everything wrong, and threads in each
constexpr int kAddresses = 24;

struct Board {
    std::atomic<uint32_t> port[kAddresses]; ///< of listeners that are, or were, there; 0: none yet
    std::atomic<bool> stop;
    /// Wreckers that have closed everything they had, first what has a number, then what was in the mail
    std::atomic<int> closed;
    std::atomic<int> ended[kWreckers]; ///< threads of each
    std::atomic<bool> over;
    std::atomic<uint64_t> accepted, served, moved;
};

} // namespace storm
