// sdrun: runs a program with libsd.so preloaded, and sees to it that a monitor is there.
//
// It is executed in front of every program, so it must start fast, and nothing that goes wrong here may keep
// the program from running: without libsd or a monitor it simply runs as it would without us.
#include "libsd/api/processes/loadable.hpp"
#include "libsd/cpu/elf.hpp"
#include "libsd/layout/protocol.hpp"
#include "monitor/tools/paths.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SD_LIBRARY_DIR
#define SD_LIBRARY_DIR "/usr/lib"
#endif

namespace {

using namespace sd;
using namespace sd::monitor;

bool verbose = false;
char library[PATH_MAX]; ///< empty: not found
bool zero_copy = false; ///< libsd-pages.so is wanted beside it

[[gnu::format(printf, 1, 2)]] void warn(const char *format, ...) {
    if (verbose) {
        va_list arguments;
        va_start(arguments, format);
        fputs("sdrun: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
    }
}

/// The status where something was only printed.
int end_of_output() {
    if (fflush(stdout) == 0) {
        return 0;
    }
    fprintf(stderr, "sdrun: standard output: %s\n", strerror(errno));
    return 125;
}

void usage(FILE *out) {
    fputs("Usage: sdrun [-v] [--no-monitor] [--zero-copy] PROGRAM [ARGUMENT...]\n"
          "Run PROGRAM with its TCP traffic to other such programs over shared memory.\n\n"
          "  -v            say on stderr what could not be done, and what is used\n"
          "  --no-monitor  do not start a private monitor when none is running\n"
          "  --zero-copy   take large memory from the zero-copy module, where it is loaded\n"
          "  --help        this text\n"
          "  --version     the version\n",
          out);
}

/// The directory this program stands in.
bool own_directory(char (&path)[PATH_MAX]) {
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) {
        return false;
    }
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    return true;
}

/// DIRECTORY/NAME if that can be used in the given way (an access(2) mode).
bool find_in(char (&out)[PATH_MAX], const char *directory, const char *name, int mode) {
    const int n = snprintf(out, sizeof out, "%s/%s", directory, name);
    return n > 0 && static_cast<size_t>(n) < sizeof out && access(out, mode) == 0;
}

bool find_library(char (&path)[PATH_MAX], const char *own) {
    if (const char *named = getenv("SD_LIBRARY"); named != nullptr && *named != '\0') {
        return realpath(named, path) != nullptr;
    }
    char found[PATH_MAX];
    return ((own != nullptr && (find_in(found, own, "libsd.so", R_OK) ||
                                find_in(found, own, "../lib/socksdirect/libsd.so", R_OK))) ||
            find_in(found, SD_LIBRARY_DIR, "socksdirect/libsd.so", R_OK) ||
            find_in(found, SD_LIBRARY_DIR, "libsd.so", R_OK)) &&
           realpath(found, path) != nullptr;
}

/// Whether `list` (LD_PRELOAD) has that entry.
bool lists(const char *list, const char *entry) {
    const size_t length = strlen(entry);
    for (const char *p = list; (p = strstr(p, entry)) != nullptr; p += length) {
        if ((p == list || p[-1] == ' ' || p[-1] == ':') &&
            (p[length] == '\0' || p[length] == ' ' || p[length] == ':')) {
            return true;
        }
    }
    return false;
}

/// Puts a library in front of those that are preloaded, unless it is among them (sdrun under sdrun).
void preload_in_front(const char *path) {
    if (strpbrk(path, " :") != nullptr) {
        warn("%s: the dynamic loader takes no names with blanks or colons; running without", path);
        return;
    }
    const char *others = getenv("LD_PRELOAD");
    if (others == nullptr || *others == '\0') {
        setenv("LD_PRELOAD", path, 1);
        return;
    }
    if (lists(others, path)) {
        return;
    }
    const size_t size = strlen(path) + 1 + strlen(others) + 1;
    char *joined = static_cast<char *>(malloc(size));
    if (joined != nullptr) {
        snprintf(joined, size, "%s:%s", path, others);
        setenv("LD_PRELOAD", joined, 1);
    }
}

/// libsd-pages.so, which stands beside the library.
void preload_pages() {
    char pages[PATH_MAX], directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", library);
    *strrchr(directory, '/') = '\0';
    if (!find_in(pages, directory, "libsd-pages.so", R_OK)) {
        warn("libsd-pages.so was not found beside %s; memory is the program's own", library);
        return;
    }
    if (access("/dev/socksdirect-zerocopy", R_OK | W_OK) != 0) {
        warn("/dev/socksdirect-zerocopy: %s; memory is the program's own", strerror(errno));
    }
    preload_in_front(pages);
}

/// Connects and says that somebody is here. The channel, or -errno.
int open_presence(const char *path, bool named) {
    const int fd = named ? connect_named_monitor(path) : connect_default_monitor(path);
    if (fd < 0) {
        return fd;
    }
    wire::Header header{};
    header.magic = wire::kMagic;
    header.version = wire::kVersion;
    header.op = static_cast<uint16_t>(wire::Op::presence);
    header.sequence = 1;
    wire::Packet answer;
    pollfd p{fd, POLLIN, 0};
    int error = EPROTO;
    if (send(fd, &header, sizeof header, MSG_NOSIGNAL) == sizeof header && poll(&p, 1, 1000) == 1 &&
        recv(fd, &answer, sizeof answer, 0) >= static_cast<ssize_t>(sizeof answer.header) &&
        answer.header.magic == wire::kMagic) {
        if (answer.header.version == wire::kVersion && answer.header.status == 0) {
            return fd;
        }
        error = EPROTONOSUPPORT;
    }
    close(fd);
    return -error;
}

/// Starts sd-monitor for this user, as nobody's child. It has `starting` as its standard input until it
/// listens.
void start_private_monitor(const char *program, int starting) {
    const pid_t child = fork();
    if (child < 0) {
        warn("cannot start %s: %s", program, strerror(errno));
        return;
    }
    if (child > 0) {
        while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
        }
        return;
    }
    // Not a session of its own: the kernel schedules sessions as groups (autogroup), and on a machine that is
    // busy with the caller's a process in another one waits for up to half a second each time it wakes up,
    // and so would everybody who asks it for something.
    setpgid(0, 0);
    signal(SIGHUP, SIG_IGN); // of the caller's terminal
    if (fork() != 0) {
        _exit(0);
    }
    char directory[kMaxPath], log[kMaxPath + 16];
    (void)private_directory(directory); // has been had before
    snprintf(log, sizeof log, "%s/monitor.log", directory);
    if (chdir("/") != 0) {
        _exit(127);
    }
    const int null = open("/dev/null", O_RDWR);
    const int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    struct stat st;
    if (out >= 0 && fstat(out, &st) == 0 && st.st_size > 1 << 20) {
        [[maybe_unused]] int r = ftruncate(out, 0);
    }
    if (starting >= 0) {
        fcntl(starting, F_SETFD, 0); // it may be number 0 itself
    }
    dup2(starting >= 0 ? starting : null, 0);
    dup2(out >= 0 ? out : null, 1);
    dup2(out >= 0 ? out : null, 2);
    // Nothing of the caller's may stay open in a daemon: a pipe held here would keep its reader waiting for
    // ever.
    if (close_range(3, ~0u, 0) != 0) {
        for (int fd = 3; fd < 65536; ++fd) {
            close(fd);
        }
    }
    unsetenv("LD_PRELOAD");
    unsetenv("JOURNAL_STREAM");
    unsetenv("NOTIFY_SOCKET");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    execl(program, program, "--private", static_cast<char *>(nullptr));
    dprintf(2, "sdrun: %s: %s\n", program, strerror(errno));
    _exit(127);
}

