// Where the monitor's socket is.
#include "monitor/tools/paths.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Whether nobody else can put something in the place of what this user makes there. After su the variable
/// names another user's directory.
bool is_own_place(const char *directory) {
    struct stat st;
    return ::stat(directory, &st) != 0 || ((st.st_uid == geteuid() || st.st_uid == 0) &&
                                           ((st.st_mode & 022) == 0 || (st.st_mode & S_ISVTX) != 0));
}

} // namespace

bool private_directory(char (&path)[kMaxPath]) {
    const char *base = secure_getenv("XDG_RUNTIME_DIR");
    if (base == nullptr || base[0] != '/' || !is_own_place(base)) {
        base = "/tmp";
    }
    const int n = snprintf(path, sizeof path, "%s/socksdirect-%u", base, static_cast<unsigned>(geteuid()));
    return n > 0 && static_cast<size_t>(n) + sizeof "/monitor.sock.lock" <= sizeof path;
}

bool private_socket(char (&path)[kMaxPath]) {
    if (!private_directory(path)) {
        return false;
    }
    constexpr char kName[] = "/monitor.sock";
    memcpy(path + strlen(path), kName, sizeof kName); // private_directory() has left room for it
    return true;
}

int make_private_directory(const char *path) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return errno;
    }
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno;
    }
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0 ? 0 : EPERM;
}

int connect_monitor(const char *path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const size_t length = strlen(path);
    if (length >= sizeof name.sun_path) {
        return -ENAMETOOLONG;
    }
    memcpy(name.sun_path, path, length);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (connect(fd, reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0) {
        const int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

namespace {

/// Root's or this user's, or nobody's that has a number here: see libsd/control/client.cpp.
int connect_believed_monitor(const char *path, bool may_lack_number) {
    constexpr uid_t kWithoutNumber = 65534;
    const int fd = connect_monitor(path);
    ucred peer{};
    socklen_t length = sizeof peer;
    if (fd >= 0 &&
        (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
         (peer.uid != 0 && peer.uid != geteuid() && !(may_lack_number && peer.uid == kWithoutNumber)))) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

} // namespace

int connect_named_monitor(const char *path) { return connect_believed_monitor(path, true); }

int connect_default_monitor(const char *path) {
    char own[kMaxPath];
    return private_socket(own) && strcmp(path, own) == 0 ? connect_believed_monitor(path, false)
                                                         : connect_monitor(path);
}

} // namespace sd::monitor
