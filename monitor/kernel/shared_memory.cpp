// memfds: making them, deciding whether one from a client can be mapped safely, and looking at them without
// filling holes.
#include "monitor/kernel/shared_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <system_error>

namespace sd::monitor {

namespace {

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

} // namespace

FileId file_id(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        fail("fstat");
    }
    return {st.st_dev, st.st_ino};
}

Mapping::Mapping(int fd, size_t bytes) : bytes_(bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        fail("mmap");
    }
    base_ = static_cast<uint8_t *>(p);
}

Mapping &Mapping::operator=(Mapping &&other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (base_ != nullptr) {
        munmap(base_, bytes_);
    }
}

UniqueFd make_memfd(const char *name, size_t bytes) {
    UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) {
        fail("memfd_create");
    }
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        fail("ftruncate");
    }
    return fd;
}

void seal(int fd, int seals) {
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        fail("F_ADD_SEALS");
    }
}

bool safe_to_map(int fd, size_t bytes) {
    struct stat st;
    struct statfs fs;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           st.st_size >= 0 && static_cast<size_t>(st.st_size) >= bytes && fstatfs(fd, &fs) == 0 &&
           fs.f_type == TMPFS_MAGIC;
}

DataExtents::DataExtents(int fd, size_t from, size_t to) {
    while (from < to) {
        const off_t data = lseek(fd, static_cast<off_t>(from), SEEK_DATA);
        if (data < 0 || static_cast<size_t>(data) >= to) {
            return;
        }
        const off_t hole = lseek(fd, data, SEEK_HOLE);
        if (hole <= data) {
            return;
        }
        ranges_.push_back({static_cast<size_t>(data), std::min(static_cast<size_t>(hole), to)});
        from = static_cast<size_t>(hole);
    }
}

bool DataExtents::contains(size_t from, size_t bytes) const {
    auto it = std::upper_bound(ranges_.begin(), ranges_.end(), from,
                               [](size_t value, const Range &range) { return value < range.to; });
    return it != ranges_.end() && it->from <= from && from + bytes <= it->to;
}

size_t next_data(int fd, size_t from, size_t to) {
    if (from >= to) {
        return to;
    }
    const off_t found = lseek(fd, static_cast<off_t>(from), SEEK_DATA);
    return found < 0 || static_cast<size_t>(found) >= to ? to : static_cast<size_t>(found);
}

} // namespace sd::monitor
