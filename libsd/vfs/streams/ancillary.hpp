// What travels beside the data: control messages of a send, and the completions of MSG_ZEROCOPY in the error
// queue.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"
#include <sys/socket.h>

namespace sd {

/// The control messages of sendmsg() as TCP looks at them: 0, -EINVAL for those it does not know, -EFAULT.
[[nodiscard]] long check_control(const msghdr &h) noexcept;

/// A send with MSG_ZEROCOPY returned `sent`: the data has been copied already, so it is complete at once.
void note_zerocopy(File &f, long sent) noexcept;
inline bool completions_pending(const Ofd &o) noexcept {
    const int32_t next = o.opt.zerocopy_next.load(std::memory_order_acquire);
    return next > 1 && next - 1 != o.opt.zerocopy_told.load(std::memory_order_acquire);
}
/// recvmsg(MSG_ERRQUEUE) into `m`, of which `h` is a copy; both null for recv(). 0 bytes of data, or -EAGAIN.
[[nodiscard]] long read_error_queue(File &f, msghdr *m, const msghdr *h) noexcept;

} // namespace sd