/// Who has the lock of the directory starts the monitor. The lock goes with the descriptor, which that one
/// has as well: it is held until the monitor listens, or has ended. False if somebody else starts one. Where
/// nothing can be locked, everybody does.
bool may_start_monitor(const char *directory, int &lock) {
    lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(lock);
        return false;
    }
    return true;
}

long milliseconds_since(const timespec &start) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1'000'000;
}

/// Starts the private monitor, unless somebody else does, and waits for it. The channel, or -errno.
int wait_for_monitor(const char *path, const char *directory, const char *program) {
    // A monitor that is just ending can leave with us in its queue, so starting may have to be repeated. One
    // that is being started is only slow: many programs may be starting on a busy host.
    constexpr long kOwnMs = 1000, kStartingMs = 15'000;
    timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long start_at_ms = 0, between_ms = 200;
    for (;;) {
        const long waited_ms = milliseconds_since(start);
        int lock;
        const bool may_start = may_start_monitor(directory, lock);
        const int fd = open_presence(path, false);
        const bool known = fd >= 0 || fd == -EPROTONOSUPPORT;
        if (may_start) {
            if (!known && waited_ms >= start_at_ms && waited_ms < kOwnMs) {
                start_private_monitor(program, lock);
                start_at_ms = waited_ms + between_ms;
                between_ms *= 2;
            }
            if (lock >= 0) {
                close(lock);
            }
        }
        if (known || waited_ms >= (may_start ? kOwnMs : kStartingMs)) {
            return fd;
        }
        const timespec pause{0, std::min(1 + waited_ms / 16, 11L) * 1'000'000};
        nanosleep(&pause, nullptr);
    }
}

