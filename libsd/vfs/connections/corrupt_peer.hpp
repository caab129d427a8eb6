// A peer that writes rubbish into shared memory.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Ends the connection: reset towards both sides, counted. With a token of it, or where nobody else can close
/// it.
void condemn(File &f) noexcept;

} // namespace sd
