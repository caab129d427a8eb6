// How this process gets at registered memory of any process: its own at once, another's through the file that
// lies there, and what is no file through the kernel.
#pragma once
#include "tests/fake_verbs/fabric.hpp"

namespace sd::fake_verbs {

/// At registration: a descriptor of the file that is mapped at [address, address + length), and where in it;
/// -1: it is no file's, or not in one piece, or nobody here has a descriptor of it.
int file_behind(uint64_t address, uint64_t length, uint64_t *offset) noexcept;

/// Copies `n` bytes between two pieces of registered memory, which the caller has checked, or from `local`
/// where there is no piece to read. False: the memory is not there any more.
bool copy_between(Fabric &f, uint32_t from_memory, uint64_t from, const uint8_t *local, uint32_t to_memory,
                  uint64_t to, uint32_t n) noexcept;

} // namespace sd::fake_verbs
