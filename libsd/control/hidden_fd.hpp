// Descriptors of libsd's own: kept at high numbers, close-on-exec, and invisible to the program's close().
#pragma once
#include "libsd/control/sys.hpp"
#include <atomic>

namespace sd {

constexpr unsigned kMaxFd = 1u << 20; ///< descriptors from here on are never accelerated

/// Moves `fd` (any number, ownership passes) to a high number and hides it. New number, or -errno (fd
/// closed).
[[nodiscard]] long hide_fd(int fd) noexcept;
/// A hidden duplicate of `fd`, which stays as it is. Its number, or -errno.
[[nodiscard]] long hide_copy(int fd) noexcept;
/// Closes a hidden descriptor. Its number becomes free, unless the program was told that it has none left
/// while ours stood among its own: then it is reserved for the next hide_fd() or hide_copy().
void close_hidden(int fd) noexcept;
/// The number was reserved, and is the caller's from now on.
[[nodiscard]] bool give_up_reserved(int fd) noexcept;
/// A hidden descriptor that tells nobody anything while copies of it are open, for reserved numbers.
extern std::atomic<int> filler;
/// No number below this was ever hidden.
extern std::atomic<unsigned> hidden_from;
bool is_among_hidden(int fd) noexcept;
/// True when the number is libsd's own: the program's close(), dup2() and the like must not hit it. Any
/// thread.
inline bool is_hidden(int fd) noexcept {
    return static_cast<unsigned>(fd) >= hidden_from.load(std::memory_order_relaxed) && is_among_hidden(fd);
}
/// Hides a descriptor that already has a good number (inherited over exec).
void mark_hidden(int fd) noexcept;
/// The number is the program's from now on; the descriptor under it stays as it is.
void unhide(int fd) noexcept;
/// While one lives, descriptors can be made even where the program has used up its limit on open files: what
/// libsd needs for connections that exist must not depend on that. Costs two system calls when there are
/// numbers left. Any thread; they nest.
class SpareNumbers {
  public:
    SpareNumbers() noexcept;
    /// Quicker: whether there are numbers left is tried with a copy of `own`, one of ours that may be had
    /// twice for a moment.
    explicit SpareNumbers(int own) noexcept;
    ~SpareNumbers();
    SpareNumbers(const SpareNumbers &) = delete;
    SpareNumbers &operator=(const SpareNumbers &) = delete;

  private:
    void tried(long probe) noexcept;
    bool raised_ = false;
};
/// The program has used up its numbers: what is ours among them goes beyond its limit, which is raised for
/// that moment, if this process may do so. The lowest number that has become free, or -1. Only in a process
/// of one thread: another might be about to use an old number. `early`: it has some left, but the next would
/// not be the lowest that is free; only where the kernel's table stays small enough for fork.
[[nodiscard]] int give_way(bool early) noexcept;
/// No other thread could make or use a descriptor meanwhile.
bool single_threaded() noexcept;
/// In a forked child: threads that were inside a SpareNumbers do not exist there.
void spare_numbers_fork_child() noexcept;
/// The lowest hidden number from `fd` on; kMaxFd when there is none.
unsigned next_hidden(unsigned fd) noexcept;

} // namespace sd
