// A process that makes no call on its connection for a while, in many ways, and looks whether it can see
// that it was stopped meanwhile.
//
//   idle_holder PORT WAY FILE
//
// Connects to a server on 127.0.0.1 that sends back what comes, exchanges some messages, says "there PORT",
// and waits in the way named: `compute` and those like it until the first byte of FILE is not 0, `read` for
// a line on standard input, those with a time for 5 seconds. Then it exchanges more, and says "well".
// Anything that is not as if nothing had been is said instead, and the status is 1.
//
//   idle_holder trace PID: traces a process until standard input ends.
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "libsd/layout/forced_step.hpp"

namespace {

constexpr time_t kSeconds = 5;
volatile const char *go_on;

[[noreturn]] void wrong(const std::string &what) {
    printf("wrong: %s (errno %d)\n", what.c_str(), errno);
    exit(1);
}

void check(bool condition, const char *what) {
    if (!condition)
        wrong(what);
}

void exchange(int fd, unsigned n) {
    std::vector<char> sent(1 + n * n % 5000), got(sent.size());
    for (size_t i = 0; i < sent.size(); ++i)
        sent[i] = static_cast<char>(n + i);
    check(send(fd, sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()), "send");
    check(recv(fd, got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(got.size()), "recv");
    check(got == sent, "other bytes came back");
}

/// No call at all, and registers of all kinds full of what must not change.
[[gnu::noinline]] void compute() {
    double sums[16]{};
    long double one = 1.0L;
    unsigned long rounds = 0;
    while (!*go_on) {
        ++rounds;
        for (unsigned i = 0; i < 16; ++i)
            sums[i] += i;
        one = one * 1.5L / 1.5L;
        for (unsigned i = 0; i < 16; ++i)
            if (sums[i] != static_cast<double>(i) * static_cast<double>(rounds) || one != 1.0L)
                wrong("a register has changed");
    }
}

void *compute_in_thread(void *) {
    compute();
    return nullptr;
}

void read_line() {
    char line[16];
    check(read(0, line, sizeof line) > 0, "read() of a pipe");
}

void *read_in_thread(void *) {
    read_line();
    return nullptr;
}

void (*in_handler)() = nullptr;
void handler(int) { in_handler(); }

/// As a library that has been tampered with: what a tracer finds first is a function that never ends.
void tamper(const std::string &file) {
    constexpr size_t kPage = 4096, kBytes = 16 * kPage;
    const std::string path = file + ".d/libsd.so";
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0700);
    check(fd >= 0 && ftruncate(fd, kBytes) == 0, "the file");
    auto *const at = reinterpret_cast<char *>(0x10000000);
    check(mmap(at, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at, "mmap");
    char *const code = at + kPage;
    check(mmap(code, kPage, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_FIXED, fd, kPage) == code,
          "code");
    char *const data = code + kPage;
    check(mmap(data, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == data,
          "data");
    code[0] = static_cast<char>(0xeb), code[1] = static_cast<char>(0xfe); // jumps to itself
    sd::forced::Entry entry{{sd::forced::kMagic, ~sd::forced::kMagic},
                            sd::forced::kVersion,
                            sizeof(sd::forced::Call),
                            reinterpret_cast<void (*)()>(code),
                            reinterpret_cast<uint8_t *>(data + 60 * kPage),
                            reinterpret_cast<sd::forced::Call *>(data)};
    memcpy(at + 64, &entry, sizeof entry);
    // And some that point to nowhere, in front of it
    entry.call = reinterpret_cast<sd::forced::Call *>(0xffffffff81000000ull);
    memcpy(at, &entry, sizeof entry);
}

void wait_in(const std::string &way, const char *file) {
    const timespec some_time{kSeconds, 0};
    int pipe_ends[2];
    check(pipe(pipe_ends) == 0, "pipe");
    pollfd p{pipe_ends[0], POLLIN, 0};
    timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    bool is_timed = true;
    if (way == "nanosleep") {
        check(nanosleep(&some_time, nullptr) == 0, "nanosleep()");
    } else if (way == "until") {
        timespec end = before;
        end.tv_sec += kSeconds;
        check(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == 0, "clock_nanosleep()");
    } else if (way == "futex") {
        int word = 7;
        check(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &some_time, nullptr, 0) == -1 && errno == ETIMEDOUT,
              "futex()");
    } else if (way == "poll") {
        check(poll(&p, 1, kSeconds * 1000) == 0, "poll()");
    } else if (way == "select") {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pipe_ends[0], &set);
        timeval limit{kSeconds, 0};
        check(select(pipe_ends[0] + 1, &set, nullptr, nullptr, &limit) == 0, "select()");
    } else if (way == "epoll") {
        const int set = epoll_create1(0);
        epoll_event e{EPOLLIN, {}};
        check(epoll_ctl(set, EPOLL_CTL_ADD, pipe_ends[0], &e) == 0, "epoll_ctl()");
        check(epoll_wait(set, &e, 1, kSeconds * 1000) == 0, "epoll_wait()");
    } else if (way == "sigtimedwait") {
        sigset_t usr2;
        sigemptyset(&usr2);
        sigaddset(&usr2, SIGUSR2);
        sigprocmask(SIG_BLOCK, &usr2, nullptr);
        check(sigtimedwait(&usr2, nullptr, &some_time) == -1 && errno == EAGAIN, "sigtimedwait()");
    } else if (way == "child") {
        const pid_t child = fork();
        if (child == 0) {
            for (int fd = 3; fd < 64; ++fd)
                close(fd); // the connection is not shared
            nanosleep(&some_time, nullptr);
            _exit(7);
        }
        int status = 0;
        check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "waitpid()");
    } else {
        is_timed = false;
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    const int64_t ns = (after.tv_sec - before.tv_sec) * 1'000'000'000LL + after.tv_nsec - before.tv_nsec;
    check(!is_timed || ns >= kSeconds * 1'000'000'000LL, "it ended early");
    if (is_timed)
        return;
    if (way == "compute") {
        compute();
    } else if (way == "read") {
        read_line();
    } else if (way == "masked") {
        sigset_t all, now;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, nullptr);
        read_line();
        sigprocmask(SIG_SETMASK, nullptr, &now);
        for (int n = 1; n < 32; ++n)
            check(sigismember(&now, n) == (n != SIGKILL && n != SIGSTOP), "the mask of signals");
    } else if (way == "handler") {
        in_handler = compute;
        signal(SIGUSR1, handler);
        raise(SIGUSR1);
    } else if (way == "threads") {
        pthread_t reading, computing;
        pthread_create(&reading, nullptr, read_in_thread, nullptr);
        pthread_create(&computing, nullptr, compute_in_thread, nullptr);
        pthread_join(reading, nullptr);
        pthread_join(computing, nullptr);
    } else if (way == "hostile") {
        tamper(file);
        compute();
    } else {
        wrong("there is no such way");
    }
}

int trace(pid_t pid) {
    if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0)
        return 1;
    puts("traced");
    fflush(stdout);
    getchar();
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 3)
        return trace(atoi(argv[2]));
    if (argc != 4)
        return 2;
    const int file = open(argv[3], O_RDONLY);
    go_on = static_cast<const char *>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0));
    close(file);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(atoi(argv[1])));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(connect(fd, reinterpret_cast<sockaddr *>(&a), sizeof a) == 0, "connect");
    for (unsigned n = 0; n < 12; ++n)
        exchange(fd, n);
    socklen_t size = sizeof a;
    getsockname(fd, reinterpret_cast<sockaddr *>(&a), &size);
    printf("there %d\n", ntohs(a.sin_port));
    fflush(stdout);
    errno = 0;
    wait_in(argv[2], argv[3]);
    for (unsigned n = 0; n < 200; ++n)
        exchange(fd, n);
    puts("well");
}
