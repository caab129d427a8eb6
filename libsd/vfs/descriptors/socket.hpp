// Sockets before they are connected, and the switch to the kernel's own implementation.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Turns a fresh placeholder into a kernel socket under the same number, with its options. 0 or -errno.
[[nodiscard]] long materialise(int fd, File &f) noexcept;
/// Those that no call has needed a kernel socket for yet get theirs, because it could not be made later, or
/// would be another one.
void materialise_all() noexcept;
/// Lets the kernel have the socket for good: materialises, counts the cause, and takes the number out of the
/// table.
[[nodiscard]] long fall_back(int fd, File *f, Cause why, const SlotAddress *to) noexcept;

} // namespace sd
