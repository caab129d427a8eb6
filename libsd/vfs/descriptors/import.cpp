// Descriptors that came from elsewhere, with an exec or over a socket: they are imported into the table the
// first time they are used.
//
// Several threads may be the first at once, and one listener may have come under several numbers. It has one
// File all the same: the monitor knows each process once, so of two Files the one that is closed first would
// take the listener away from the other.
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

SD_FORK_STATE constinit Lock importing; ///< from the look into the table to the entry there

/// Numbers that import_polled() has asked about.
constinit std::atomic<uint64_t> asked[kMaxFd / 64];

bool is_listener(int fd, int *family) noexcept {
    int accepting = 0, protocol = 0;
    socklen_t n = sizeof(int);
    return sys::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &n) == 0 && accepting == 1 &&
           sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) == 0 && protocol == IPPROTO_TCP &&
           sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, family, &n) == 0;
}

/// With a reference; null and the cause if there can be none.
File *listener_file(int fd, int family, Cause *why) noexcept {
    if (File *known = find_listener(fd))
        return known;
    File *f = new_file(FileKind::fresh);
    if (!f) {
        *why = Cause::no_memory;
        return nullptr;
    }
    f->family = static_cast<uint8_t>(family);
    if (const long r = register_listener(fd, f, 4095, why); r < 0) {
        if (r == -EBADF) // closed just now
            *why = Cause::none;
        discard_file(f);
        return nullptr;
    }
    f->refs.store(1, std::memory_order_relaxed);
    return f;
}

} // namespace

void number_received(int fd) noexcept {
    if (static_cast<unsigned>(fd) < kMaxFd)
        asked[fd / 64].fetch_and(~(uint64_t{1} << (fd % 64)), std::memory_order_relaxed);
}

SD_FORK_CODE void import_fork_child() noexcept { importing.reset(); }

namespace vfs {

void import_listener(int fd) noexcept {
    int family = 0;
    if (!enabled() || sandboxed() || file_of(fd) || static_cast<unsigned>(fd) >= kMaxFd || is_hidden(fd) ||
        !is_listener(fd, &family))
        return;
    Cause why = Cause::none;
    LockGuard g(importing);
    if (file_of(fd))
        return;
    if (File *f = listener_file(fd, family, &why)) {
        install_file(fd, f);
        // Another thread may have closed the number meanwhile, and found no entry.
        if (File *entry = f;
            !is_socket_of(*f->listener, fd) && fd_table[fd].compare_exchange_strong(entry, nullptr))
            release_file(f);
        release_file(f);
    } else if (why != Cause::none) {
        count_fallback(why, nullptr);
    }
}

void import_polled(int fd) noexcept {
    auto &word = asked[static_cast<unsigned>(fd) / 64];
    const uint64_t bit = uint64_t{1} << (fd % 64);
    if (word.load(std::memory_order_relaxed) & bit) [[likely]]
        return;
    import_listener(fd);
    // Afterwards: another thread that finds the bit set would poll the kernel's socket alone.
    word.fetch_or(bit, std::memory_order_relaxed);
}

void import_epoll(int fd) noexcept {
    LockGuard g(importing);
    if (!file_of(fd))
        epoll_created(fd);
}

} // namespace vfs

} // namespace sd
