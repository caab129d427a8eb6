// What the layers below vfs have done by vfs and api: the table of base/upward.hpp, filled in one place.
#pragma once

namespace sd {

namespace vfs {
struct ApiCalls;
}
/// Fills the table. Once, first of all in vfs::init().
void fill_upward(const vfs::ApiCalls &api) noexcept;

} // namespace sd
