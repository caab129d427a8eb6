// The folder that absolute names begin at. Where a program has changed it (chroot, pivot_root), the name by
// which the library was found may lead to anybody's file, and nothing is loaded by it any more.
#pragma once

namespace sd::rdma {

/// Once, at start.
void remember_root() noexcept;
/// Do names still lead to where they led then? Any thread.
[[nodiscard]] bool is_root_as_ever() noexcept;

} // namespace sd::rdma
