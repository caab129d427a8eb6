/* Preloaded by scripts/test into compilers and model checkers: what they map for themselves is in large
 * pages, where the kernel gives these to who asks. setup.sh says why. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    void *mapped = (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
    if (mapped != MAP_FAILED && flags & MAP_ANONYMOUS) {
        const int before = errno;
        (void)madvise(mapped, size, MADV_HUGEPAGE); /* it may be refused: then pages are small */
        errno = before;
    }
    return mapped;
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset)
    __attribute__((alias("mmap")));
