// Which accelerated listener a connection is for: what the directory says, as long as the kernel says the
// same.
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/transport/link.hpp"

namespace sd {

/// A directory entry as one consistent copy.
struct ListenerEntry {
    uint32_t id, backlog, owner;
    int rank;
    uint64_t cookie;
};

/// The accelerated listener that the kernel would choose for this address.
[[nodiscard]] bool look_up_listener(const SlotAddress &to, ListenerEntry *out) noexcept;

/// Whether the kernel agrees, now or at most kAgreedFor cycles of the processor's clock ago on this link. A
/// listener's entry may outlive its socket, and then another user may have the address: the kernel gives it
/// to nobody else before. `now`: the time stamp counter.
///
/// So where this says yes, there was a moment in this connect(), or up to kAgreedFor before, in which a
/// kernel connection would have reached a socket of the entry's owner. (2^23 cycles are 2 to 8 ms at 4 to 1
/// GHz.)
///
/// A listener for any address is asked for at each, but only each kAddressAgreedFor (0.1 to 0.5 s) as long as
/// it is there: as long, nobody but its owner, by SO_REUSEPORT, can listen at an address that it covers.
constexpr uint64_t kAgreedFor = uint64_t{1} << 23, kAddressAgreedFor = kAgreedFor << 6;
[[nodiscard]] bool kernel_agrees(LinkMap &link, const ListenerEntry &entry, const SlotAddress &to,
                                 uint64_t now) noexcept;

} // namespace sd
