// What libsd itself loads.
#pragma once
#include <cstdint>

namespace sd {

/// Upward::open_plugin.
const void *open_plugin(uint32_t version) noexcept;

} // namespace sd
