// What the api layer calls. Every function works on descriptors of which file_of() is not null, returns the
// value or -errno, leaves errno alone, may be called by any thread, and returns kPass when the kernel's own
// call has to be made instead.
#pragma once
#include "libsd/base/upward.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace sd {

/// The kernel's upper bound for one read or write; more is cut to this.
constexpr size_t kMaxTransfer = 0x7fff'f000;
constexpr size_t clamp_transfer(size_t n) noexcept { return n < kMaxTransfer ? n : kMaxTransfer; }

} // namespace sd

namespace sd::vfs {

constexpr long kPass = INT64_MIN;

/// What the layers below api need of it (base/upward.hpp); what is not given stays as it is.
struct ApiCalls {
    void (*run_deferred)() noexcept = upward.run_deferred;
    void (*expect_faults)() noexcept = upward.expect_faults;
    void (*expect_faults_here)() noexcept = upward.expect_faults_here;
    void (*presence_moved)(int from, int to) noexcept = upward.presence_moved;
    void (*reset_in_child)() noexcept = upward.reset_in_child;
    const void *(*open_plugin)(uint32_t) noexcept = upward.open_plugin;
};
/// Runs once, from the library's constructor. Reads the environment; makes nothing visible.
void init(const ApiCalls &api = {}) noexcept;
/// False before init, or when SD_DISABLE is set: everything passes through.
bool enabled() noexcept;
/// This process and the child that it is about to make use the same memory for a while
/// (api/processes/vfork_memory.hpp): no socket of theirs becomes ours until the variables are put back, or
/// the child has forked a process with memory of its own.
void begin_vfork() noexcept;
bool in_vfork() noexcept;
void end_vfork_in_child() noexcept;

// --- sockets (socket.cpp, connect.cpp, accept.cpp, options.cpp, endpoint_addresses.cpp)
/// socket() for AF_INET/AF_INET6 SOCK_STREAM TCP; kPass for anything else.
[[nodiscard]] long socket(int domain, int type, int protocol) noexcept;
[[nodiscard]] long connect(int fd, const sockaddr *a, socklen_t n) noexcept;
[[nodiscard]] long bind(int fd, const sockaddr *a, socklen_t n) noexcept;
[[nodiscard]] long listen(int fd, int backlog) noexcept;
/// `flags`: SOCK_NONBLOCK, SOCK_CLOEXEC.
[[nodiscard]] long accept(int fd, sockaddr *a, socklen_t *n, int flags) noexcept;
/// The same for an accelerated connection that waits already; -EAGAIN: there is none, and none is waited for.
[[nodiscard]] long accept_waiting(int fd, sockaddr *a, socklen_t *n, int flags) noexcept;
long shutdown(int fd, int how) noexcept;
[[nodiscard]] long getsockname(int fd, sockaddr *a, socklen_t *n) noexcept;
[[nodiscard]] long getpeername(int fd, sockaddr *a, socklen_t *n) noexcept;
[[nodiscard]] long getsockopt(int fd, int level, int name, void *value, socklen_t *n) noexcept;
[[nodiscard]] long setsockopt(int fd, int level, int name, const void *value, socklen_t n) noexcept;

// --- data (stream.cpp, message.cpp, sendfile.cpp)
/// What a send on a socket that was never connected returns.
[[nodiscard]] long unconnected_send(File &f, int flags) noexcept;
/// The same for receiving.
[[nodiscard]] long unconnected_recv(File &f, int flags) noexcept;
/// recv/read/readv. Bad pointers give -EFAULT.
[[nodiscard]] long recv(int fd, File *f, void *p, size_t n, int flags) noexcept;
[[nodiscard]] long recvv(int fd, File *f, const iovec *iov, int count, int flags) noexcept;
[[nodiscard]] long recvmsg(int fd, File *f, msghdr *m, int flags) noexcept;
[[nodiscard]] long send(int fd, File *f, const void *p, size_t n, int flags) noexcept;
[[nodiscard]] long sendv(int fd, File *f, const iovec *iov, int count, int flags) noexcept;
[[nodiscard]] long sendmsg(int fd, File *f, const msghdr *m, int flags) noexcept;
[[nodiscard]] long sendmmsg(int fd, File *f, mmsghdr *m, unsigned n, int flags) noexcept;
[[nodiscard]] long recvmmsg(int fd, File *f, mmsghdr *m, unsigned n, int flags, timespec *timeout) noexcept;
/// Either end may be a stream; kPass when neither is.
[[nodiscard]] long sendfile(int out, int in, off64_t *offset, size_t n) noexcept;
[[nodiscard]] long splice(int in, off64_t *in_off, int out, off64_t *out_off, size_t n, unsigned flags) noexcept;

// --- descriptors (fd.cpp)
long close(int fd) noexcept;
/// dup, F_DUPFD, F_DUPFD_CLOEXEC: `min` and cloexec as fcntl has them.
[[nodiscard]] long dup(int fd, int min, bool cloexec) noexcept;
/// dup2 and dup3, when either number is ours (or hidden). flags: O_CLOEXEC; dup2 semantics for equal numbers
/// if `allow_equal`.
[[nodiscard]] long dup_to(int from, int to, int flags, bool allow_equal) noexcept;
[[nodiscard]] long close_range(unsigned first, unsigned last, unsigned flags) noexcept;
[[nodiscard]] long fcntl(int fd, int cmd, long arg) noexcept;
[[nodiscard]] long ioctl(int fd, unsigned long request, void *arg) noexcept;

// --- readiness (poll.cpp, epoll.cpp)
/// poll and ppoll; `deadline` null: for ever. kPass when no descriptor is ours.
[[nodiscard]] long poll(pollfd *p, nfds_t n, const timespec *timeout, const sigset_t *mask) noexcept;
[[nodiscard]] long select(int n, fd_set *r, fd_set *w, fd_set *e, const timespec *timeout,
                          const sigset_t *mask) noexcept;
/// After the kernel made `fd`.
void epoll_created(int fd) noexcept;
[[nodiscard]] long epoll_ctl(int ep, int op, int fd, epoll_event *e) noexcept;
[[nodiscard]] long epoll_wait(int ep, epoll_event *e, int n, const timespec *timeout,
                              const sigset_t *mask) noexcept;

/// How often the program has waited for a child. A connect() that finds it changed has the monitor look for
/// processes that have ended.
inline constinit std::atomic<uint32_t> children_ended{0};

} // namespace sd::vfs
