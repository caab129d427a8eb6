// What the rest of the vfs layer tells the epoll instances. Any thread may call anything; no lock of the
// caller's may be held.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// The last descriptor of `f` in this process was closed: all its registrations go. Before the link is given
/// up.
void epoll_end_registrations(File &f) noexcept;
inline void epoll_file_closed(File &f) noexcept {
    if (f.items || f.stream.leftover_watch.load(std::memory_order_acquire) != 0) [[unlikely]]
        epoll_end_registrations(f);
}
/// The instance, which `fd` stands for, may be about to go to another process with SCM_RIGHTS.
void epoll_passed(File &f, int fd) noexcept;
/// The last descriptor of the instance was closed in this process.
void epoll_destroy(File &f) noexcept;

// A socket changes under its registrations. Call after the change. They take ctl_lock() in any case: another
// thread may be adding the File to a set as what it was, and that shows only once it has let go of the lock.
/// A fresh socket has become an accelerated connection.
void epoll_file_became_stream(File &f) noexcept;
/// A stream whose numbers were placeholders has a kernel socket under them from now on, and paths.
void epoll_file_has_socket(File &f) noexcept;
/// The connection was undone, so that the File is no stream any more; its descriptors stay. Before the link
/// is given up.
void epoll_stream_ends(File &f) noexcept;
/// A socket has become an accelerated listener.
void epoll_file_became_listener(File &f) noexcept;
/// All its descriptors now are a kernel socket (materialised or fallen back): their registrations move to the
/// kernel's set. Call while `f` still has its items, that is, before release_file(). With `only`, those under
/// that number.
void epoll_file_became_kernel(File &f, int only = -1) noexcept;

/// Is it registered in an instance that was made before this process was? In one that has made no child.
bool epoll_is_in_inherited(File &f) noexcept;

/// Whether the kernel, which knows nothing of what was reported, would report edges of the socket anew if it
/// got its registrations.
bool epoll_would_repeat(File &f) noexcept;

/// With `edge`, edge-triggered sets report what is ready once more, as after a wake-up in the kernel. Quick
/// when it is registered nowhere: who is just adding it to a set looks at it afterwards anyway.
void epoll_readiness_changed(File &f, bool edge) noexcept;
/// The program's own doing may have changed what the socket reports: shutdown(), a smaller SO_RCVLOWAT, a
/// pending error, or a send that found no room (-EAGAIN or a short count: edge-triggered sets then watch for
/// room).
inline void epoll_touch(File &f, bool edge = false) noexcept {
    if (f.items) [[unlikely]]
        epoll_readiness_changed(f, edge);
}

/// Around fork(): the child must not inherit a list that was being changed.
void epoll_fork_prepare() noexcept;
void epoll_fork_parent() noexcept;
/// After drop_bells_in_child().
///
/// As with the kernel's own sets, an instance made before the fork is one interest list for kernel
/// descriptors in both processes. Registrations of accelerated sockets are private to each process from here
/// on: EPOLL_CTL_ADD, MOD and DEL of one are not seen by the other.
void epoll_fork_child() noexcept;

} // namespace sd
