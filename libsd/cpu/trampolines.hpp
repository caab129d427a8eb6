// Replaced functions that no compiler can write, as they must leave no frame of ours behind: vfork and
// __sigsetjmp come back twice to their caller, and libc's dlopen looks at who calls it. Each calls a function
// of libsd/api, which defines those below, and goes on where that says.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstddef>

namespace sd {
struct VforkMemory;

namespace cpu {
/// Where __sigsetjmp, when it is to save the mask, writes kJumpMark together with the thread's
/// `pretended_mask`: the last word of the space for the mask, of which the kernel's takes the first.
constexpr unsigned long kJumpMark = 0x5d6a756d'70730000;
constexpr size_t kJumpWord = offsetof(__jmp_buf_tag, __saved_mask) + sizeof(sigset_t) - sizeof(long);
} // namespace cpu
} // namespace sd

extern "C" {
/// Before vfork: what vfork keeps in a register until the parent goes on; its first word is the signal mask
/// that the child begins with. nullptr: the memory cannot be shared, sd_vfork_fork() is the whole call.
[[gnu::visibility("hidden")]] sd::VforkMemory *sd_vfork_begin() noexcept;
[[gnu::visibility("hidden")]] long sd_vfork_fork() noexcept;
/// In the parent, once the child has gone its way: `result` as the kernel gave it; what vfork returns.
[[gnu::visibility("hidden")]] long sd_vfork_end(long result, sd::VforkMemory *memory) noexcept;

/// Where a call of dlopen from `caller` goes: a function with the arguments of dlopen.
[[gnu::visibility("hidden")]] void *sd_way_to_dlopen(const char *file, int mode, void *caller) noexcept;

/// libc's own __sigsetjmp, once it is known; and finds it.
[[gnu::visibility("hidden")]] extern void *sd_real_sigsetjmp;
[[gnu::visibility("hidden")]] void *sd_find_real_sigsetjmp() noexcept;
}
