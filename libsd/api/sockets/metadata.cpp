// fstat and its kin. All placeholders of a process are one kernel object; programs that tell sockets apart by
// their inode must not see that.
#include "libsd/api/wrap.hpp"
#include <sys/stat.h>

using namespace sd;

namespace {

/// Distinct per open file description of this process, the same for its duplicates and across fork; 0: the
/// kernel's number is right.
ino_t own_inode(int fd) noexcept {
    const File *f = file_of(fd);
    if (!f || f->real_socket || (f->kind != FileKind::fresh && f->kind != FileKind::stream))
        return 0;
    return static_cast<ino_t>(reinterpret_cast<uintptr_t>(f) >> 6 & 0x7fff'ffff) | 0x8000'0000;
}

/// The library's own descriptors do not exist for the program.
bool refused(int fd) noexcept {
    file_of(fd); // a number that is only kept open for the next connection is closed for good by this
    if (!is_hidden(fd)) [[likely]]
        return false;
    errno = EBADF;
    return true;
}

template <class Stat> int corrected(int r, int fd, Stat *s) noexcept {
    if (r == 0) {
        if (ino_t inode = own_inode(fd)) [[unlikely]]
            s->st_ino = inode;
    }
    return r;
}

bool names_descriptor(const char *path, int flags) noexcept {
    return (flags & AT_EMPTY_PATH) && (!path || *path == '\0');
}

} // namespace

SD_EXPORT int fstat(int fd, struct stat *s) noexcept {
    return refused(fd) ? -1 : corrected(real.fstat(fd, s), fd, s);
}

SD_EXPORT int fstat64(int fd, struct stat64 *s) noexcept {
    return refused(fd) ? -1 : corrected(real.fstat64(fd, s), fd, s);
}

SD_EXPORT int __fxstat(int version, int fd, struct stat *s) noexcept {
    return refused(fd) ? -1 : corrected(real.__fxstat(version, fd, s), fd, s);
}

SD_EXPORT int __fxstat64(int version, int fd, struct stat64 *s) noexcept {
    return refused(fd) ? -1 : corrected(real.__fxstat64(version, fd, s), fd, s);
}

SD_EXPORT int fstatat(int dir, const char *path, struct stat *s, int flags) noexcept {
    if (names_descriptor(path, flags) && refused(dir))
        return -1;
    int r = real.fstatat(dir, path, s, flags);
    return r == 0 && names_descriptor(path, flags) ? corrected(r, dir, s) : r;
}

SD_EXPORT int fstatat64(int dir, const char *path, struct stat64 *s, int flags) noexcept {
    if (names_descriptor(path, flags) && refused(dir))
        return -1;
    int r = real.fstatat64(dir, path, s, flags);
    return r == 0 && names_descriptor(path, flags) ? corrected(r, dir, s) : r;
}

SD_EXPORT int statx(int dir, const char *path, int flags, unsigned mask, struct statx *s) noexcept {
    if (names_descriptor(path, flags) && refused(dir))
        return -1;
    int r = real.statx(dir, path, flags, mask, s);
    if (r == 0 && names_descriptor(path, flags)) {
        if (ino_t inode = own_inode(dir))
            s->stx_ino = inode;
    }
    return r;
}
