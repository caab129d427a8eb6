// What of the sent data has arrived at the other end, and a close that waits for it (SO_LINGER).
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Bytes sent that have not arrived, as SIOCOUTQ counts them; -errno. Takes the send token.
[[nodiscard]] long bytes_not_arrived(File &f) noexcept;
/// Does a close of the number that was just taken out of the table have to wait, as far as is known without
/// a look at the connection?
inline bool may_linger(const File &f) noexcept {
    return f.kind == FileKind::stream && f.ofd->opt.linger_on.load(std::memory_order_relaxed) &&
           f.ofd->opt.linger_s.load(std::memory_order_relaxed) != 0;
}
/// Ends the caller's reference like release_file(), and waits first until the data has arrived, the peer has
/// ended, the time is up or a signal handler has run. `f`: a stream, or another's by now.
void linger_and_release(File &f) noexcept;

} // namespace sd
