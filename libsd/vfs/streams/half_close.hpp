// The end of the sending direction.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Sends the FIN, with further flags of our side, and tells both ends' waiters. Not with paths. Takes the
/// send token.
void end_sending(File &f, uint32_t flags) noexcept;

} // namespace sd
