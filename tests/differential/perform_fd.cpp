// Steps on descriptors as such: closing, duplicating, flags, and descriptors that are no sockets.
#include "tests/differential/actor.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

void metadata(int fd, int kind, Observation &o) {
    if (kind == 0) {
        struct stat about {};
        o.result(fstat(fd, &about));
        o.say(" mode %o links %lu size %ld", about.st_mode, static_cast<unsigned long>(about.st_nlink),
              static_cast<long>(about.st_size));
    } else if (kind == 1) {
        o.result(lseek(fd, 0, SEEK_CUR));
    } else if (kind == 2) {
        o.result(isatty(fd));
    } else if (kind == 3) {
        o.result(fsync(fd));
    } else if (kind == 4) {
        o.result(ftruncate(fd, 0));
    } else {
        void *p = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
        o.result(p == MAP_FAILED ? -1 : 0);
        if (p != MAP_FAILED) {
            munmap(p, 4096);
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
        o.result(a[0] < 3 ? 0 : close_range(static_cast<unsigned>(a[0]), static_cast<unsigned>(spared(a[1])), 0));
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
