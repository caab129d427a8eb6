// sendfile and splice; called through vfs.hpp.
#pragma once

namespace sd {

void sendfile_fork_child() noexcept;

} // namespace sd
