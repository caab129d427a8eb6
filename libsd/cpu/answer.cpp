// The short look for an answer; answer.hpp says how it works.
#include "libsd/cpu/answer.hpp"

// Two lfence between two looks: one load is under way at a time (more would be thrown away, with all that
// follows them, when the peer writes), and a shared core has more for the peer.
asm(R"(
    .pushsection .text.sd_await_word, "ax", @progbits
    .globl sd_await_word
    .hidden sd_await_word
    .type sd_await_word, @function
    .balign 64
sd_await_word:
    .cfi_startproc
    jmp 2f
1:  decl %esi              # a look in vain returns here
    jz 3f
    lfence
    lfence
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
    .cfi_endproc
    .size sd_await_word, .-sd_await_word
    .popsection
)");
