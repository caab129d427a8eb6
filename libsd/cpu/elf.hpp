// Programs of this processor, as ELF files say it, and what the dynamic linker does in them.
#pragma once
#include <elf.h>

namespace sd::cpu {

/// For messages to people.
constexpr char kName[] = "x86-64";
constexpr unsigned kMachine = EM_X86_64;
constexpr unsigned char kByteOrder = ELFDATA2LSB;
/// glibc's dynamic linker, by its own name for itself.
constexpr char kLinkerName[] = "ld-linux-x86-64.so.2";

/// Does a relocation of this type store the address of a symbol, and nothing else?
constexpr bool stores_address(unsigned long type) {
    return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64;
}

} // namespace sd::cpu
