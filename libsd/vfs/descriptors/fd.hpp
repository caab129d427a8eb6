// Descriptors as such: what the calls that create, copy and close them share.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Sets or clears O_NONBLOCK (and other F_SETFL bits in `mask`) of an accelerated or not yet connected
/// socket.
void change_status(File &f, uint32_t mask, uint32_t bits) noexcept;
/// True if the kernel's file behind the number belongs to many sockets, so that nothing may be set on it.
inline bool is_placeholder(const File &f) noexcept {
    return (f.kind == FileKind::fresh || f.kind == FileKind::stream) && !f.real_socket;
}

/// What a number stands for, with a reference for the time of a call that neither blocks nor can be
/// cancelled. Null: none of ours, or none wanted.
class ReferencedFile {
  public:
    explicit ReferencedFile(int fd, bool wanted = true) noexcept;
    ~ReferencedFile() {
        if (file_)
            release_file(file_);
    }
    ReferencedFile(const ReferencedFile &) = delete;
    ReferencedFile &operator=(const ReferencedFile &) = delete;
    File *file() const noexcept { return file_; }

  private:
    File *file_ = nullptr;
};
/// See fd.cpp.
[[nodiscard]] long leave_to_kernel(int fd, File &f, Cause why) noexcept;

} // namespace sd
