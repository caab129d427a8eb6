// memfds: making them, deciding whether one from a client can be mapped safely, and looking at them without
// filling holes.
#include "monitor/shared_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
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

std::optional<uint64_t> eventfd_id(int fd) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0) {
        return std::nullopt;
    }
    text[n] = '\0';
    if (strcmp(text, "anon_inode:[eventfd]") != 0) {
        return std::nullopt;
    }
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    UniqueFd info(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t got = info ? read(info.get(), text, sizeof text - 1) : -1;
    if (got <= 0) {
        return std::nullopt;
    }
    text[got] = '\0';
    const char *id = strstr(text, "eventfd-id:");
    return id == nullptr ? std::nullopt : std::optional<uint64_t>(strtoull(id + 11, nullptr, 10));
}

namespace {

/// A kernel AIO context whose only use is its completion signal: an iocb that names an eventfd has the
/// kernel add 1 to it, which, unlike write(2), cannot block on a counter that the client has filled and
/// whose O_NONBLOCK it has taken away.
class CompletionSignal {
  public:
    CompletionSignal() {
        file_ = UniqueFd(memfd_create("sd-aio", MFD_CLOEXEC));
        usable_ = file_ && syscall(SYS_io_setup, 4, &context_) == 0;
    }
    ~CompletionSignal() {
        if (usable_) {
            syscall(SYS_io_destroy, context_);
        }
    }
    bool signal(int eventfd) {
        if (!usable_) {
            return false;
        }
        char byte;
        iocb block{};
        block.aio_lio_opcode = IOCB_CMD_PREAD; // of an empty file: completes at once with 0
        block.aio_fildes = static_cast<uint32_t>(file_.get());
        block.aio_buf = reinterpret_cast<uintptr_t>(&byte);
        block.aio_nbytes = 1;
        block.aio_flags = IOCB_FLAG_RESFD;
        block.aio_resfd = static_cast<uint32_t>(eventfd);
        iocb *list[1] = {&block};
        if (syscall(SYS_io_submit, context_, 1, list) != 1) {
            return false;
        }
        io_event event;
        timespec none{};
        syscall(SYS_io_getevents, context_, 0, 1, &event, &none);
        return true;
    }

  private:
    UniqueFd file_;
    aio_context_t context_ = 0;
    bool usable_ = false;
};

} // namespace

void ring(const BellFd &bell) {
    static CompletionSignal completion;
    if (completion.signal(bell.fd.get())) {
        return;
    }
    // No AIO here (a seccomp filter, say): the check before the write leaves only a hostile client a window.
    fcntl(bell.fd.get(), F_SETFL, O_RDWR | O_NONBLOCK);
    pollfd p{bell.fd.get(), POLLOUT, 0};
    if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0) {
        const uint64_t one = 1;
        [[maybe_unused]] ssize_t n = write(bell.fd.get(), &one, sizeof one);
    }
}

} // namespace sd::monitor
