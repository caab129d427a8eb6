// Passing connections to other processes: SCM_RIGHTS, and programs that cannot load the library.
//
// A connection's descriptor is a placeholder, which says nothing to a receiver. So a kernel socket of its own
// is passed in its place, connected to one that the monitor keeps (a parcel). A receiver with libsd claims it
// and shares the connection from then on; in the hands of anybody else it works as the kernel socket it is,
// with sd-bridge behind it.
#pragma once
#include "libsd/layout/protocol.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include <sys/socket.h>

namespace sd {

/// How often something is tried again that a connection's getting one more path (vfs/paths/adopt.hpp) has
/// come in between: after follow().
constexpr unsigned kTriesToPass = 3;
/// A kernel socket that stands for the stream `f`, to be passed and then closed by the caller; or -errno.
/// -EBUSY: it has got, or is to get, one more path, which is to be passed instead. `start`: see wire::Pass.
[[nodiscard]] long make_parcel(File &f, wire::BridgeStart start) noexcept;
/// The numbers of `f` become those of the kernel socket `made`, which stays the caller's; the File is let go
/// of.
void exchange_numbers(File &f, int made) noexcept;
/// The connection goes on as a kernel socket with a bridge behind it, under the same numbers, for what only
/// the kernel can do; also for other processes that share it. 0, or -errno: then nothing has changed.
[[nodiscard]] long become_kernel(File &f, Cause why) noexcept;
/// A connection that was taken from a listener's queue goes on as a request to the listener's kernel socket,
/// for a program that accepts only there; then the caller drops the File. 0 or -errno.
[[nodiscard]] long become_kernel_request(File &f) noexcept;
/// The descriptor has just arrived from another process: if it stands for a connection, it is one from here
/// on. Slow only then.
void claim_parcel(int fd) noexcept;
void descriptor_passing_fork_child() noexcept;

/// The descriptors in a message that is about to be sent, with those that mean nothing elsewhere replaced.
/// Holds what has to be closed afterwards.
class OutgoingRights {
  public:
    /// True when the message has descriptors of ours: then it has to be sent with the control data that
    /// rewrite() makes. Epoll instances among them remember that they may be elsewhere, too, from now on.
    static bool concerns(const msghdr &m) noexcept;
    /// Copies the control data into `room` (msg_controllen bytes) and replaces. 0 or -errno, as sendmsg
    /// reports it.
    [[nodiscard]] long rewrite(msghdr &m, void *room) noexcept;
    OutgoingRights() = default;
    ~OutgoingRights();
    OutgoingRights(const OutgoingRights &) = delete;
    OutgoingRights &operator=(const OutgoingRights &) = delete;

  private:
    static constexpr unsigned kMost = 253;        ///< SCM_MAX_FD
    static constexpr long kGoesItself = 1L << 32; ///< what stands under the number is a kernel socket already
    /// What is passed for a stream: a descriptor, which is noted in made_, kGoesItself, or -errno.
    [[nodiscard]] long pass_stream(File &f) noexcept;
    int made_[kMost];
    unsigned count_ = 0;
};

} // namespace sd
