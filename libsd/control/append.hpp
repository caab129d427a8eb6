// Names of files in /proc, put together without libc: in signal handlers and before constructors have run.
#pragma once
#include <cstdint>

namespace sd {

/// Write behind `at`; the end of what was written, where the caller puts the last 0.
inline char *append(char *at, const char *text) noexcept {
    while (*text)
        *at++ = *text++;
    return at;
}
inline char *append(char *at, uint32_t n) noexcept {
    char digits[10];
    unsigned k = 0;
    do
        digits[k++] = static_cast<char>('0' + n % 10);
    while ((n /= 10) != 0);
    while (k)
        *at++ = digits[--k];
    return at;
}

/// Writes the name of the file behind a descriptor (at most 25 bytes), as far as procfs is mounted.
inline void descriptor_name(int fd, char *to) noexcept {
    *append(append(to, "/proc/self/fd/"), static_cast<uint32_t>(fd)) = '\0';
}

} // namespace sd
