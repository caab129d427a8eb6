// The copy routine that survives a bad pointer; see copy.hpp. Written in assembly so that every instruction
// that touches memory lies between the two labels and the return address is always at the top of the stack.
//
// From 1 KiB on the processor's own string copy is the quickest way, if it says that it is (ERMS, a bit of
// cpuid); on one that does not, an emulated one among them, that goes byte by byte. The first such copy asks.
#include "libsd/cpu/copy.hpp"
#include <ucontext.h>

extern "C" {
unsigned char sd_copy_how = 0;
}

asm(R"(
    .pushsection .text.sd_copy,"ax",@progbits
    .globl sd_copy, sd_copy_begin, sd_copy_end
    .hidden sd_copy, sd_copy_begin, sd_copy_end
    .type sd_copy,@function
    .p2align 6
sd_copy_begin:
sd_copy:
    .cfi_startproc
    cmpq $16, %rdx
    ja 2f
    cmpl $8, %edx
    jae 1f
    cmpl $4, %edx
    jae 3f
    testl %edx, %edx
    je 9f
    movzbl (%rsi), %eax
    movzbl -1(%rsi,%rdx), %ecx
    cmpl $3, %edx
    jb 4f
    movzbl 1(%rsi), %r8d
    movb %r8b, 1(%rdi)
4:  movb %al, (%rdi)
    movb %cl, -1(%rdi,%rdx)
    xorl %eax, %eax
    ret
3:  movl (%rsi), %eax
    movl -4(%rsi,%rdx), %ecx
    movl %eax, (%rdi)
    movl %ecx, -4(%rdi,%rdx)
    xorl %eax, %eax
    ret
1:  movq (%rsi), %rax
    movq -8(%rsi,%rdx), %rcx
    movq %rax, (%rdi)
    movq %rcx, -8(%rdi,%rdx)
9:  xorl %eax, %eax
    ret
2:  cmpq $64, %rdx
    ja 5f
    movups (%rsi), %xmm0
    movups -16(%rsi,%rdx), %xmm1
    cmpl $32, %edx
    jbe 6f
    movups 16(%rsi), %xmm2
    movups -32(%rsi,%rdx), %xmm3
    movups %xmm2, 16(%rdi)
    movups %xmm3, -32(%rdi,%rdx)
6:  movups %xmm0, (%rdi)
    movups %xmm1, -16(%rdi,%rdx)
    xorl %eax, %eax
    ret
5:  cmpq $1024, %rdx
    jae 8f
10: movups -64(%rsi,%rdx), %xmm4
    movups -48(%rsi,%rdx), %xmm5
    movups -32(%rsi,%rdx), %xmm6
    movups -16(%rsi,%rdx), %xmm7
    leaq -64(%rdi,%rdx), %r8
7:  movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups 32(%rsi), %xmm2
    movups 48(%rsi), %xmm3
    movups %xmm0, (%rdi)
    movups %xmm1, 16(%rdi)
    movups %xmm2, 32(%rdi)
    movups %xmm3, 48(%rdi)
    addq $64, %rsi
    addq $64, %rdi
    subq $64, %rdx
    cmpq $64, %rdx
    ja 7b
    movups %xmm4, (%r8)
    movups %xmm5, 16(%r8)
    movups %xmm6, 32(%r8)
    movups %xmm7, 48(%r8)
    xorl %eax, %eax
    ret
8:  movzbl sd_copy_how(%rip), %eax
    cmpl $1, %eax
    jb 11f
    je 10b
    movq %rdx, %rcx
    rep movsb
    xorl %eax, %eax
    ret
11: movq %rbx, %r8
    movq %rdx, %r9
    movl $1, %r10d
    xorl %eax, %eax
    cpuid
    cmpl $7, %eax
    jb 12f
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    btl $9, %ebx
    adcl $0, %r10d
12: movq %r8, %rbx
    movq %r9, %rdx
    movb %r10b, sd_copy_how(%rip)
    jmp 8b
    .cfi_endproc
sd_copy_end:
    .size sd_copy, .-sd_copy
    .popsection
)");

namespace sd {

namespace {

bool in_sd_copy(uintptr_t pc) noexcept {
    return pc >= reinterpret_cast<uintptr_t>(sd_copy_begin) && pc < reinterpret_cast<uintptr_t>(sd_copy_end);
}

/// Where to go on after a fault at `pc` in a copy_small(); 0: that is none.
uintptr_t small_copy_fault(uintptr_t pc) noexcept {
    const auto at = [](const int32_t &word) {
        return reinterpret_cast<uintptr_t>(&word) + static_cast<uintptr_t>(intptr_t{word});
    };
    for (const CopyPlace *p = __start_sd_copy_places; p != __stop_sd_copy_places; ++p)
        if (pc >= at(p->begin) && pc < at(p->end))
            return at(p->after_fault);
    return 0;
}

} // namespace

bool leave_copy(void *context) noexcept {
    auto &registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
    const auto pc = static_cast<uintptr_t>(registers[REG_RIP]);
    if (in_sd_copy(pc)) {
        registers[REG_RAX] = 1;
        registers[REG_RIP] = *reinterpret_cast<greg_t *>(registers[REG_RSP]);
        registers[REG_RSP] += 8;
        return true;
    }
    const uintptr_t on = small_copy_fault(pc);
    if (on)
        registers[REG_RIP] = static_cast<greg_t>(on);
    return on != 0;
}

} // namespace sd
