// sendfile and splice; called through vfs.hpp.
#pragma once
#include "libsd/vfs/connections/connection.hpp"

namespace sd {

/// A ring without room: looks for a while, then lets it grow, then sleeps. 0: try again; -EAGAIN, -EINTR. The
/// last three belong to one call of the program: false, 0 and an empty Pin at first.
long wait_for_room(int fd, File &f, bool &grow_far, int64_t &deadline, Pin &pin) noexcept;

void sendfile_fork_child() noexcept;

} // namespace sd
