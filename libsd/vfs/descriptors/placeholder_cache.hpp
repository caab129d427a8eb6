// Placeholders that the program has closed and the library caches for its next connection: a short
// connection then costs no system call for its number.
//
// The program must not notice, so:
//  - A number is cached, and given out again, only while every number below it is known to be in use: it is
//    the one the kernel would choose. What is known is one word, `numbers_in_use`: raised when the kernel
//    gives out its lowest free number, lowered whenever a number is freed. Numbers that libc frees inside
//    functions of its own are not noticed; the next socket may then get a higher number than the lowest,
//    never a wrong one. 0 to 2 are never cached.
//  - Whoever is about to have the kernel give out a number calls make_room_below() first, which really closes
//    what is cached, and so does whatever starts another program.
//  - A cached number has `cached_placeholder` in the table: file_of() then closes it for good, so that the
//    kernel answers EBADF. (Also one that a fork is changing just now, see unconnected.hpp: then file_of()
//    waits.)
//
// Everything here is lock-free: any thread, any signal handler. Who clears a number's bit owns the number.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// The number of a cached placeholder, made anew (the table has no entry yet); -1 when there is none that may
/// be used.
[[nodiscard]] long take_cached(bool cloexec) noexcept;
/// May the placeholder be cached when it is closed? Asked while `f` is alive.
bool can_cache(int fd, const File &f) noexcept;
/// Caches it. The table has no entry for it any more. Also for a number from take_cached() that was not
/// needed after all.
void cache_placeholder(int fd) noexcept;

/// Really closes everything cached.
void close_all_cached() noexcept;
extern std::atomic<uint32_t> cached_count;
inline void make_room_below() noexcept {
    if (cached_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
        close_all_cached();
}

/// After -EMFILE: true when descriptors of ours have made room for the program's, so that it should ask
/// again.
[[gnu::cold]] bool vacated() noexcept;

/// The kernel gave out `fd`: when the next number is one of ours, they make room, so that it is the
/// program's.
[[gnu::cold]] void come_to_ours() noexcept;
inline bool next_is_ours(long fd) noexcept {
    return static_cast<unsigned long>(fd) + 1 == hidden_from.load(std::memory_order_relaxed);
}
inline void given_out(long fd) noexcept {
    if (next_is_ours(fd)) [[unlikely]]
        come_to_ours();
}

/// Low half: numbers below are in use. High half: how often a number was freed. 0 until the first placeholder
/// is made.
extern std::atomic<uint64_t> numbers_in_use;
[[gnu::cold]] void lower_numbers_in_use(int fd) noexcept;
/// After the kernel has closed `fd` (and perhaps numbers above it), or has refused to.
inline void number_freed(int fd) noexcept {
    if (numbers_in_use.load(std::memory_order_relaxed) != 0) [[unlikely]]
        lower_numbers_in_use(fd);
}
/// The kernel gave out `fd` as its lowest free number; `before`: numbers_in_use just before that call.
void lowest_was(int fd, uint64_t before) noexcept;

/// What is known of the placeholder under `fd`: made by placeholder_fd() with or without FD_CLOEXEC, or
/// nothing.
enum class Origin : uint8_t { other, placeholder, placeholder_cloexec };
void note_origin(int fd, Origin o) noexcept;
/// The program set or cleared FD_CLOEXEC.
void note_cloexec(int fd, bool on) noexcept;
void note_cloexec_range(unsigned first, unsigned last) noexcept;
/// The kernel has given the number to somebody else although it was cached (a close past the library):
/// forgets it.
void forget_cached(int fd) noexcept;

} // namespace sd
