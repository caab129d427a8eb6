// Single instructions that the language has no word for.
#pragma once
#include <cstdint>

namespace sd::cpu {

/// In a loop that waits for another core: gives what the two share to the other, and saves power.
inline void pause() noexcept { __builtin_ia32_pause(); }

/// Where a program's memory ends: 47 bits of address, but for the last page.
constexpr uintptr_t kUserMemoryEnd = 0x7fff'ffff'f000;

/// A clock that is cheap to read, the same for all cores, and never goes back: a step is one cycle at the
/// processor's nominal frequency, between 1 and 5 GHz.
inline uint64_t cycles() noexcept { return __builtin_ia32_rdtsc(); }

/// Fetches the cache line in which `first` begins, which is going to be written. Not __builtin_prefetch(, 1):
/// without -mprfchw that asks for reading. Every 64-bit processor takes the instruction.
template <class T> inline void ask_to_write(const T &first) noexcept {
    asm volatile("prefetchw %0" ::"m"(reinterpret_cast<const uint8_t &>(first)));
}

/// What thread-local variables are counted from.
inline char *thread_pointer() noexcept {
    char *p;
    asm("mov %%fs:0, %0" : "=r"(p));
    return p;
}

/// The same value, of which the compiler knows nothing: not even that it may not be null.
template <class T> T *unknown(T *given) noexcept {
    T *p;
    asm("" : "=r"(p) : "0"(given));
    return p;
}

/// In a function that does nothing but ask for memory ahead: keeps the compiler from leaving out its calls.
inline void keep_this_call() noexcept { asm volatile(""); }

} // namespace sd::cpu
