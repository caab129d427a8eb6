// close, dup and their relatives, and fcntl.
//
// The descriptor table follows the kernel: a number is taken out before the kernel closes it, so that whoever
// gets the number next finds no stale entry, and is entered after the kernel has handed it out.
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/vfs/streams/arrival.hpp"
#include "libsd/vfs/vfs.hpp"
#include <linux/close_range.h>

namespace sd {

void change_status(File &f, uint32_t mask, uint32_t bits) noexcept {
    std::atomic<uint32_t> &s = f.kind == FileKind::stream ? f.ofd->status : f.status;
    uint32_t old = s.load(std::memory_order_relaxed);
    while (!s.compare_exchange_weak(old, (old & ~mask) | (bits & mask), std::memory_order_relaxed)) {
    }
}

namespace {

/// As F_GETFL reports it, without the access mode.
uint32_t status_of(const File &f) noexcept {
    return (f.kind == FileKind::stream ? f.ofd->status : f.status).load(std::memory_order_relaxed);
}

} // namespace

/// The program wants something of a socket that only the kernel does, a signal for each arrival for one, so
/// the socket is the kernel's from now on. kPass: it is (or others share it, and it stays as it was).
long leave_to_kernel(int fd, File &f, Cause why) noexcept {
    if (f.kind == FileKind::stream) {
        if (become_kernel(f, why) < 0)
            (void)materialise(fd, f); // or it stays as it was
    } else if (f.kind == FileKind::listener) {
        count_fallback(why, nullptr);
        unlist(*f.listener);
    } else if (f.kind == FileKind::fresh) {
        f.unconnected.refuse_cause = static_cast<uint8_t>(why);
        if (long r = materialise(fd, f); r < 0)
            return r;
    }
    return vfs::kPass;
}

ReferencedFile::ReferencedFile(int fd, bool wanted) noexcept {
    while (wanted) {
        File *f = file_of(fd);
        if (!f)
            return;
        if (!take_reference(*f))
            continue;
        if (file_of(fd) == f) {
            file_ = f;
            return;
        }
        release_file(f);
    }
}

namespace {

/// What F_SETFL can change on a socket.
constexpr uint32_t kSettable = O_APPEND | O_NONBLOCK | O_ASYNC | O_NOATIME;
constexpr int kDupfdQuery = 1024 + 3; ///< F_DUPFD_QUERY, newer than the headers

/// Enters a number that the kernel has just made a copy of one of `f`, which may be null.
long enter(long fd, File *f) noexcept {
    if (fd >= static_cast<long>(kMaxFd) && f) {
        sys::close(static_cast<int>(fd)); // beyond the table: as if the limit was there
        fd = -EMFILE;
    }
    if (fd >= 0) {
        if (f)
            install_file(static_cast<int>(fd), f);
        else
            forget_fd(static_cast<int>(fd));
    }
    return fd;
}

/// Moves a descriptor of ours away from a number the program wants.
long clear_number(int fd) noexcept {
    if (give_up_reserved(fd)) {
        unhide(fd);
        return 0;
    }
    long moved = hide_copy(fd);
    if (moved < 0)
        return moved;
    if (sys::fcntl(fd, F_GETFD) == 0)
        sys::fcntl(static_cast<int>(moved), F_SETFD, 0); // sdrun's channel is for programs to come, too
    upward.hidden_moved(fd, static_cast<int>(moved));
    unhide(fd); // its old number stays open until dup3 replaces it, so that nobody else gets it
    return 0;
}

long set_flags(int fd, File &f, long arg) noexcept {
    if ((arg & O_ASYNC) && f.kind != FileKind::epoll && !(status_of(f) & O_ASYNC)) {
        if (long r = leave_to_kernel(fd, f, Cause::signals); r != vfs::kPass || file_of(fd) != &f)
            return r;
    }
    if (!is_placeholder(f) && f.kind != FileKind::stream) {
        long r = sys::fcntl(fd, F_SETFL, arg);
        if (r >= 0)
            f.status.store(static_cast<uint32_t>(arg) & kSettable, std::memory_order_relaxed);
        return r;
    }
    if (arg & O_DIRECT)
        return -EINVAL;
    change_status(f, kSettable, static_cast<uint32_t>(arg));
    return 0;
}

} // namespace

namespace vfs {

SD_FORK_CODE long close(int fd) noexcept {
    if (is_hidden(fd))
        return -EBADF;
    CleanupStack::drop_abandoned();
    File *f = take_fd(fd);
    if (!f)
        return kPass;
    keep_for_waiters(*f, fd);
    if (f->kind == FileKind::stream && has_paths(*f->ofd)) [[unlikely]] {
        f->stream.closing_fd = fd; // nobody may use the number any more when the kernel gives it out again
        release_file(f);
        const long closed = sys::close(fd);
        number_freed(fd);
        return closed;
    }
    const bool lingers = may_linger(*f);
    const bool keep = !lingers && can_cache(fd, *f);
    long r = keep ? 0 : sys::close(fd);
    if (!keep)
        number_freed(fd);
    if (may_be_joined(*f)) [[unlikely]]
        closed_unjoined(*f);
    if (lingers)
        linger_and_release(*f);
    else
        release_file(f);
    if (keep)
        cache_placeholder(fd);
    return r;
}

long dup(int fd, int min, bool cloexec) noexcept {
    if (is_hidden(fd))
        return -EBADF;
    const ReferencedFile copied(fd);
    make_room_below();
    long r = sys::fcntl(fd, cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, min);
    if (r == -EMFILE && vacated())
        r = sys::fcntl(fd, cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, min);
    given_out(r);
    return enter(r, copied.file());
}

long dup_to(int from, int to, int flags, bool allow_equal) noexcept {
    if (flags & ~O_CLOEXEC)
        return -EINVAL;
    if (from == to && !allow_equal)
        return -EINVAL;
    if (is_hidden(from))
        return -EBADF;
    if (from == to) {
        long r = sys::fcntl(from, F_GETFD);
        return r < 0 ? r : to;
    }
    if (is_hidden(to)) {
        if (long r = sys::fcntl(from, F_GETFD); r < 0)
            return r;
        if (long r = clear_number(to); r < 0 && !(r == -EMFILE && vacated()))
            return r;
    }
    // A placeholder cached under that number is given up, or it would be closed under the new owner later.
    if (has_entry(to)) {
        CleanupStack::drop_abandoned(); // as in close()
        // Else another thread might close it, and nobody what is kept for it
        const ReferencedFile replaced(to);
        if (replaced.file())
            keep_for_waiters(*replaced.file(), to);
    }
    const ReferencedFile copied(from);
    if (copied.file() && static_cast<unsigned>(to) >= kMaxFd)
        return -EBADF;
    return enter(sys::dup3(from, to, flags), copied.file());
}

long close_range(unsigned first, unsigned last, unsigned flags) noexcept {
    if ((flags & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)) || first > last)
        return -EINVAL;
    const unsigned mark = flags & CLOSE_RANGE_CLOEXEC;
    // Sockets first, by number: their last descriptor ends the connection. A kernel without the call is found
    // out before anything is closed.
    if (long r = sys::call(SYS_close_range, kMaxFd * 4, kMaxFd * 4, static_cast<long>(flags)); r < 0)
        return r;
    const uint32_t high = mark ? 0 : fd_high.load(std::memory_order_acquire);
    for (unsigned fd = first; fd < high && fd <= last; ++fd)
        if (fd_table[fd].load(std::memory_order_relaxed) && !is_hidden(static_cast<int>(fd)))
            close(static_cast<int>(fd));
    // What is cached is given up: its numbers are free, so no flag of theirs is the program's
    make_room_below();
    // The rest in one go each, around our own descriptors: sdrun's channel stays open in programs to come.
    for (unsigned from = first;;) {
        unsigned mine = from < kMaxFd ? next_hidden(from) : kMaxFd;
        bool end = mine >= kMaxFd || mine > last;
        if (end || mine > from)
            if (long r = sys::call(SYS_close_range, from, end ? last : mine - 1, mark); r < 0)
                return r;
        if (end || mine == last)
            break;
        from = mine + 1;
    }
    if (mark)
        note_cloexec_range(first, last);
    else if (first < kMaxFd)
        number_freed(static_cast<int>(first));
    return 0;
}

long fcntl(int fd, int cmd, long arg) noexcept {
    if (is_hidden(fd))
        return -EBADF;
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    const bool kept_here = is_placeholder(*f) || f->kind == FileKind::stream;
    switch (cmd) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        return dup(fd, static_cast<int>(arg), cmd == F_DUPFD_CLOEXEC);
    case F_SETFD:
        note_cloexec(fd, arg & FD_CLOEXEC);
        return kPass;
    case F_GETFL:
        return kept_here ? static_cast<long>(O_RDWR | status_of(*f)) : kPass;
    case F_SETFL:
        return set_flags(fd, *f, arg);
    case kDupfdQuery:
        // Placeholders are copies of one kernel file whatever they stand for.
        if (is_hidden(static_cast<int>(arg)))
            return -EBADF;
        if (File *other = file_of(static_cast<int>(arg)); other || is_placeholder(*f))
            return other == f;
        return kPass;
    case F_SETOWN:
    case F_GETOWN:
    case F_SETOWN_EX:
    case F_GETOWN_EX:
    case F_SETSIG:
    case F_GETSIG: {
        // An owner gets SIGURG even if he has not asked for SIGIO.
        if ((cmd == F_SETOWN || cmd == F_SETOWN_EX) && arg != 0)
            return leave_to_kernel(fd, *f, Cause::signals);
        // The kernel checks and keeps these, in a file of this socket's own.
        if (!is_placeholder(*f) && f->kind != FileKind::stream)
            return kPass;
        if (long r = materialise(fd, *f); r < 0)
            return r;
        return kPass;
    }
    default:
        return kPass;
    }
}

} // namespace vfs

} // namespace sd
