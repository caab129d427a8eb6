// What tests that execute a program step by step tell from an instruction's bytes.
#pragma once

#include <cstddef>

namespace sdtest {

/// What makes an instruction dear (other cores or the kernel take part in it), or nullptr.
inline const char *dear_instruction(const unsigned char *code) {
    bool locked = false;
    size_t at = 0;
    for (;; ++at) { // prefixes
        const unsigned char c = code[at];
        if (c == 0xf0)
            locked = true;
        else if (c != 0x66 && c != 0x67 && c != 0xf2 && c != 0xf3 && c != 0x2e && c != 0x36 && c != 0x3e &&
                 c != 0x26 && c != 0x64 && c != 0x65)
            break;
    }
    if ((code[at] & 0xf0) == 0x40)
        ++at; // REX
    if (locked)
        return "lock prefix";
    const unsigned char op = code[at], next = code[at + 1];
    if ((op == 0x86 || op == 0x87) && next >> 6 != 3)
        return "xchg with memory";
    if (op == 0x0f && (next == 0x05 || next == 0x34))
        return "system call";
    if (op == 0xcd)
        return "software interrupt";
    if (op == 0x0f && next == 0xae && code[at + 2] >= 0xe8)
        return "fence";
    if (op == 0x0f && next == 0xa2)
        return "cpuid";
    return nullptr;
}

/// lfence: nobody else takes part in it, and looking for what comes with the token in hand is full of them.
inline bool only_orders_loads(const unsigned char *code) {
    return code[0] == 0x0f && code[1] == 0xae && (code[2] & 0xf8) == 0xe8;
}

inline bool enters_kernel(const unsigned char *code) { return code[0] == 0x0f && code[1] == 0x05; }

} // namespace sdtest
