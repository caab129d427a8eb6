// Steps by other doors: system calls made by number, standard streams that are sockets, and calls that make
// other descriptors.
#include "tests/differential/actor.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdio_ext.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace sd::differential {

namespace {

// The number that the call got is the lowest free one, whatever lies in wait for a next connection.
void make_and_close(int kind, Observation &o) {
    const auto gone = [&](int fd) {
        o.result(fd);
        if (fd >= 0) {
            o.result(close(fd));
        }
    };
    const auto stream_gone = [&](FILE *stream) {
        o.result(stream == nullptr ? -1 : fileno(stream));
        if (stream != nullptr) {
            o.result(fclose(stream));
        }
    };
    char name[] = "/tmp/sd-step-XXXXXX", longer[] = "/tmp/sd-step-XXXXXX.x";
    int ends[2];
    sigset_t none;
    sigemptyset(&none);
    switch (kind) {
    case 0:
        return gone(open("/dev/null", O_RDONLY));
    case 1:
        return gone(openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC));
    case 2:
        return gone(creat("/dev/null", 0600));
    case 3:
    case 4:
        o.result(kind == 3 ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        gone(ends[1]);
        return gone(ends[0]);
    case 5:
        return gone(eventfd(0, EFD_CLOEXEC));
    case 6:
        return gone(signalfd(-1, &none, 0));
    case 7:
        return gone(timerfd_create(CLOCK_MONOTONIC, 0));
    case 8:
        return gone(inotify_init1(0));
    case 9:
        return gone(memfd_create("step", 0));
    case 10:
        return gone(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    case 11: {
        DIR *directory = opendir("/");
        o.result(directory == nullptr ? -1 : dirfd(directory));
        return o.result(directory == nullptr ? -1 : closedir(directory));
    }
    case 12:
        gone(mkstemp(name));
        unlink(name);
        return;
    case 13:
        gone(mkostemps(longer, 2, O_CLOEXEC));
        unlink(longer);
        return;
    case 14:
        return stream_gone(tmpfile());
    case 15:
        return stream_gone(fopen("/dev/null", "r"));
    case 16: {
        FILE *stream = fopen("/dev/null", "r");
        return stream_gone(freopen("/dev/zero", "r", stream));
    }
    case 17:
        return gone(posix_openpt(O_RDWR | O_NOCTTY));
    case 18:
        o.result(openpty(ends, ends + 1, nullptr, nullptr, nullptr));
        gone(ends[0]);
        return gone(ends[1]);
    case 19:
        return gone(epoll_create(1));
    case 20:
        return gone(socket(AF_UNIX, SOCK_DGRAM, 0));
    case 21:
        return gone(socket(AF_INET, SOCK_STREAM, 0));
    case 22:
        return gone(static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY)));
    default:
        return gone(static_cast<int>(syscall(SYS_eventfd2, 0, 0)));
    }
}

void raw(int fd, int kind, Observation &o) {
    switch (kind) {
    case 0:
        return o.result(syscall(SYS_close, fd));
    case 1:
        return o.made(static_cast<int>(syscall(SYS_dup, fd)));
    case 2:
        return o.result(syscall(SYS_fcntl, fd, F_GETFL));
    case 3: {
        pollfd entry{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
        o.result(syscall(SYS_poll, &entry, 1, 0));
        o.say(" %x", static_cast<unsigned>(entry.revents));
        return;
    }
    case 4: {
        sockaddr_storage name{};
        socklen_t length = sizeof name;
        o.result(syscall(SYS_getsockname, fd, &name, &length));
        return say_name(o, name, length);
    }
    case 5: {
        int value = 0;
        socklen_t length = sizeof value;
        o.result(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &value, &length));
        o.say(" %d", value);
        return;
    }
    case 6: {
        int value = 0;
        o.result(syscall(SYS_ioctl, fd, FIONREAD, &value));
        o.say(" %d", value);
        return;
    }
    case 7: {
        const int set = static_cast<int>(syscall(SYS_epoll_create1, 0));
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT;
        o.result(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
        o.result(syscall(SYS_epoll_wait, set, &event, 1, 0));
        o.result(syscall(SYS_close, set));
        return;
    }
    default:
        return o.made(static_cast<int>(syscall(SYS_dup3, fd, 60 + kind, O_CLOEXEC)));
    }
}

// The socket takes the place of standard output or input for the moment.
void standard(int fd, int kind, Observation &o) {
    const int number = kind < 4 ? STDOUT_FILENO : STDIN_FILENO;
    if (kind >= 4) {
        pollfd entry{fd, POLLIN, 0};
        if (poll(&entry, 1, 0) != 1) {
            o.say("nothing there");
            return;
        }
    }
    const int saved = fcntl(number, F_DUPFD_CLOEXEC, 200);
    if (dup2(fd, number) < 0) {
        o.result(-1);
        close(saved);
        return;
    }
    char word[32] = "";
    switch (kind) {
    case 0:
        o.result(printf("%s %d", "printf", 12));
        break;
    case 1:
        o.result(puts("puts") < 0 ? -1 : 0);
        break;
    case 2:
        o.result(putchar('c'));
        break;
    case 3:
        o.result(static_cast<long>(fwrite("fwrite", 1, 6, stdout)));
        break;
    default:
        setvbuf(stdin, nullptr, _IONBF, 0);
        errno = 0; // the end of the data sets none
        o.result(kind == 4 ? getchar() : kind == 5 ? static_cast<long>(fread(word, 1, 1, stdin)) : -2);
        o.say(" %s error %d end %d", word, ferror(stdin) != 0, feof(stdin) != 0);
        clearerr(stdin);
    }
    if (number == STDOUT_FILENO) {
        o.result(fflush(stdout));
        __fpurge(stdout);
        clearerr(stdout);
    }
    o.result(dup2(saved, number));
    close(saved);
}

} // namespace

bool perform_other(Op op, int, Arguments a, Observation &o) {
    switch (op) {
    case Op::make:
        make_and_close(a[0], o);
        return true;
    case Op::raw:
        raw(a[0], a[1], o);
        return true;
    case Op::standard:
        standard(a[0], a[1], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