/// The user's private monitor, started if need be. The channel, or -errno.
int private_presence(char (&path)[kMaxPath], const char *own, bool may_start) {
    char directory[kMaxPath];
    if (!private_socket(path) || !private_directory(directory)) {
        return -ENAMETOOLONG;
    }
    int fd = open_presence(path, false);
    if (fd >= 0 || !may_start || fd == -EPROTONOSUPPORT) {
        return fd;
    }
    if (const int error = make_private_directory(directory); error != 0) {
        warn("%s: %s", directory,
             error == EPERM ? "is not a directory of mode 0700 of this user" : strerror(error));
        return -error;
    }
    char program[PATH_MAX];
    if (own == nullptr || !find_in(program, own, "sd-monitor", X_OK)) {
        warn("sd-monitor was not found beside sdrun");
        return -ENOENT;
    }
    return wait_for_monitor(path, directory, program);
}

/// Moves the channel out of the way of the program's own descriptors, and lets it stay open over exec.
int move_up(int fd) {
    rlimit limit;
    int low = 512;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= 520) {
        low = static_cast<int>(limit.rlim_cur) - 8;
    }
    const int moved = low < 3 ? -1 : fcntl(fd, F_DUPFD, low);
    close(fd);
    return moved;
}

/// An outer sdrun's channel is given up: the program is to have one.
void close_outer_presence() {
    const char *text = getenv("SD_CONTROL_FD");
    if (text == nullptr) {
        return;
    }
    const int fd = atoi(text);
    int type = 0, domain = 0;
    socklen_t type_length = sizeof type, domain_length = sizeof domain;
    if (fd > 2 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_length) == 0 && type == SOCK_SEQPACKET &&
        domain == AF_UNIX) {
        close(fd);
    }
    unsetenv("SD_CONTROL_FD");
}

void find_monitor(const char *own, bool may_start) {
    char path[kMaxPath];
    const char *used = getenv("SD_MONITOR");
    int fd;
    if (used != nullptr && *used != '\0') {
        fd = open_presence(used, true);
    } else {
        used = kSystemSocket;
        fd = open_presence(used, false);
        if (fd < 0) {
            used = path;
            fd = private_presence(path, own, may_start);
        }
    }
    if (fd < 0) {
        warn("no monitor: %s", fd == -EPROTONOSUPPORT ? "it speaks another protocol version" : strerror(-fd));
        return;
    }
    close_outer_presence();
    const int moved = move_up(fd);
    if (moved >= 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", moved);
        setenv("SD_CONTROL_FD", number, 1);
    }
    setenv("SD_MONITOR", used, 1);
    warn("monitor at %s", used);
}

/// libsd moves its own descriptors beyond the program's limit when the program needs all of its numbers.
/// Where nobody may go beyond the hard limit, the program's is set a little lower.
void leave_room_for_descriptors() {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < 128) {
        return;
    }
    const rlim_t room = limit.rlim_max / 16 < 256 ? limit.rlim_max / 16 : 256;
    if (limit.rlim_max - limit.rlim_cur < room) {
        limit.rlim_cur = limit.rlim_max - room;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

} // namespace

// What libsd/api/processes/loadable.cpp asks about the library.
namespace sd {
const char *preloaded_as() noexcept { return library; }
bool preloaded_everywhere() noexcept { return false; }
} // namespace sd

int main(int argc, char **argv) {
    bool may_start = true;
    if (const char *said = getenv("SD_ZERO_COPY"); said != nullptr) {
        zero_copy = strcmp(said, "1") == 0;
    }
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; ++i) {
        if (strcmp(argv[i], "--") == 0) {
            ++i;
            break;
        }
        if (strcmp(argv[i], "-v") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--no-monitor") == 0) {
            may_start = false;
        } else if (strcmp(argv[i], "--zero-copy") == 0) {
            zero_copy = true;
            setenv("SD_ZERO_COPY", "1", 1);
        } else if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return end_of_output();
        } else if (strcmp(argv[i], "--version") == 0) {
            puts("sdrun " SD_VERSION);
            return end_of_output();
        } else {
            fprintf(stderr, "sdrun: unknown option %s\n", argv[i]);
            usage(stderr);
            return 125;
        }
    }
    if (i >= argc) {
        usage(stderr);
        return 125;
    }
    if (getauxval(AT_SECURE) != 0) { // it would run anything, with anything of the environment
        fprintf(stderr, "sdrun: not to be installed set-user-ID, or with capabilities\n");
        return 125;
    }
    char directory[PATH_MAX];
    const char *own = own_directory(directory) ? directory : nullptr;
    const bool found = find_library(library, own);
    if (found && loading_from_path(argv[i]) == Loading::stumbles) {
        warn("%s is not for glibc's dynamic linker on %s; running without", argv[i], cpu::kName);
    } else {
        find_monitor(own, may_start);
        if (found) {
            if (zero_copy) {
                preload_pages();
            }
            preload_in_front(library);
        } else {
            warn("libsd.so was not found; running without");
        }
        leave_room_for_descriptors();
    }
    execvp(argv[i], argv + i);
    const int error = errno;
    fprintf(stderr, "sdrun: %s: %s\n", argv[i], strerror(error));
    return error == ENOENT ? 127 : 126;
}
