// Processes that run in their parent's memory until they execute something: vfork, and clone with CLONE_VM
// and CLONE_VFORK.
//
// What such a child does to descriptors must not change the parent's table. A parent that never had a
// descriptor of ours, and has one thread, can share its memory all the same: no socket of the child becomes
// ours, and what it leaves in the library's own variables is undone.
#pragma once
#include <cstdint>

namespace sd {

/// From the constructor: where the variables are.
void init_vfork() noexcept;

/// What the parent has back afterwards. The mask is for the child to restore first of all, and has to be at
/// the beginning.
struct VforkMemory {
    uint64_t mask;
};
/// Before the child is made; every signal is blocked from then on. nullptr: it has to get a copy of the
/// memory.
VforkMemory *vfork_begin() noexcept;
/// In the parent, once the memory is its own again.
void vfork_end(VforkMemory *memory) noexcept;
/// Another process runs in this memory from now on, for good: no vfork shares it any more.
void memory_is_shared() noexcept;

} // namespace sd
