// Descriptors as such: what the calls that create, copy and close them share.
#pragma once
#include "libsd/vfs/file.hpp"

namespace sd {

/// Sets or clears O_NONBLOCK (and other F_SETFL bits in `mask`) of an accelerated or not yet connected
/// socket.
void change_status(File &f, uint32_t mask, uint32_t bits) noexcept;
/// As F_GETFL reports it, without the access mode.
uint32_t status_of(const File &f) noexcept;
/// True if the kernel's file behind the number belongs to many sockets, so that nothing may be set on it.
inline bool is_placeholder(const File &f) noexcept {
    return (f.kind == Kind::fresh || f.kind == Kind::stream) && !f.real_socket;
}

/// What the number stands for, with one more reference, to be ended with release_file(); nullptr: none of ours.
File *hold_file(int fd) noexcept;
/// See fd.cpp.
long leave_to_kernel(int fd, File &f, Cause why) noexcept;

} // namespace sd
