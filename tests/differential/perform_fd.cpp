// Steps on descriptors as such: closing, duplicating, flags, and descriptors that are no sockets.
#include "tests/differential/actor.hpp"

#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace sd::differential {

namespace {

// 0 a pipe, 1 a pair of local sockets, 2 a file, 3 /dev/null, 4 an eventfd, 5 a datagram socket
void other_file(int kind, int step, Observation &o) {
    int ends[2] = {-1, -1};
    if (kind == 0 || kind == 1) {
        const int r =
            kind == 0 ? pipe2(ends, O_NONBLOCK) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends);
        o.made(r == 0 ? ends[0] : r);
        o.reply.second = ends[1];
        if (r == 0) {
            o.say(" %d", ends[1]);
        }
    } else if (kind == 2) {
        const int fd = memfd_create("step", 0);
        char bytes[4096];
        fill_pattern(bytes, sizeof bytes, step);
        if (write(fd, bytes, sizeof bytes) < 0 || lseek(fd, 0, SEEK_SET) < 0) {
            o.say("cannot fill the file ");
        }
        o.made(fd);
    } else if (kind == 3) {
        o.made(open("/dev/null", O_RDWR));
    } else if (kind == 4) {
        o.made(eventfd(1, EFD_NONBLOCK));
    } else {
        o.made(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    }
}

// What the kernel says about the file behind a number.
void metadata(int fd, int kind, Observation &o) {
    char byte = 'b';
    iovec part{&byte, 1};
    struct stat about {};
    switch (kind) {
    case 0:
    case 6:
        o.result(kind == 0 ? fstat(fd, &about) : fstatat(fd, "", &about, AT_EMPTY_PATH));
        o.say(" mode %o links %lu size %ld", about.st_mode, static_cast<unsigned long>(about.st_nlink),
              static_cast<long>(about.st_size));
        return;
    case 1:
        return o.result(lseek(fd, 0, SEEK_CUR));
    case 2:
        return o.result(isatty(fd));
    case 3:
        return o.result(fsync(fd));
    case 4:
        return o.result(ftruncate(fd, 0));
    case 5: {
        void *p = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
        o.result(p == MAP_FAILED ? -1 : 0);
        if (p != MAP_FAILED) {
            munmap(p, 4096);
        }
        return;
    }
    case 7: {
        struct statx more {};
        o.result(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more));
        o.say(" mode %o size %lu", more.stx_mode, static_cast<unsigned long>(more.stx_size));
        return;
    }
    case 8:
        return o.result(isfdtype(fd, S_IFSOCK));
    case 9:
        return o.result(sockatmark(fd));
    case 10:
        return o.result(fdatasync(fd));
    case 11:
        return o.say("%d", posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL));
    case 12:
        return o.say("%d", posix_fallocate(fd, 0, 1));
    case 13:
        return o.result(readahead(fd, 0, 1));
    case 14:
        return o.result(sync_file_range(fd, 0, 1, 0));
    case 15:
        return o.result(fdopendir(fd) == nullptr ? -1 : 0);
    case 16:
        return o.result(preadv(fd, &part, 1, 0));
    case 17:
        return o.result(pwritev(fd, &part, 1, 0));
    case 18:
        return o.result(vmsplice(fd, &part, 1, SPLICE_F_NONBLOCK));
    case 19:
        return o.result(tee(fd, fd, 1, SPLICE_F_NONBLOCK));
    case 20:
        return o.result(copy_file_range(fd, nullptr, fd, nullptr, 1, 0));
    case 21:
        return o.result(sendfile(fd, fd, nullptr, 1));
    case 22:
        return o.result(splice(fd, nullptr, fd, nullptr, 1, SPLICE_F_NONBLOCK));
    default: {
        char name[64];
        return o.say("%d", ttyname_r(fd, name, sizeof name));
    }
    }
}

} // namespace

bool perform_fd(Op op, int step, Arguments a, Observation &o) {
    const auto spared = [](int fd) { return fd > kLastProgramFd ? kLastProgramFd : fd; };
    switch (op) {
    case Op::close:
        o.result(close(a[0]));
        return true;
    case Op::close_range:
        o.result(a[0] < 3 ? 0
                          : close_range(static_cast<unsigned>(a[0]), static_cast<unsigned>(spared(a[1])), a[2]));
        return true;
    case Op::dup:
        o.made(dup(a[0]));
        return true;
    case Op::dup2:
        o.made(dup2(a[0], spared(a[1])));
        return true;
    case Op::dup3:
        o.made(dup3(a[0], spared(a[1]), a[2] != 0 ? O_CLOEXEC : 0));
        return true;
    case Op::fcntl_dup:
        o.made(fcntl(a[0], a[2] != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, a[1]));
        return true;
    case Op::getfl:
        o.result(fcntl(a[0], F_GETFL));
        return true;
    case Op::setfl:
        o.result(fcntl(a[0], F_SETFL, a[1]));
        return true;
    case Op::getfd:
        o.result(fcntl(a[0], F_GETFD));
        return true;
    case Op::setfd:
        o.result(fcntl(a[0], F_SETFD, a[1]));
        return true;
    case Op::open:
        other_file(a[0], step, o);
        return true;
    case Op::metadata:
        metadata(a[0], a[1], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
