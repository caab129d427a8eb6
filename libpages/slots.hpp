// Who has which slot of the window. No locks: every function may be called by any thread, in a signal handler
// that interrupted another one, and in a forked child, where a slot that another thread was just taking stays
// taken.
//
// Each slot has a word that says what is in it, and is on at most one list. Only who changes the word from
// one state to the next puts the slot on a list, and who takes it from a list owns it. Lists are stacks; a
// count beside the topmost number keeps one that was taken and put back meanwhile from being mistaken.
#pragma once
#include "libpages/window.hpp"

namespace sd::pages {

/// A block of malloc: `length` bytes from the beginning of its slot.
struct Block {
    void *at = nullptr;
    size_t length = 0;
    bool fresh = false; ///< it is zero
};

/// Memory of the device for a block of that size; the slot's beginning is aligned to a power of two, at least
/// `alignment`. `at` is null: there is none.
Block take_block(size_t size, size_t alignment) noexcept;
/// The bytes of a block that begins there; 0: there is no block.
size_t block_length(const void *at) noexcept;
/// Gives a block back. Afterwards it is somebody else's. False: there is no block.
[[nodiscard]] bool release_block(void *at) noexcept;
/// Cuts a block to `length` bytes, whole pages, fewer than it has.
void shrink_block(void *at, size_t length) noexcept;

/// Unmaps the blocks that are kept for later.
void release_kept() noexcept;

/// Memory of the device for a mapping of the program's own, in whole pages; null: there is none.
void *take_mapping(size_t length) noexcept;
/// The kernel has unmapped this; parts of it may lie outside of the window, or in blocks.
void unmapped(const void *from, size_t length) noexcept;
/// The program has changed pages there in a way that a new owner of a block would notice.
void worn(const void *from, size_t length) noexcept;

} // namespace sd::pages
