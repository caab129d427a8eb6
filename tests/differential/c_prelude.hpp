// The C text that printed programs share: helpers, each printed only when a step uses it.
#pragma once

namespace sd::differential {

struct Helper {
    const char *name; ///< printed when the steps mention `name(`
    const char *text;
};

inline constexpr const char *kCommon = R"(#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NONE -3
/* What all processes know: whose turn it is, and what the steps made. */
static struct {
    volatile int turn, v[200], w[200], port[200], pid[8], tid[8];
    volatile long moved[200];
} *s;
#define v s->v
#define w s->w
#define port s->port
#define moved s->moved
static __thread int step;
static char buffer[1 << 24];

/* A step that has not ended after 300 ms counts as blocked: the next one goes on. */
static void turn(int number) {
    for (int i = 0; s->turn < number && i < 300; i++) usleep(1000);
    step = number;
}
static void done(void) { if (s->turn <= step) s->turn = step + 1; }
static void show(const char *text, long r) {
    if (r < 0) printf("%2d %s = -1 %s\n", step, text, strerrorname_np(errno));
    else printf("%2d %s = %ld\n", step, text, r);
}
static char *data(long size) {
    for (long i = 0; i < size; i++) buffer[i] = 'a' + (step * 5 + i + (i >> 8) * 3 + (i >> 16)) % 26;
    return buffer;
}
static void *bad(void) { return mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void note(int fd) {
    struct sockaddr_in6 name; socklen_t n = sizeof name;
    if (getsockname(fd, (struct sockaddr *)&name, &n) == 0) port[step] = ntohs(name.sin6_port);
}
)";

inline constexpr Helper kHelpers[] = {
    {"ADDRESS", R"(enum { v4_loopback, v4_any, v6_loopback, v6_any, mapped, v4_other, v4_foreign, bad_family, short_length, bad_pointer,
       unspecified, null_address };
static socklen_t address_length;
static struct sockaddr *address(int form, int number) {
    static struct sockaddr_storage place;
    memset(&place, 0, sizeof place);
    struct sockaddr_in *four = (void *)&place; struct sockaddr_in6 *six = (void *)&place;
    if (form == v6_loopback || form == v6_any || form == mapped) {
        six->sin6_family = AF_INET6; six->sin6_port = htons(number); address_length = sizeof *six;
        inet_pton(AF_INET6, form == v6_loopback ? "::1" : form == v6_any ? "::" : "::ffff:127.0.0.1", &six->sin6_addr);
    } else {
        four->sin_family = form == bad_family ? 77 : form == unspecified ? AF_UNSPEC : AF_INET; four->sin_port = htons(number);
        address_length = form == short_length ? 4 : form == null_address ? 0 : sizeof *four;
        inet_pton(AF_INET, form == v4_any ? "0.0.0.0" : form == v4_other ? "127.0.0.2" : form == v4_foreign ? "203.0.113.77" : "127.0.0.1",
                  &four->sin_addr);
    }
    return form == bad_pointer ? bad() : (struct sockaddr *)&place;
}
#define ADDRESS(form, number) address(form, number), address_length
)"},
    {"take", R"(static int take(int fd, int variant, int flags) {
    struct sockaddr_storage name; socklen_t n = variant == 1 ? 6 : variant == 2 ? 0 : variant == 5 ? -1 : sizeof name;
    if (variant >= 6) return accept4(fd, 0, 0, flags);
    return accept4(fd, variant == 3 ? bad() : (void *)&name, variant == 4 ? bad() : &n, flags);
}
)"},
    {"name_of", R"(static int name_of(int fd, int variant, int peer) {
    struct sockaddr_in6 name; socklen_t n = variant == 1 ? 6 : variant == 2 ? 0 : variant == 5 ? -1 : sizeof name;
    void *at = variant == 3 ? bad() : &name, *size = variant == 4 ? bad() : &n;
    int r = peer ? getpeername(fd, at, size) : getsockname(fd, at, size);
    if (r == 0 && variant == 0) printf("   family %d port %d length %d\n", name.sin6_family, ntohs(name.sin6_port), n);
    return r;
}
)"},
    {"set_option", R"(static int set_option(int fd, int level, int name, const void *value, socklen_t n) {
    return setsockopt(fd, level, name, value, n);
}
)"},
    {"get_option", R"(static int get_option(int fd, int level, int name, int variant) {
    int value[64] = {0}; socklen_t n = variant == 1 ? 1 : variant == 2 ? 200 : variant == 4 ? -1 : sizeof value;
    int r = getsockopt(fd, level, name, variant == 3 ? bad() : value, &n);
    if (r == 0) printf("   length %d value %d %d\n", n, value[0], value[1]);
    return r;
}
)"},
    {"control", R"(static int control(int fd, int which, int value) {
    static const unsigned long requests[] = {FIONREAD, FIONBIO, SIOCATMARK, TIOCOUTQ, FIOCLEX, FIONCLEX, FIOASYNC, 0x1234, FIONREAD};
    int r = ioctl(fd, requests[which], which == 8 ? bad() : &value);
    if (r == 0 && which != 3) printf("   value %d\n", value);
    return r;
}
)"},
    {"got", R"(static long got(long r, const char *bytes, long room) {
    int error = errno;
    if (r > 0) printf("   \"%.*s\"\n", (int)(r < room ? r < 24 ? r : 24 : room), bytes);
    errno = error;
    return r;
}
)"},
    {"fill", R"(static long fill(int fd) {
    long total = 0, r;
    while ((r = send(fd, data(65521), 65521, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) total += r;
    moved[step] = total;
    return r;
}
)"},
    {"huge", R"(static long huge(int fd) {
    long r = send(fd, data(sizeof buffer), sizeof buffer, MSG_NOSIGNAL);
    moved[step] = r < 0 ? 0 : r;
    return r;
}
)"},
    {"drain", R"(static long drain(int fd, long expected) {
    long total = 0, r = 1;
    static char there[1 << 18];
    for (int i = 0; total < expected && r != 0 && i < 2000; i++) {
        r = recv(fd, there, sizeof there, MSG_DONTWAIT);
        if (r < 0 && errno != EAGAIN) return r;
        if (r < 0) usleep(1000); else total += r;
    }
    return total == expected;
}
)"},
    {"wait_poll", R"(static int wait_poll(int a, int x, int b, int y, int c, int z, int timeout) {
    struct pollfd p[3]; int n = 0;
    if (a != NONE) p[n++] = (struct pollfd){a, x, 0};
    if (b != NONE) p[n++] = (struct pollfd){b, y, 0};
    if (c != NONE) p[n++] = (struct pollfd){c, z, 0};
    int r = poll(p, n, timeout);
    for (int i = 0; i < n; i++) printf("   events %x\n", p[i].revents);
    return r;
}
)"},
    {"wait_select", R"(static int wait_select(int a, int x, int b, int y, int c, int z, int timeout) {
    fd_set sets[3]; int fds[3] = {a, b, c}, kinds[3] = {x, y, z}, top = 0;
    struct timeval t = {timeout / 1000, timeout % 1000 * 1000};
    for (int k = 0; k < 3; k++) FD_ZERO(&sets[k]);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            if (fds[i] >= 0 && kinds[i] >> k & 1) { FD_SET(fds[i], &sets[k]); if (fds[i] >= top) top = fds[i] + 1; }
    int r = select(top, &sets[0], &sets[1], &sets[2], timeout < 0 ? 0 : &t);
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) printf("   %d%d%d\n", !!FD_ISSET(fds[i], &sets[0]), !!FD_ISSET(fds[i], &sets[1]), !!FD_ISSET(fds[i], &sets[2]));
    return r;
}
)"},
    {"change", R"(static int change(int set, int operation, int fd, unsigned events) {
    struct epoll_event e = {.events = events, .data.u64 = step};
    return epoll_ctl(set, operation, fd, &e);
}
)"},
    {"wait_epoll", R"(static int wait_epoll(int set, int most, int timeout, int variant) {
    struct epoll_event e[16];
    int r = epoll_wait(set, variant == 3 ? bad() : e, variant == 4 ? 0 : most, timeout);
    for (int i = 0; i < r && variant != 3; i++) printf("   member of step %d: events %x\n", (int)e[i].data.u64, e[i].events);
    return r;
}
)"},
    {"ready", R"(static int ready(int fd) {
    struct pollfd p = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    int r = poll(&p, 1, 0);
    printf("   events %x\n", p.revents);
    return r;
}
)"},
    {"handle", R"(static void caught(int number) { printf("   got SIG%s\n", sigabbrev_np(number)); }
static int handle(int which, int how) {
    struct sigaction a = {.sa_handler = how == 0 ? SIG_DFL : how == 1 ? SIG_IGN : caught, .sa_flags = how == 3 ? SA_RESTART : 0};
    return sigaction(which == 0 ? SIGPIPE : SIGUSR1, &a, 0);
}
)"},
    {"other_file", R"(static int other_file(int kind) {
    int ends[2] = {-1, -1};
    if (kind == 2) return memfd_create("step", 0);
    if (kind == 3) return open("/dev/null", O_RDWR);
    if (kind == 4) return eventfd(1, EFD_NONBLOCK);
    if (kind == 5) return socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    int r = kind == 0 ? pipe2(ends, O_NONBLOCK) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends);
    w[step] = ends[1];
    return r < 0 ? r : ends[0];
}
)"},
    {"metadata", R"(static long metadata(int fd, int kind) {
    struct stat about;
    return kind == 0 ? fstat(fd, &about) : kind == 1 ? lseek(fd, 0, SEEK_CUR) : kind == 2 ? isatty(fd) : kind == 3 ? fsync(fd) : ftruncate(fd, 0);
}
)"},
    {"own", R"(static int own(int fd, int what, int value) {
    return what == 0 ? fcntl(fd, F_SETOWN, value ? getpid() : 0) : what == 1 ? fcntl(fd, F_GETOWN) != 0 : what == 2 ? fcntl(fd, F_SETSIG, value)
                                                                                         : fcntl(fd, F_GETSIG);
}
)"},
};

} // namespace sd::differential
