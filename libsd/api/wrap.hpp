// What the interposed functions have in common.
#pragma once
#include "libsd/api/real.hpp"
#include "libsd/api/syscalls/raw_syscall.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/cpu/copy.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/vfs.hpp"
#include <pthread.h>

/// An interposed function: the name and type of libc's own, visible to the program.
#define SD_EXPORT extern "C" __attribute__((visibility("default")))

/// A second name for a function defined in the same file.
#define SD_ALIAS(name, of) SD_EXPORT decltype(::of) name __attribute__((alias(#of)))

extern "C" {
/// Ends the program as a failed _FORTIFY_SOURCE check does.
[[noreturn]] void __chk_fail() noexcept;
}

namespace sd {

/// read() and write() look at the whole range before they cut it; user memory ends here.
inline bool impossible_range(const void *p, size_t n) noexcept {
    uintptr_t end;
    return n > kMaxTransfer &&
           (__builtin_add_overflow(reinterpret_cast<uintptr_t>(p), n, &end) || end > cpu::kUserMemoryEnd);
}

/// libc's way of a vfs result: the value, or -1 with errno set. errno stays as it was on success.
template <class T = int> inline T answer(long r) noexcept { return static_cast<T>(with_errno(r)); }

/// The kernel has just given this descriptor out: what the table may still say about the number is stale.
inline int noted(int fd) noexcept {
    if (has_entry(fd)) [[unlikely]]
        forget_fd(fd);
    given_out(fd);
    return fd;
}

/// libc's own functions, for calls that have the kernel give out its lowest free number.
inline const Real &lowest() noexcept {
    make_room_below();
    return real;
}

inline bool failed(int r) noexcept { return r == -1; }
inline bool failed(const void *r) noexcept { return r == nullptr; }

/// What `call`, one of libc's functions, answers that has the kernel give out its lowest free number. When
/// the program has none left, descriptors of ours make room.
template <class Call> inline auto numbered(Call call) {
    make_room_below();
    const int before = errno;
    auto r = call();
    if (failed(r) && errno == EMFILE && vacated()) [[unlikely]] {
        errno = before;
        r = call();
    }
    return r;
}

// After a system call the branches of what follows are cold, and each jump is felt by a program that does
// nothing but open and close. So where nothing but the C library would come next, its few instructions are
// done here, in a straight line.

/// May open() and close() be system calls here? libc's are cancellation points, also in the middle of a close
/// that lingers; this matters to programs with threads, and where the only one cancelled itself, which glibc
/// counts as one of several.
inline bool plain_call() noexcept { return libc_is_next.load(std::memory_order_relaxed) && one_thread(); }

/// After a call that closed `fd` in the kernel.
template <class T> inline T freed(int fd, T result) noexcept {
    number_freed(fd);
    return result;
}

/// False until the library is up, and for good when it is switched off.
inline bool active() noexcept { return vfs::enabled(); }
/// Also in a process that runs in its parent's memory, where no sockets are ours: our own descriptors, and
/// what is executed, are the same there.
inline bool active_or_in_vfork() noexcept { return vfs::enabled() || vfs::in_vfork(); }

/// Some thread of this process was cancelled. From then on calls of ours that are cancellation points look,
/// as libc's do at their beginning; a call that sleeps is one anyway.
extern constinit std::atomic<bool> cancellation_asked;
inline void cancellation_point() noexcept {
    if (cancellation_asked.load(std::memory_order_relaxed) && libc_threads.testcancel) [[unlikely]]
        libc_threads.testcancel();
}
/// file_of() at the beginning of a cancellation point; where it is not ours, or has moved to the kernel,
/// libc's function is one.
inline File *called_on(int fd) noexcept {
    File *f = file_of(fd);
    if (!f)
        return f;
    cancellation_point();
    return still_ours(fd, f);
}

inline timespec from_ms(int ms) noexcept { return {ms / 1000, (ms % 1000) * 1'000'000L}; }

} // namespace sd
