// What the parts of the torture share. Each case runs in a process of its own; torture.cpp has the list.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace torture {

constexpr size_t kPage = 4096, kLarge = 1 << 20;

/// Is this memory of the device?
bool of_device(const void *at);
/// Is there a device?
extern bool device_there;

struct Case {
    const char *name;
    void (*run)();
    Case *following;
    Case(const char *n, void (*r)());
};

[[noreturn]] inline void fail(const char *file, int line, const char *what) {
    printf("  %s:%d: %s (errno %d)\n", file, line, what, errno);
    fflush(stdout);
    _exit(1);
}

/// Pseudo-random numbers of a sequence's own.
struct Random {
    uint64_t state;
    uint32_t operator()() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 33);
    }
    size_t below(size_t n) { return (*this)() % n; }
};

/// Writes words of a pattern, two or three into each page: what holds of a length holds of a shorter one.
inline void fill(void *at, size_t length, uint64_t seed) {
    auto *bytes = static_cast<unsigned char *>(at);
    for (size_t i = 0; i + 8 <= length; i += 2040) {
        const uint64_t word = seed * 0x9e3779b97f4a7c15u + i;
        memcpy(bytes + i, &word, 8);
    }
}
inline bool holds(const void *at, size_t length, uint64_t seed) {
    const auto *bytes = static_cast<const unsigned char *>(at);
    for (size_t i = 0; i + 8 <= length; i += 2040) {
        const uint64_t word = seed * 0x9e3779b97f4a7c15u + i;
        if (memcmp(bytes + i, &word, 8) != 0)
            return false;
    }
    return true;
}
inline bool zero(const void *at, size_t length) {
    const auto *bytes = static_cast<const unsigned char *>(at);
    for (size_t i = 0; i < length; ++i)
        if (bytes[i])
            return false;
    return true;
}

} // namespace torture

#define TORTURE(name)                                                                                        \
    static void name();                                                                                      \
    static torture::Case case_##name(#name, name);                                                           \
    static void name()
#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            torture::fail(__FILE__, __LINE__, #condition);                                                   \
    } while (0)
/// With a device: memory is its; without one: it is not.
#define REQUIRE_OF_DEVICE(at) REQUIRE(torture::of_device(at) == torture::device_there)
