// What a program started by this process would inherit of its sockets.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd::vfs {

/// A socket whose meaning another program only learns from this library: not an epoll instance, which is the
/// kernel's own anyway.
inline bool is_socket_of_ours(const File *f) noexcept {
    return f && (f->kind == FileKind::stream || f->kind == FileKind::listener || f->kind == FileKind::fresh);
}

/// Whether this process has any. Any thread.
bool has_sockets() noexcept;
/// Whether an exec now would keep one of them open. Asks the kernel about each socket until the answer is
/// yes: its flag is the only record of FD_CLOEXEC. Any thread.
bool exec_keeps_sockets() noexcept;

} // namespace sd::vfs
