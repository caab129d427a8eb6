// The short look for an answer; answer.hpp says how it works.
#include "libsd/cpu/answer.hpp"
#include <cpuid.h>

extern "C" {
/// 1: sd_await_word() loads between two looks
[[gnu::visibility("hidden")]] constinit uint8_t sd_look_loads = 0;
}

namespace sd::cpu {

void choose_look() noexcept {
    static constinit std::atomic<bool> chosen{false};
    if (chosen.load(std::memory_order_relaxed)) [[likely]]
        return;
    unsigned a = 0, b = 0, c = 0, d = 0;
    // Zen 5 is family 26.
    if (__get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) == 15 && 15 + (a >> 20 & 255) >= 26)
        __atomic_store_n(&sd_look_loads, uint8_t{1}, __ATOMIC_RELAXED);
    chosen.store(true, std::memory_order_relaxed);
}

} // namespace sd::cpu

// Between two looks two lfence: one load of the word is under way at a time (more would be thrown away, with
// all that follows them, when the peer writes), and a shared core has more for the peer. On Zen 5 a word that
// is looked at by nothing but such a loop is seen late: there one lfence, and some loads of what is at hand
// (the stack's end, which nobody writes meanwhile), do as well as two elsewhere.
asm(R"(
    .macro sd_fences
    lfence
    lfence
    .endm

    .macro sd_loads
    lfence
    .rept 12
    movq (%rsp), %rax
    movq 8(%rsp), %rdx
    .endr
    .endm

    .macro sd_look between
    jmp 2f
1:  decl %esi              # a look in vain returns here
    jz 3f
    \between
2:  call 4f
    movl $1, %eax          # where a look is expected to return to
    ret
3:  xorl %eax, %eax
    ret
4:  .cfi_adjust_cfa_offset 8
    leaq 1b(%rip), %rdx
    cmpq $0, (%rdi)
    cmovneq (%rsp), %rdx
    movq %rdx, (%rsp)
    ret
    .cfi_adjust_cfa_offset -8
    .endm

    .pushsection .text.sd_await_word, "ax", @progbits
    .globl sd_await_word
    .hidden sd_await_word
    .type sd_await_word, @function
    .balign 64
sd_await_word:
    .cfi_startproc
    cmpb $0, sd_look_loads(%rip)
    jne 5f
    sd_look sd_fences
    .balign 64
5:  sd_look sd_loads
    .cfi_endproc
    .size sd_await_word, .-sd_await_word
    .popsection
    .purgem sd_look
    .purgem sd_loads
    .purgem sd_fences
)");
