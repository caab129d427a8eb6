// The socket clients connect to.
#include "monitor/service/control_socket.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

[[noreturn]] void fail(const std::string &what) { throw SocketError(what + ": " + strerror(errno)); }

/// Does somebody listen under this name who has not taken the lock: another program, or the service manager?
bool is_listened_at(const std::string &path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path.c_str(), path.size() + 1);
    for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
        const UniqueFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (connect(probe.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0 || errno == EAGAIN) {
            return true;
        }
    }
    return false;
}

} // namespace

/// Whoever holds the lock owns the path. The kernel drops it with the process, however that ends.
void ControlSocket::take_lock(const std::string &name) {
    for (;;) {
        UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!fd) {
            fail(name);
        }
        if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                throw SocketError("another sd-monitor is already running at " + path_);
            }
            fail(name);
        }
        // The last owner removes the file before it lets go: what we locked may no longer be the file of
        // that name.
        struct stat locked, named;
        if (fstat(fd.get(), &locked) == 0 && stat(name.c_str(), &named) == 0 &&
            locked.st_ino == named.st_ino && locked.st_dev == named.st_dev) {
            lock_.name = name;
            lock_.fd = std::move(fd);
            return;
        }
    }
}

ControlSocket::ControlSocket(const std::string &path, mode_t mode, const std::string &lock) : path_(path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string temporary = path_ + ".new";
    if (temporary.size() >= sizeof name.sun_path) {
        throw SocketError(path_ + ": the name is too long for a socket");
    }
    take_lock(lock.empty() ? path_ + ".lock" : lock);
    if (is_listened_at(path_)) {
        throw SocketError(path_ + ": another program listens there, or the service manager for sd-monitor");
    }
    ours_ = true;
    socket_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_) {
        fail("socket");
    }
    // Bound and listening under another name first, so that nobody ever finds the path with nobody behind it.
    memcpy(name.sun_path, temporary.c_str(), temporary.size() + 1);
    unlink(temporary.c_str());
    if (bind(socket_.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0) {
        fail(temporary);
    }
    if (chmod(temporary.c_str(), mode) != 0 || listen(socket_.get(), 1024) != 0 ||
        rename(temporary.c_str(), path_.c_str()) != 0) {
        const int error = errno;
        unlink(temporary.c_str());
        errno = error;
        fail(path_);
    }
}

ControlSocket::ControlSocket(int inherited) : socket_(inherited) {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    int type = 0;
    socklen_t type_length = sizeof type;
    if (getsockname(inherited, reinterpret_cast<sockaddr *>(&name), &length) != 0 || name.sun_family != AF_UNIX ||
        getsockopt(inherited, SOL_SOCKET, SO_TYPE, &type, &type_length) != 0 || type != SOCK_SEQPACKET) {
        throw SocketError(
            "the socket handed over by the service manager is not a Unix SOCK_SEQPACKET socket");
    }
    path_ = name.sun_path;
    fcntl(inherited, F_SETFL, fcntl(inherited, F_GETFL) | O_NONBLOCK);
}

ControlSocket::Lock::~Lock() {
    if (fd) {
        unlink(name.c_str());
    }
}

ControlSocket::~ControlSocket() {
    if (ours_) {
        unlink(path_.c_str());
    }
}

} // namespace sd::monitor
