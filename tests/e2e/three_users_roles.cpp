// The processes of the test three_users: honest ones, and some that use what libsd has brought into them.
// Those reach the kernel past libsd, which keeps its descriptors from the program's own calls.
#include "tests/programs/common.hpp"

#include <cinttypes>
#include <functional>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>

using namespace sdtest;

namespace {

long raw(long n, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
    long r;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    asm volatile("syscall"
                 : "=a"(r)
                 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return r;
}
template <class T> long address(T *p) { return reinterpret_cast<long>(p); }

struct Weapon {
    int fd;
    bool socket;
};

/// Every eventfd, and every Unix socket of the kind that doorbells are, that is open in this process.
std::vector<Weapon> weapons() {
    std::vector<Weapon> found;
    for (int fd = 3; fd < 4096; ++fd) {
        char path[64], text[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, text, sizeof text - 1) < 0)
            continue;
        int type = 0, domain = 0;
        socklen_t length = sizeof type;
        raw(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, address(&domain), address(&length));
        raw(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, address(&type), address(&length));
        sockaddr_storage peer{};
        length = sizeof peer;
        const bool named = raw(SYS_getpeername, fd, address(&peer), address(&length)) < 0 || length > 2;
        if (strcmp(text, "anon_inode:[eventfd]") == 0)
            found.push_back({fd, false});
        else if (domain == AF_UNIX && type == SOCK_SEQPACKET && !named)
            found.push_back({fd, true});
    }
    return found;
}

void make_blocking(const Weapon &w, bool blocking) {
    const long flags = raw(SYS_fcntl, w.fd, F_GETFL);
    raw(SYS_fcntl, w.fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

void read_once(const Weapon &w) {
    uint64_t n;
    raw(SYS_read, w.fd, address(&n), sizeof n);
}

void fill(const Weapon &w) {
    const uint64_t most = UINT64_MAX - 1;
    for (int i = 0; i < 100000; ++i)
        if (w.socket ? raw(SYS_sendto, w.fd, address(&most), 8, MSG_DONTWAIT | MSG_NOSIGNAL) < 0
                     : raw(SYS_write, w.fd, address(&most), 8) < 0)
            return;
}

int dial(const char *port) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address to = make_address("127.0.0.1", static_cast<uint16_t>(atoi(port)));
    MUST(connect(fd, to.raw(), to.length));
    timeval patience{5, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    return fd;
}

bool ask(int fd) {
    char bytes[8] = "request";
    return send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes &&
           recv(fd, bytes, sizeof bytes, 0) == sizeof bytes;
}

/// Both sides sleep before each request, so each rings the other: from the second time on by itself.
void get_acquainted(int fd) {
    for (int i = 0; i < 6; ++i) {
        sleep_ms(30);
        if (!ask(fd))
            give_up("first requests");
    }
}

/// Answers what it is asked; `word` tells of each request.
[[noreturn]] void serve(const std::function<void(int, const char *)> &word) {
    const int listener = make_listener();
    say("port %d", local_address(listener).port());
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    for (;;) {
        epoll_event events[8];
        const int n = epoll_wait(set, events, 8, -1);
        for (int i = 0; i < n; ++i) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                event.data.fd = accept(listener, nullptr, nullptr);
                if (event.data.fd >= 0)
                    epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event);
                continue;
            }
            char bytes[8];
            const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
            if (got <= 0) {
                close(fd);
                continue;
            }
            send(fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
            word(fd, bytes);
        }
    }
}

void honest_client(const char *port) {
    const int fd = dial(port);
    get_acquainted(fd);
    say("ready");
    for (int i = 0; i < 300; ++i) {
        sleep_ms(4);
        if (!ask(fd)) {
            say("request %d was not answered", i);
            return;
        }
    }
    say("all answered");
}

[[noreturn]] void thief(const char *port, bool flags_too) {
    const int fd = dial(port);
    get_acquainted(fd);
    const std::vector<Weapon> found = weapons();
    say("ready with %zu", found.size());
    for (const Weapon &w : found)
        make_blocking(w, flags_too);
    // A blocked reader is woken together with the owner; one that does not block reads all the time.
    std::vector<std::thread> threads;
    if (flags_too)
        for (const Weapon &w : found)
            threads.emplace_back([w] {
                for (;;)
                    read_once(w);
            });
    for (;;)
        for (const Weapon &w : found)
            if (!flags_too)
                read_once(w);
            else
                sleep_ms(1);
}

/// A client that fills what it has, shuts it down, and sends descriptors there whose last close would take
/// long.
[[noreturn]] void flooder(const char *port) {
    const int fd = dial(port);
    get_acquainted(fd);
    const std::vector<Weapon> found = weapons();
    say("ready with %zu", found.size());
    for (unsigned round = 0;; ++round)
        for (const Weapon &w : found) {
            fill(w);
            if (!w.socket)
                continue;
            const int slow = static_cast<int>(raw(SYS_socket, AF_INET, SOCK_STREAM, 0));
            const linger long_time{1, 1000};
            raw(SYS_setsockopt, slow, SOL_SOCKET, SO_LINGER, address(&long_time), sizeof long_time);
            alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
            char byte = 0;
            iovec io{&byte, round % 2};
            msghdr m{};
            m.msg_iov = &io;
            m.msg_iovlen = 1;
            m.msg_control = control;
            m.msg_controllen = sizeof control;
            cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof slow);
            memcpy(CMSG_DATA(c), &slow, sizeof slow);
            raw(SYS_sendmsg, w.fd, address(&m), MSG_DONTWAIT | MSG_NOSIGNAL);
            raw(SYS_close, slow);
            if (round == 2000)
                raw(SYS_shutdown, w.fd, SHUT_RDWR);
        }
}

/// A server that, when told to, fills its own doorbells, makes them block, and does not look at them any
/// more.
[[noreturn]] void trap() {
    serve([](int, const char *text) {
        if (strncmp(text, "attack!", 7) != 0)
            return;
        const pid_t self = getpid();
        if (raw(SYS_fork) != 0) // libsd does not know of it: the child has the same files
            return;
        raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
        timespec t{0, 150'000'000}; // until it sleeps
        raw(SYS_nanosleep, address(&t));
        raw(SYS_kill, self, SIGSTOP);
        for (const Weapon &w : weapons()) {
            make_blocking(w, false);
            fill(w);
            make_blocking(w, true);
        }
        for (t = {1, 0};;)
            raw(SYS_nanosleep, address(&t));
    });
}

void trapped_writer(const char *port) {
    const int fd = dial(port);
    get_acquainted(fd);
    send_all(fd, "attack!");
    char bytes[8];
    MUST(recv(fd, bytes, 7, 0));
    say("ready");
    sleep_ms(600);
    for (int i = 0; i < 4; ++i)
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
}

} // namespace

int main(int argc, char **argv) {
    const std::string role = argc > 1 ? argv[1] : "";
    const char *port = argc > 2 ? argv[2] : "0";
    if (role == "server")
        serve([](int, const char *) {});
    else if (role == "client")
        honest_client(port);
    else if (role == "thief")
        thief(port, false);
    else if (role == "blocker")
        thief(port, true);
    else if (role == "flooder")
        flooder(port);
    else if (role == "trap")
        trap();
    else if (role == "writer")
        trapped_writer(port);
    else
        return 2;
    return 0;
}
