// Whether a listening socket exists still, whoever has it: the kernel's socket table tells.
#pragma once
#include "monitor/records/directory.hpp"

#include <cstdint>
#include <sys/types.h>

namespace sd::monitor {

struct Listening {
    bool known = false; ///< false: the table of its network namespace is not ours to see
    ino_t inode = 0;    ///< 0: it does not listen there
};

/// Looks for the socket with this SO_COOKIE that listens at this address.
Listening look_up_listening(const ListenAddress &address, uint64_t cookie, uint64_t netns);

} // namespace sd::monitor
