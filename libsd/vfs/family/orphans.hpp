// What processes that died left half done on connections that others still hold.
#pragma once
#include <cstdint>

namespace sd {

/// Upward::repair.
void repair_direction(unsigned seg, uint64_t id) noexcept;

/// After waking up: if a process of the family has died, takes the tokens that were its own. Costs a load per
/// segment otherwise.
void look_after_orphans() noexcept;

} // namespace sd
