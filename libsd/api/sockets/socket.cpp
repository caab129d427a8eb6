// Sockets: making, connecting, accepting, names, options and state.
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include <linux/sockios.h>

using namespace sd;

SD_EXPORT int socket(int domain, int type, int protocol) noexcept {
    if (active()) {
        long r = vfs::socket(domain, type, protocol);
        if (r != vfs::kPass)
            return answer(r);
    }
    return noted(numbered([&] { return real.socket(domain, type, protocol); }));
}

SD_EXPORT int socketpair(int domain, int type, int protocol, int *ends) noexcept {
    int r = numbered([&] { return real.socketpair(domain, type, protocol, ends); });
    if (r == 0) {
        noted(ends[0]);
        noted(ends[1]);
    }
    return r;
}

SD_EXPORT int bind(int fd, const sockaddr *address, socklen_t size) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.bind(fd, address, size);
    long r = vfs::bind(fd, address, size);
    return r == vfs::kPass ? real.bind(fd, address, size) : answer(r);
}

SD_EXPORT int bindresvport(int fd, sockaddr_in *address) noexcept {
    File *f = file_of(fd);
    if (!f) [[likely]]
        return real.bindresvport(fd, address);
    // libc tries ports with its own bind() inside.
    if (f->kind == FileKind::fresh) {
        if (long r = materialise(fd, *f); r < 0)
            return answer(r);
    }
    int r = real.bindresvport(fd, address);
    if (r == 0)
        f->unconnected.bound = true;
    return r;
}

SD_EXPORT int listen(int fd, int backlog) noexcept {
    if (const long r = file_of(fd) ? vfs::listen(fd, backlog) : vfs::kPass; r != vfs::kPass)
        return answer(r);
    const int result = real.listen(fd, backlog);
    return result == 0 && dummy_listened() ? answer(-EINVAL) : result;
}

namespace {

/// Listeners that turned out not to be for us are asked about again after this long: a monitor may have come.
constexpr int64_t kRefusalNs = 1'000'000'000;
constexpr unsigned kRefusals = 64;

/// Number and time (in units of kRefusalNs) of a refusal, by the low bits of the number.
constinit std::atomic<uint64_t> refused_numbers[kRefusals];

/// A listener that came with an exec or over a socket is taken into the table the first time it is used.
bool is_ours_to_accept(int fd) noexcept {
    if (file_of(fd)) [[likely]]
        return !sandboxed(); // then it has left the directory, and the kernel accepts
    if (!active() || fd < 0 || sandboxed())
        return false;
    uint64_t mark = static_cast<uint64_t>(fd) << 32 | static_cast<uint32_t>(sys::now_ns() / kRefusalNs);
    auto &last = refused_numbers[static_cast<unsigned>(fd) % kRefusals];
    if (last.load(std::memory_order_relaxed) == mark)
        return false;
    vfs::import_listener(fd);
    if (file_of(fd))
        return true;
    last.store(mark, std::memory_order_relaxed);
    return false;
}

} // namespace

SD_EXPORT int accept(int fd, sockaddr *address, socklen_t *size) {
    if (is_ours_to_accept(fd)) {
        cancellation_point();
        long r = vfs::accept(fd, address, size, 0);
        if (r != vfs::kPass)
            return answer(r);
    }
    return noted(numbered([&] { return real.accept(fd, address, size); }));
}

SD_EXPORT int accept4(int fd, sockaddr *address, socklen_t *size, int flags) {
    if ((flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == 0 && is_ours_to_accept(fd)) {
        cancellation_point();
        long r = vfs::accept(fd, address, size, flags);
        if (r != vfs::kPass)
            return answer(r);
    }
    return noted(numbered([&] { return real.accept4(fd, address, size, flags); }));
}

SD_EXPORT int connect(int fd, const sockaddr *address, socklen_t size) {
    if (!called_on(fd)) [[likely]]
        return real.connect(fd, address, size);
    if (size > sizeof(sockaddr_storage)) [[unlikely]] // before anything else is looked at
        return answer(-EINVAL);
    long r = vfs::connect(fd, address, size);
    return r == vfs::kPass ? real.connect(fd, address, size) : answer(r);
}
SD_ALIAS(__connect, connect);

SD_EXPORT int shutdown(int fd, int how) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.shutdown(fd, how);
    long r = vfs::shutdown(fd, how);
    return r == vfs::kPass ? real.shutdown(fd, how) : answer(r);
}

SD_EXPORT int getsockname(int fd, sockaddr *address, socklen_t *size) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.getsockname(fd, address, size);
    long r = vfs::getsockname(fd, address, size);
    return r == vfs::kPass ? real.getsockname(fd, address, size) : answer(r);
}

SD_EXPORT int getpeername(int fd, sockaddr *address, socklen_t *size) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.getpeername(fd, address, size);
    long r = vfs::getpeername(fd, address, size);
    return r == vfs::kPass ? real.getpeername(fd, address, size) : answer(r);
}

SD_EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *size) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.getsockopt(fd, level, name, value, size);
    long r = vfs::getsockopt(fd, level, name, value, size);
    return r == vfs::kPass ? real.getsockopt(fd, level, name, value, size) : answer(r);
}

SD_EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t size) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.setsockopt(fd, level, name, value, size);
    long r = vfs::setsockopt(fd, level, name, value, size);
    return r == vfs::kPass ? real.setsockopt(fd, level, name, value, size) : answer(r);
}

SD_EXPORT int sockatmark(int fd) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.sockatmark(fd);
    int at_mark = 0;
    long r = vfs::ioctl(fd, SIOCATMARK, &at_mark);
    if (r == vfs::kPass)
        return real.sockatmark(fd);
    return r < 0 ? answer(r) : at_mark;
}
