// Whether a listening socket exists still, whoever has it: the kernel's socket table tells.
#pragma once
#include "monitor/directory.hpp"

#include <cstdint>
#include <sys/types.h>

namespace sd::monitor {

/// The inode of the socket with this address and SO_COOKIE, if it listens. 0: it does not, or the table of its network namespace is not ours to see.
ino_t listening_inode(const ListenAddress &address, uint64_t cookie, uint64_t netns);

} // namespace sd::monitor
