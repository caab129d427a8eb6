// Copies between the program's buffers and shared memory that survive a bad pointer.
//
// The kernel answers EFAULT; a plain memcpy would kill the program. sd_copy is a leaf routine in a section of
// its own that keeps nothing on the stack, so the SIGSEGV/SIGBUS hook of the api layer can recognise a fault
// by its instruction pointer and make the routine return 1. copy_small() is a few instructions wherever it is
// used; a table says where those are, and where to go on after a fault. Neither costs anything when nothing
// goes wrong.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
/// 0, or 1 if either side could not be accessed (part of the bytes may have been copied). Async-signal-safe.
[[nodiscard]] int sd_copy(void *to, const void *from, size_t n) noexcept;
extern const char sd_copy_begin[], sd_copy_end[];
/// How large pieces are copied: 0 not known yet, 1 in a loop, 2 by the processor's string copy.
[[gnu::visibility("hidden")]] extern unsigned char sd_copy_how;
}

namespace sd {

/// Instructions that may fault, and where to go on then: distances from the places of these words.
struct CopyPlace {
    int32_t begin, end, after_fault;
};
extern "C" {
// The linker's names for the beginning and end of the table; not there where nothing uses copy_small().
// NOLINT(bugprone-reserved-identifier)
[[gnu::weak, gnu::visibility("hidden")]] extern const CopyPlace __start_sd_copy_places[];
// NOLINT(bugprone-reserved-identifier)
[[gnu::weak, gnu::visibility("hidden")]] extern const CopyPlace __stop_sd_copy_places[];
}

/// For a handler of SIGSEGV or SIGBUS with its third argument, where an instruction raised the signal. True:
/// that was one of a copy; the handler returns, and the copy then says that it failed. Async-signal-safe.
bool leave_copy(void *context) noexcept;

/// sd_copy(), with 8 to 16 bytes in place.
[[gnu::always_inline, nodiscard]] inline bool copy_small(void *to, const void *from, size_t n) noexcept {
    if (n - 8 > 8)
        return sd_copy(to, from, n) != 0;
    asm goto("1: movq (%[from]), %%r10\n"
             "   movq -8(%[from], %[n]), %%r11\n"
             "   movq %%r10, (%[to])\n"
             "   movq %%r11, -8(%[to], %[n])\n"
             "2:\n"
             "   .pushsection sd_copy_places, \"a?\", @progbits\n"
             "   .balign 4\n"
             "   .long 1b - .\n"
             "   .long 2b - .\n"
             "   .long %l[fault] - .\n"
             "   .popsection"
             :
             : [to] "r"(to), [from] "r"(from), [n] "r"(n)
             : "r10", "r11", "memory"
             : fault);
    return false;
fault:
    return true;
}

} // namespace sd
