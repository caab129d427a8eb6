// What a descriptor of ours stands for; the table that an exec leaves names it, too, and the monitor reads
// that.
#pragma once
#include <cstdint>

namespace sd {

enum class FileKind : uint8_t {
    free = 0,
    /// A TCP socket that is neither connected nor listening yet; may or may not be a real kernel socket
    fresh,
    stream,   ///< an accelerated connection
    listener, ///< a kernel listener that is in the directory
    epoll,    ///< an epoll instance
};

} // namespace sd
