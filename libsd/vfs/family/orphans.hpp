// What processes that died left half done on connections that others still hold.
#pragma once

namespace sd {

void init_orphans() noexcept; ///< sets the hook of token.hpp

/// After waking up: if a process of the family has died, takes the tokens that were its own. Costs a load per
/// segment otherwise.
void look_after_orphans() noexcept;

} // namespace sd
