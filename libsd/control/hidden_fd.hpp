// Descriptors of libsd's own: kept at high numbers, close-on-exec, and invisible to the program's close().
#pragma once
#include "libsd/control/sys.hpp"
#include <atomic>

namespace sd {

constexpr unsigned kMaxFd = 1u << 20; ///< descriptors from here on are never accelerated

/// Moves `fd` (any number, ownership passes) to a high number and hides it. New number, or -errno (fd closed).
long hide_fd(int fd) noexcept;
/// Closes a hidden descriptor.
void close_hidden(int fd) noexcept;
/// True when the number is libsd's own: the program's close(), dup2() and the like must not hit it. Any thread.
bool is_hidden(int fd) noexcept;
/// Moves a hidden descriptor out of the way of dup2(x, fd); every owner is told through `owner_moved`.
extern void (*hidden_moved)(int from, int to) noexcept;
/// Hides a descriptor that already has a good number (inherited over exec).
void mark_hidden(int fd) noexcept;
/// The number is the program's from now on; the descriptor under it stays as it is.
void unhide(int fd) noexcept;
/// The lowest hidden number from `fd` on; kMaxFd when there is none.
unsigned next_hidden(unsigned fd) noexcept;

} // namespace sd
