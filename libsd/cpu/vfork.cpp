// vfork, with the library's variables shared with the child; see trampolines.hpp.
#include "libsd/cpu/trampolines.hpp"
#include <sys/syscall.h>

// The child returns to the caller first and uses its stack, so nothing may be kept there: the return address
// and what sd_vfork_begin() gave stay in registers. The child restores the mask before it returns.
asm("    .pushsection .text\n"
    "    .globl vfork, __vfork\n"
    "    .type vfork, @function\n"
    "    .type __vfork, @function\n"
    "    .p2align 4\n"
    "vfork:\n"
    "__vfork:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    subq $8, %rsp\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    call sd_vfork_begin\n"
    "    addq $8, %rsp\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    testq %rax, %rax\n"
    "    je sd_vfork_fork\n"
    "    movq %rax, %rsi\n"
    "    popq %rdi\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    .cfi_register rip, rdi\n"
    "    movl $58, %eax\n" // SYS_vfork
    "    syscall\n"
    "    pushq %rdi\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    .cfi_offset rip, -8\n"
    "    testq %rax, %rax\n"
    "    je 1f\n"
    "    movq %rax, %rdi\n"
    "    jmp sd_vfork_end\n"
    "1:  movl $14, %eax\n" // SYS_rt_sigprocmask(SIG_SETMASK, &memory->mask, nullptr, 8)
    "    movl $2, %edi\n"
    "    xorl %edx, %edx\n"
    "    movl $8, %r10d\n"
    "    syscall\n"
    "    xorl %eax, %eax\n"
    "    ret\n"
    "    .cfi_endproc\n"
    "    .size vfork, .-vfork\n"
    "    .size __vfork, .-__vfork\n"
    "    .popsection\n");
static_assert(SYS_vfork == 58 && SYS_rt_sigprocmask == 14 && SIG_SETMASK == 2, "as in the assembly above");
