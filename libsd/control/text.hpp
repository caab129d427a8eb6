// Text that is put together or read without libc: in signal handlers, and before constructors have run.
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

/// The digits at `text`; `*end`, if given, is what comes after them. 0 where there are none, and no more than
/// INT_MAX / 10 * 10 + 9. The C library's functions have names of their own for each language level, which
/// older ones lack.
inline int decimal(const char *text, const char **end = nullptr) noexcept {
    constexpr int kMost = 214748363;
    int n = 0;
    for (; *text >= '0' && *text <= '9'; ++text)
        n = n <= kMost ? n * 10 + (*text - '0') : n;
    if (end)
        *end = text;
    return n;
}

/// Writes the name of the file in /proc behind a descriptor (at most 25 bytes), as far as procfs is mounted.
inline void descriptor_name(int fd, char *to) noexcept {
    *append(append(to, "/proc/self/fd/"), static_cast<uint32_t>(fd)) = '\0';
}

} // namespace sd
