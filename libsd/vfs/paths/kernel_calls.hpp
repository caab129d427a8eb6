// Calls on a socket that is the kernel's, and may be joined (offer.hpp).
#pragma once
#include "libsd/control/libc_threads.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/streams/cancel.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

/// For calls that move data: is it a stream by now?
[[nodiscard]] inline bool joins_now(int fd, File &f) noexcept {
    return may_be_joined(f) && consider_joining(fd, f) && f.kind == FileKind::stream;
}

/// Makes the kernel's call, which may block; kPass where the caller may as well, since nobody else is there
/// to join the socket meanwhile.
template <class Call> long in_kernel(File &f, Call call) noexcept {
    if (one_thread())
        return vfs::kPass;
    const InsideKernel inside(f);
    return cancellable([](void *) {}, nullptr, call);
}

/// For calls that nobody counts: among several threads it will not be joined.
inline void leave_unjoined(int fd, File &f) noexcept {
    if (may_be_joined(f) && !consider_joining(fd, f) && !one_thread())
        give_up_joining(f);
}

} // namespace sd
