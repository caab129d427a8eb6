// The numbers under which this process has a File, and putting another file of the kernel's there.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// act(fd) for each number of `f`, the smallest first. Other threads may change the table meanwhile.
template <class Act> void for_each_number(const File &f, Act act) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i)
        if (fd_table[i].load(std::memory_order_acquire) == &f)
            act(static_cast<int>(i));
}
/// The smallest of them; -1: there is none.
int any_number(const File &f) noexcept;
/// The number becomes one more of `made`, and stays close-on-exec where it was. -errno; -EBADF: the kernel
/// does not have it any more, and nothing was done.
[[nodiscard]] long replace_number(int fd, int made) noexcept;
/// Takes the number out of the table, if it is still `f`'s, and ends its reference.
void give_up_number(int fd, File &f) noexcept;

} // namespace sd
