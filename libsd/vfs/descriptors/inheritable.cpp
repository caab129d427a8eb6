// What a program started by this process would inherit of its sockets.
#include "libsd/vfs/descriptors/inheritable.hpp"

namespace sd::vfs {

namespace {

template <class Test> bool any_socket(Test test) noexcept {
    if (!fd_table)
        return false;
    for (uint32_t fd = 0, high = fd_high.load(std::memory_order_acquire); fd < high; ++fd)
        if (is_socket_of_ours(fd_table[fd].load(std::memory_order_acquire)) && test(static_cast<int>(fd)))
            return true;
    return false;
}

} // namespace

bool has_sockets() noexcept {
    return any_socket([](int) { return true; });
}

bool exec_keeps_sockets() noexcept {
    return any_socket([](int fd) {
        long flags = sys::fcntl(fd, F_GETFD);
        return flags >= 0 && !(flags & FD_CLOEXEC);
    });
}

} // namespace sd::vfs
