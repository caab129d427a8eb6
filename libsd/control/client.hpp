// The library's side of the control channel: one connection per process, requests answered one at a time.
//
// Nothing here runs on the data path. Any thread may call anything; a lock with signals blocked serialises
// requests. A channel that fails is closed; the next request after a pause connects again and runs the
// Upward::restore, which registers everything this process has with the new monitor.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/protocol.hpp"
#include <atomic>
#include <cstddef>

namespace sd::control {

struct Reply {
    long status = 0; ///< 0, or -errno from the monitor or from the channel (-ECONNREFUSED: no monitor)
    Cause cause = Cause::none;
    unsigned length = 0;
    unsigned fds = 0;
    int fd[wire::kMaxFds];
    alignas(8) unsigned char body[wire::kMaxBody];
    template <class T> const T &as() const noexcept { return *reinterpret_cast<const T *>(body); }
};

/// The descriptors that came with an answer nobody wants.
void close_received(Reply &r) noexcept;

/// Why an answer is of no use: what the monitor says; that no number was left for a descriptor that came with
/// it; or `otherwise`.
inline Cause cause_of(const Reply &r, Cause otherwise) noexcept {
    return r.cause != Cause::none                       ? r.cause
           : r.status == -EMFILE || r.status == -ENFILE ? Cause::no_descriptor
                                                        : otherwise;
}

constexpr uint64_t kArenasUnbounded = UINT64_MAX;
/// What the monitor's configuration says of this program. Written by who says hello; read by all threads at
/// any time, for whom either value will do. A forked child has its parent's.
struct Profile {
    std::atomic<wire::Spin> spin{wire::Spin::automatic};
    std::atomic<uint32_t> most_ring{kRingClasses - 1};
    /// What the arenas of its links may take of its control group's memory, in bytes
    std::atomic<uint64_t> arenas{kArenasUnbounded};
};
extern Profile profile;

/// What HELLO needs (Upward::identity). Both descriptors stay the caller's.
struct Identity {
    int segment_fd;
    int namespace_socket;
    uint32_t proc_index;
};
/// Which monitor the user named. When the program starts.
void read_environment() noexcept;
/// A descriptor, shared with other processes, that was connected to the monitor by who started the program: a
/// way there for a process that cannot reach the monitor's socket, having become another user or being in a
/// chroot.
void set_door(int fd) noexcept;
/// The process is about to have another root directory: makes sure that there is such a way, if there is a
/// monitor.
void keep_door() noexcept;

/// Connects and says hello if that has not been done; quick when connected. False: no monitor (cause in
/// `*why`), not asked again for a while.
[[nodiscard]] bool ensure(Cause *why) noexcept;
/// True while a channel is open (it may have died unnoticed).
bool connected() noexcept;
/// Upward::hidden_moved, for the channel.
void channel_moved(int from, int to) noexcept;
/// The channel for poll(): a hang-up means the monitor is gone. -1 when there is none.
[[nodiscard]] int channel() noexcept;
/// One request and its reply. Received descriptors are ordinary low-numbered close-on-exec ones, owned by the
/// caller.
Reply request(wire::Op op, const void *body = nullptr, size_t length = 0, const int *fds = nullptr,
              unsigned nfds = 0) noexcept;
/// A request whose answer says nothing: does not wait for the monitor.
void tell(wire::Op op, const void *body, size_t length) noexcept;
/// Notices a dead monitor and, with pauses, connects to a new one. Called by a thread that is about to sleep.
/// True when all is well.
bool maintain() noexcept;
/// The number that SD_CONTROL_FD names, if it is a channel (a connected SOCK_SEQPACKET Unix socket); -1: it
/// is something of the program's, or nothing.
[[nodiscard]] int handed_channel(const char *text) noexcept;
/// Differs after each reconnection.
uint32_t epoch() noexcept;
/// The listeners of this network namespace; nullptr before ensure(). Read-only memory.
const Directory *directory() noexcept;

/// After an exec: goes on with the channel of the former program image, which called this process `client`,
/// and tells the monitor what was taken over. Where that fails, the process comes back as after a restart of
/// the monitor.
void resume(int channel_fd, uint64_t client, int table_fd) noexcept;
/// The monitor's name for this process.
uint64_t client_id() noexcept;

/// Where the monitor is looked for, in order: SD_MONITOR, the system's, the user's own.
/// Fills `path` (at least 108 bytes) with candidate `i`; false when there is no such candidate.
[[nodiscard]] bool socket_path(unsigned i, char *path) noexcept;

} // namespace sd::control
