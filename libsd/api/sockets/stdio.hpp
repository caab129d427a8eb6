// stdin, stdout and stderr when a socket of ours comes under their number.
#pragma once

namespace sd {

void exchange_standard(int fd) noexcept;

/// To be called after descriptor `fd` has changed its meaning. Free unless it is 0, 1 or 2.
inline void check_standard(int fd) noexcept {
    if (static_cast<unsigned>(fd) < 3) [[unlikely]]
        exchange_standard(fd);
}

} // namespace sd
