// Taking accelerated connections.
#pragma once
#include "libsd/vfs/connections/listener.hpp"

namespace sd {

/// The connections that wait for the listener (kind listener) go over to its kernel socket's queue: a program
/// without libsd will accept there.
void leave_waiting_to_kernel(File &listener) noexcept;

/// EPOLLIN when an accelerated connection waits (the kernel's queue is not looked at).
uint32_t listener_events(File &f) noexcept;

} // namespace sd
