// fstat and its kin: sockets have inode numbers of their own (vfs/descriptors/inode.hpp).
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/descriptors/inode.hpp"
#include <sys/stat.h>

using namespace sd;

namespace {

/// What the program is told instead of the kernel's number.
uint64_t told_inode(int fd, uint64_t kernels) noexcept {
    File *f = file_of(fd);
    const uint64_t own = f ? inode_of(*f) : 0;
    const uint64_t told = own ? own : inode_told_for(kernels);
    return told ? told : kernels;
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
    if (r == 0 && S_ISSOCK(s->st_mode)) [[unlikely]]
        s->st_ino = told_inode(fd, s->st_ino);
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
    if (r == 0 && names_descriptor(path, flags) && S_ISSOCK(s->stx_mode))
        s->stx_ino = told_inode(dir, s->stx_ino);
    return r;
}
