// Jumps that go back to an earlier signal mask. libc saves and restores the kernel's mask; what is kept
// beside it (vfs/readiness/signal_mask.hpp) goes with it, in the last word of the space for the mask, of
// which the kernel's takes the first.
#include "libsd/api/wrap.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include <csetjmp>
#include <cstddef>

using namespace sd;

namespace {

constexpr unsigned long kMark = 0x5d6a756d'70730000; ///< together with the two bits: the word is ours
constexpr size_t kWord = offsetof(__jmp_buf_tag, __saved_mask) + sizeof(sigset_t) - sizeof(long);
static_assert((kCopyFaults & kMark) == 0 && sizeof(sigset_t) > 4 * sizeof(long));

void go_back(const __jmp_buf_tag *to) noexcept {
    if (!to->__mask_was_saved)
        return;
    unsigned long word;
    memcpy(&word, reinterpret_cast<const char *>(to) + kWord, sizeof word);
    pretended_mask = (word & ~kCopyFaults) == kMark ? word & kCopyFaults : 0;
}

} // namespace

extern "C" {
/// libc's own, once it is known.
__attribute__((visibility("hidden"))) void *sd_real_sigsetjmp = nullptr;
__attribute__((visibility("hidden"), used)) void *sd_find_real_sigsetjmp() noexcept {
    constexpr char kName[] = "__sigsetjmp";
    Sought sought{kName, gnu_hash(kName), nullptr};
    find_behind(&sought, 1);
    std::atomic_ref<void *>(sd_real_sigsetjmp).store(sought.found, std::memory_order_relaxed);
    return sought.found;
}
}

// It comes back twice to its caller, so it has no frame of ours: the word is written, then libc's function
// jumped to.
asm("    .pushsection .text\n"
    "    .globl __sigsetjmp\n"
    "    .type __sigsetjmp, @function\n"
    "    .p2align 4\n"
    "__sigsetjmp:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    testl %esi, %esi\n"
    "    je 1f\n"
    "    movq _ZN2sd14pretended_maskE@gottpoff(%rip), %rax\n"
    "    movq %fs:(%rax), %rax\n"
    "    movabsq $0x5d6a756d70730000, %rdx\n"
    "    orq %rdx, %rax\n"
    "    movq %rax, 192(%rdi)\n"
    "1:  movq sd_real_sigsetjmp(%rip), %rax\n"
    "    testq %rax, %rax\n"
    "    je 2f\n"
    "    jmp *%rax\n"
    "2:  pushq %rdi\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    pushq %rsi\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    subq $8, %rsp\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    call sd_find_real_sigsetjmp\n"
    "    addq $8, %rsp\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    popq %rsi\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    popq %rdi\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    jmp *%rax\n"
    "    .cfi_endproc\n"
    "    .size __sigsetjmp, .-__sigsetjmp\n"
    "    .popsection\n");
static_assert(kMark == 0x5d6a756d70730000 && kWord == 192, "as in the assembly above");

// libc's own functions do not come back.
#define SD_JUMP(name, call)                                                                                        \
    extern "C" __attribute__((noreturn, visibility("default"))) void name(__jmp_buf_tag *to, int value) noexcept { \
        go_back(to);                                                                                               \
        real.call(to, value);                                                                                      \
        __builtin_unreachable();                                                                                   \
    }

SD_JUMP(siglongjmp, siglongjmp)
SD_JUMP(longjmp, longjmp)
SD_JUMP(_longjmp, _longjmp)
SD_JUMP(__longjmp_chk, __longjmp_chk)
