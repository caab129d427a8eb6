// A step in which several processes block in accept on one listener, while ordinary clients come.
#include "tests/differential/actor.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::differential {

namespace {

constexpr int kAcceptors = 3;

struct Count {
    std::atomic<int> served, errors, last_error;
};

/// The system call itself: these clients are nobody's but the kernel's, whoever makes them.
long bare(long number, long a, long b, long c, long d = 0, long e = 0) {
    long result;
    register long fourth asm("r10") = d;
    register long fifth asm("r8") = e;
    register long sixth asm("r9") = 0;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                 : "rcx", "r11", "memory");
    return result;
}

/// Says `what` to whoever accepts, and waits for the end. False: that was not the answer.
bool call(const sockaddr_storage &where, socklen_t length, char what) {
    const auto fd = static_cast<int>(bare(SYS_socket, where.ss_family, SOCK_STREAM, 0));
    bool right = bare(SYS_connect, fd, reinterpret_cast<long>(&where), length) == 0 &&
                 bare(SYS_write, fd, reinterpret_cast<long>(&what), 1) == 1;
    pollfd p{fd, POLLIN, 0};
    char answer = 0;
    right = right && bare(SYS_poll, reinterpret_cast<long>(&p), 1, 2000) == 1 &&
            bare(SYS_read, fd, reinterpret_cast<long>(&answer), 1) == 1 && answer == what;
    bare(SYS_close, fd, 0, 0);
    return right;
}

[[noreturn]] void serve_crowd(int listener, Count &count) {
    for (char what = 0; what != 'q';) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            ++count.errors;
            count.last_error = errno;
            if (errno == EAGAIN) {
                continue;
            }
            break;
        }
        if (read(fd, &what, 1) == 1 && write(fd, &what, 1) == 1) {
            ++count.served;
        }
        close(fd);
    }
    _exit(0);
}

void crowd(int listener, int clients, Observation &o) {
    sockaddr_storage where{};
    socklen_t length = sizeof where;
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
        getsockname(listener, reinterpret_cast<sockaddr *>(&where), &length) != 0) {
        o.say("no listener");
        return;
    }
    void *page = mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Count &count = *new (page) Count{};
    pid_t child[kAcceptors];
    for (pid_t &it : child) {
        it = fork();
        if (it == 0) {
            serve_crowd(listener, count);
        }
    }
    int right = 0;
    for (int i = 0; i < clients; ++i) {
        right += call(where, length, 'x');
    }
    for (int i = 0; i < kAcceptors; ++i) {
        right += call(where, length, 'q');
    }
    for (const pid_t it : child) {
        if (right != clients + kAcceptors) {
            kill(it, SIGKILL);
        }
        waitpid(it, nullptr, 0);
    }
    o.say("%d answered, %d served, %d errors", right, count.served.load(), count.errors.load());
    if (count.errors != 0) {
        o.say(" (%s)", strerrorname_np(count.last_error));
    }
    munmap(page, sizeof(Count));
}

} // namespace

bool perform_crowd(Op op, int, Arguments a, Observation &o) {
    if (op != Op::crowd) {
        return false;
    }
    crowd(a[0], a[1], o);
    return true;
}

} // namespace sd::differential
