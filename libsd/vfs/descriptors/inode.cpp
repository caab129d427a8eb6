#include "libsd/vfs/descriptors/inode.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include <sys/stat.h>

namespace sd {

namespace {

constexpr size_t kToldInodes = 512;
/// A kernel socket's number, and the one that is told instead.
struct ToldInode {
    std::atomic<uint64_t> kernels, told; ///< 0: none
};
constinit ToldInode told_inodes[kToldInodes];
constinit std::atomic<bool> any_told{false};

ToldInode &place_of(uint64_t kernels) noexcept { return told_inodes[kernels % kToldInodes]; }

} // namespace

uint64_t inode_of(File &f) noexcept {
    if (f.real_socket || (f.kind != FileKind::fresh && f.kind != FileKind::stream))
        return 0;
    if (f.kind == FileKind::fresh)
        f.inode_told = true;
    else if (const LinkMap *link = f.link; link && !f.inode_told)
        return connection_inode(link->id, f.slot, f.side);
    return (reinterpret_cast<uintptr_t>(&f) >> 6 & 0x7fff'ffff) | 0x8000'0000;
}

// A reader takes what is told only if the kernel's number stood there before and after: who writes takes it
// away first.
void note_told_inode(int fd, uint64_t told) noexcept {
    struct stat status {};
    if (told == 0 || sys::call(SYS_fstat, fd, sys::arg(&status)) < 0)
        return;
    ToldInode &place = place_of(status.st_ino);
    place.kernels.store(0, std::memory_order_seq_cst);
    place.told.store(told, std::memory_order_seq_cst);
    place.kernels.store(status.st_ino, std::memory_order_release);
    any_told.store(true, std::memory_order_release);
}

uint64_t inode_told_for(uint64_t kernels) noexcept {
    if (!any_told.load(std::memory_order_acquire)) [[likely]]
        return 0;
    const ToldInode &place = place_of(kernels);
    if (place.kernels.load(std::memory_order_acquire) != kernels)
        return 0;
    const uint64_t told = place.told.load(std::memory_order_seq_cst);
    return place.kernels.load(std::memory_order_seq_cst) == kernels ? told : 0;
}

} // namespace sd
