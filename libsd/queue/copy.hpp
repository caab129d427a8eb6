// Copies between the program's buffers and shared memory that survive a bad pointer.
//
// The kernel answers EFAULT; a plain memcpy would kill the program. The copy below is a leaf routine in a section of its own that keeps nothing on
// the stack, so the SIGSEGV/SIGBUS hook of the api layer can recognise a fault by its instruction pointer and make the routine return 1
// (see fault_fixup). There is no cost when nothing goes wrong.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
/// 0, or 1 if either side could not be accessed (part of the bytes may have been copied). Async-signal-safe.
[[nodiscard]] int sd_copy(void *to, const void *from, size_t n) noexcept;
extern const char sd_copy_begin[], sd_copy_end[];
}

namespace sd {

/// True when `pc` is an instruction of sd_copy: the caller then sets the result register to 1 and returns to *(stack pointer).
inline bool is_copy_fault(uintptr_t pc) noexcept {
    return pc >= reinterpret_cast<uintptr_t>(sd_copy_begin) && pc < reinterpret_cast<uintptr_t>(sd_copy_end);
}

} // namespace sd
