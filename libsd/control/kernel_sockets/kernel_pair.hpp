// Two kernel TCP sockets of this host connected to each other, one of them named as an accelerated connection
// was.
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd {

/// How long to wait for an ordinary connection of this host, in ns: the kernel sends a request that got lost
/// again after one second.
constexpr int64_t kPairPatience = 3'000'000'000;

/// out[0] is the program's end, out[1] the other. Where the process may (CAP_NET_ADMIN) out[0] has exactly
/// the names asked for, whatever else uses the ports. Otherwise the addresses are right, and of the ports
/// those that are free for it. `family`: AF_INET or AF_INET6, for both. Close-on-exec, blocking. 0 or -errno,
/// -ETIMEDOUT after `patience` at most twice; any thread, async-signal-safe.
[[nodiscard]] long kernel_pair(const SlotAddress &local, const SlotAddress &peer, unsigned family, int out[2],
                               int64_t patience = kPairPatience) noexcept;
/// The same with exactly those names, or not at all: -EADDRNOTAVAIL where the kernel has sockets that are
/// connected under them, -EPERM without the right.
[[nodiscard]] long named_pair(const SlotAddress &local, const SlotAddress &peer, unsigned family,
                              int out[2]) noexcept;
/// A kernel socket that has asked the kernel's listener at `peer` for a connection, under the name `local` as
/// far as it can be had. Close-on-exec, blocking. Its descriptor or -errno.
[[nodiscard]] long kernel_request(const SlotAddress &local, const SlotAddress &peer, unsigned family) noexcept;

} // namespace sd
