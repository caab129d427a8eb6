// The numbers of a File; see numbers.hpp.
#include "libsd/vfs/descriptors/numbers.hpp"

namespace sd {

int any_number(const File &f) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i)
        if (fd_table[i].load(std::memory_order_acquire) == &f)
            return static_cast<int>(i);
    return -1;
}

long replace_number(int fd, int made) noexcept {
    const long flags = sys::fcntl(fd, F_GETFD);
    return flags < 0 ? flags : sys::dup3(made, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
}

void give_up_number(int fd, File &f) noexcept {
    if (File *expected = &f; fd_table[fd].compare_exchange_strong(expected, nullptr))
        release_file(&f);
}

} // namespace sd
