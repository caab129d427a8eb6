// real.X must work before binding, as a plain system call, and be the C library's own function afterwards.
#include "libsd/api/real.hpp"

#include <catch2/catch.hpp>

#include <dlfcn.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

namespace {

/// A copy of the pointers as they stand before anything is bound.
const sd::Real before = sd::real;

} // namespace

TEST_CASE("unbound functions make the system call") {
    int ends[2];
    REQUIRE(before.socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);

    REQUIRE(before.send(ends[0], "abcdef", 6, MSG_NOSIGNAL) == 6);
    char got[8] = {};
    REQUIRE(before.recv(ends[1], got, 2, MSG_PEEK) == 2);
    REQUIRE(before.read(ends[1], got, sizeof got) == 6);
    REQUIRE(std::memcmp(got, "abcdef", 6) == 0);

    pollfd p = {ends[1], POLLIN, 0};
    timespec none = {0, 0};
    REQUIRE(before.ppoll(&p, 1, &none, nullptr) == 0);
    REQUIRE(before.write(ends[0], "x", 1) == 1);
    REQUIRE(before.poll(&p, 1, -1) == 1);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(ends[1], &readable);
    timespec second = {1, 0};
    REQUIRE(before.pselect(ends[1] + 1, &readable, nullptr, nullptr, &second, nullptr) == 1);
    REQUIRE(second.tv_sec == 1);
    int waiting = 0;
    REQUIRE(before.ioctl(ends[1], FIONREAD, &waiting) == 0);
    REQUIRE(waiting == 1);

    char byte = 0;
    iovec part = {&byte, 1};
    REQUIRE(before.preadv2(ends[1], &part, 1, -1, 0) == 1);
    REQUIRE(byte == 'x');

    REQUIRE((before.fcntl(ends[1], F_GETFL) & O_NONBLOCK) == 0);
    REQUIRE(before.fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    errno = 0;
    REQUIRE(before.read(ends[1], got, 1) == -1);
    REQUIRE(errno == EAGAIN);

    const int copy = static_cast<int>(before.syscall(SYS_dup, ends[0]));
    REQUIRE(copy > ends[1]);
    REQUIRE(before.close(copy) == 0);
    REQUIRE(before.close(ends[0]) == 0);
    REQUIRE(before.close(ends[1]) == 0);
    errno = 0;
    REQUIRE(before.close(ends[1]) == -1);
    REQUIRE(errno == EBADF);
}

TEST_CASE("unbound open and openat pass the mode on") {
    char dir[] = "/tmp/sd-real-XXXXXX";
    REQUIRE(::mkdtemp(dir) != nullptr);
    const int at = before.open(dir, O_RDONLY | O_DIRECTORY);
    REQUIRE(at >= 0);
    const int file = before.openat(at, "file", O_WRONLY | O_CREAT | O_EXCL, 0600);
    REQUIRE(file >= 0);
    REQUIRE(::faccessat(at, "file", R_OK | W_OK, 0) == 0);
    REQUIRE(before.close(file) == 0);
    REQUIRE(::unlinkat(at, "file", 0) == 0);
    REQUIRE(before.close(at) == 0);
    REQUIRE(::rmdir(dir) == 0);
}

TEST_CASE("signal masks: errno style and return style") {
    sigset_t now;
    REQUIRE(before.sigprocmask(SIG_BLOCK, nullptr, &now) == 0);
    REQUIRE(before.sigprocmask(12345, &now, nullptr) == -1);
    REQUIRE(errno == EINVAL);
    REQUIRE(before.pthread_sigmask(12345, &now, nullptr) == EINVAL);
}

TEST_CASE("a function that is more than a system call binds first") {
    FILE *file = before.tmpfile();
    REQUIRE(file != nullptr);
    REQUIRE(before.fileno(file) >= 0);
    REQUIRE(before.fclose(file) == 0);
    REQUIRE(sd::real.fclose != before.fclose);
}

TEST_CASE("binding finds what stands behind in the search order and keeps errno") {
    errno = 77;
    sd::bind_real_symbols();
    REQUIRE(errno == 77);
#define SD_REAL_SYS(name, number) CHECK(reinterpret_cast<void *>(sd::real.name) == ::dlsym(RTLD_NEXT, #name));
#define SD_REAL_RAW(name) SD_REAL_SYS(name, 0)
#define SD_REAL_LIBC(name) SD_REAL_SYS(name, 0)
#include "libsd/api/real.def"
    int ends[2];
    REQUIRE(sd::real.pipe(ends) == 0);
    REQUIRE(sd::real.write(ends[1], "x", 1) == 1);
    REQUIRE(sd::real.close(ends[0]) == 0);
    REQUIRE(sd::real.close(ends[1]) == 0);
}
