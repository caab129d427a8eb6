// By what the two ends of one kernel connection are known to belong together.
#pragma once
#include <compare>
#include <cstdint>

namespace sd::monitor {

/// The same for both ends of one connection, and for no other: what the option carried, and the initial
/// sequence numbers, which only the two kernels' ends and the wire between them have seen.
struct PairKey {
    uint64_t nonce = 0, answer = 0;
    uint32_t connector_isn = 0, acceptor_isn = 0;
    auto operator<=>(const PairKey &) const = default;
};

} // namespace sd::monitor
