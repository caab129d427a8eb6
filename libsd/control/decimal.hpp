// Numbers in decimal, as the library reads them from names and versions.
#pragma once

namespace sd {

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

} // namespace sd
