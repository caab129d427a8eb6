// dlopen; see trampolines.hpp.
#include "libsd/cpu/trampolines.hpp"

// The C library's function must see its caller, so it is gone to and not called.
extern "C" __attribute__((naked, visibility("default"))) void *dlopen(const char *, int) noexcept {
    asm("endbr64\n"
        "push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "sub $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "mov 24(%rsp), %rdx\n"
        "call sd_way_to_dlopen\n"
        "add $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmp *%rax\n");
}
