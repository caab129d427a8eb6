// The life of a descriptor: closing, duplicating, flags.
#include "libsd/api/sockets/stdio.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include <climits>
#include <cstdarg>
#include <linux/close_range.h>

using namespace sd;

// Variadic functions: one more word is read and passed on whether the caller gave it or not, as libc does.
#define SD_TAKE_WORD(word, last)                                                                             \
    va_list list;                                                                                            \
    va_start(list, last);                                                                                    \
    void *word = va_arg(list, void *);                                                                       \
    va_end(list)

namespace {

/// A listener that was received, and not used yet, is known from here on: its signals are for connections of
/// all kinds.
void asked_for_signals(int fd) noexcept {
    const int saved = errno;
    if (active())
        vfs::import_listener(fd);
    errno = saved;
}

/// close() of a number that has an entry, or of one of the library's own, or where it is not a plain system
/// call.
[[gnu::noinline]] int close_entry(int fd) {
    if (!called_on(fd)) {
        if (is_hidden(fd)) [[unlikely]]
            return answer(-EBADF);
        return freed(fd, real.close(fd));
    }
    long r = vfs::close(fd);
    check_standard(fd);
    return r == vfs::kPass ? freed(fd, real.close(fd)) : answer(r);
}

[[gnu::noinline, gnu::cold]] int closed(int fd, long r) noexcept { return freed(fd, answer(r)); }

/// dup() of such a number, or where something is to be done first.
[[gnu::noinline]] int dup_entry(int fd) noexcept {
    if (!file_of(fd))
        return is_hidden(fd) ? answer(-EBADF) : noted(numbered([&] { return real.dup(fd); }));
    long r = vfs::dup(fd, 0, false);
    check_standard(static_cast<int>(r));
    return r == vfs::kPass ? noted(real.dup(fd)) : answer(r);
}

[[gnu::noinline, gnu::cold]] int duplicated(int fd, long r) noexcept {
    return r == -EMFILE ? dup_entry(fd) : noted(answer(r));
}

} // namespace

SD_EXPORT int close(int fd) {
    if (has_entry(fd) || is_hidden(fd) || !plain_call()) [[unlikely]]
        return close_entry(fd);
    const long r = sys::call1(SYS_close, fd);
    if (r != 0 || numbers_in_use.load(std::memory_order_relaxed) != 0) [[unlikely]]
        return closed(fd, r);
    return 0;
}
SD_ALIAS(__close, close);

SD_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
    // With CLOSE_RANGE_UNSHARE the caller has a descriptor table of its own but shares ours with those it
    // parted from.
    if (active_or_in_vfork() && first <= last && (flags & ~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)) == 0) {
        long r = vfs::close_range(first, last, static_cast<unsigned>(flags));
        for (unsigned fd = first; fd <= last && fd < 3; ++fd)
            check_standard(static_cast<int>(fd));
        if (r != vfs::kPass)
            return answer(r);
    }
    return freed(static_cast<int>(first), real.close_range(first, last, flags));
}

SD_EXPORT void closefrom(int lowest) noexcept {
    unsigned first = lowest < 0 ? 0 : static_cast<unsigned>(lowest);
    if (active_or_in_vfork() && vfs::close_range(first, UINT_MAX, 0) != vfs::kPass)
        return;
    real.closefrom(lowest);
    number_freed(static_cast<int>(first));
}

SD_EXPORT int dup(int fd) noexcept {
    if (has_entry(fd) || is_hidden(fd) || cached_count.load(std::memory_order_relaxed) != 0 ||
        !libc_is_next.load(std::memory_order_relaxed)) [[unlikely]]
        return dup_entry(fd);
    const long r = sys::call1(SYS_dup, fd);
    if (r < 0 || r < fd_high.load(std::memory_order_relaxed) || next_is_ours(r)) [[unlikely]]
        return duplicated(fd, r);
    return static_cast<int>(r);
}

namespace {

bool concerns_us(int from, int to) noexcept {
    return file_of(from) || file_of(to) || is_hidden(from) || is_hidden(to);
}

} // namespace

SD_EXPORT int dup2(int from, int to) noexcept {
    if (!concerns_us(from, to)) [[likely]]
        return real.dup2(from, to);
    long r = vfs::dup_to(from, to, 0, true);
    check_standard(to);
    return r == vfs::kPass ? noted(real.dup2(from, to)) : answer(r);
}
SD_ALIAS(__dup2, dup2);

SD_EXPORT int dup3(int from, int to, int flags) noexcept {
    if (!concerns_us(from, to) || (flags & ~O_CLOEXEC)) [[likely]]
        return real.dup3(from, to, flags);
    long r = vfs::dup_to(from, to, flags, false);
    check_standard(to);
    return r == vfs::kPass ? noted(real.dup3(from, to, flags)) : answer(r);
}

SD_EXPORT int fcntl(int fd, int command, ...) {
    SD_TAKE_WORD(word, command);
    if (command == F_SETOWN || command == F_SETOWN_EX ||
        (command == F_SETFL && (reinterpret_cast<long>(word) & O_ASYNC))) [[unlikely]]
        asked_for_signals(fd);
    bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    if (file_of(fd)) [[unlikely]] {
        auto value = reinterpret_cast<long>(word);
        long r = duplicates ? vfs::dup(fd, static_cast<int>(value), command == F_DUPFD_CLOEXEC)
                            : vfs::fcntl(fd, command, value);
        if (duplicates)
            check_standard(static_cast<int>(r));
        if (r != vfs::kPass)
            return answer(r);
    } else if (is_hidden(fd)) [[unlikely]] {
        return answer(-EBADF);
    }
    if (duplicates)
        return noted(numbered([&] { return real.fcntl(fd, command, word); }));
    return real.fcntl(fd, command, word);
}
SD_ALIAS(fcntl64, fcntl);
SD_ALIAS(__fcntl, fcntl);

SD_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    SD_TAKE_WORD(word, request);
    if (request == FIOASYNC) [[unlikely]]
        asked_for_signals(fd);
    if (file_of(fd)) [[unlikely]] {
        long r = vfs::ioctl(fd, request, word);
        if (r != vfs::kPass)
            return answer(r);
    } else if (is_hidden(fd) && !inside_operation()) [[unlikely]] {
        return answer(-EBADF); // within an operation of ours it is libibverbs, on the device
    }
    return real.ioctl(fd, request, word);
}

SD_EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags) noexcept {
    return noted(numbered([&] { return real.pidfd_getfd(pidfd, fd, flags); }));
}
