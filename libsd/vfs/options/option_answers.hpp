// What getsockopt answers for a socket of ours.
#pragma once
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/options/options.hpp"

namespace sd {

/// Makes sure that a kernel socket answers under this number. 0 or -errno.
[[nodiscard]] long need_kernel_socket(int fd, File &f) noexcept;
/// For a File of kind fresh that is no kernel socket, or a stream. `room`: what the program says at `n`, not
/// negative. 0 or -errno. Pinned by the caller.
[[nodiscard]] long answer_option(int fd, File &f, int level, int name, void *value, socklen_t *n,
                                 int room) noexcept;
bool is_keepalive(int level, int name) noexcept;
/// An option of a connection with paths whose word is used otherwise (Ofd::Options).
bool kept_by_socket(const Ofd &o, const KnownOption &k) noexcept;

} // namespace sd
