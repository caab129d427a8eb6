// Taking accelerated connections.
#pragma once
#include "libsd/vfs/connections/listener.hpp"

namespace sd {

/// The next waiting connection of any link, with one reference to its link; -EAGAIN when there is none; -EBADF when the listener was
/// closed after `life` was read. Any thread, any process.
long take_pending(Listener &l, uint32_t life, LinkMap **link, uint32_t *slot) noexcept;
/// The connections that wait for the listener (kind listener) go over to its kernel socket's queue: a program without libsd will accept there.
void leave_waiting_to_kernel(File &listener) noexcept;
/// Is the address one of this host, so that a local client may claim it as its own?
bool is_local_address(const SlotAddress &a) noexcept;
/// The source address the kernel would use towards `to`; true when `to` is an address of this host.
bool route_is_local(const SlotAddress &to, SlotAddress *source) noexcept;

} // namespace sd
