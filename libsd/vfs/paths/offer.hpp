// Connections that began in the kernel, until their two ends are joined.
//
// A socket that has connected through the kernel, or came from the kernel's queue of one of our listeners,
// keeps a File of kind `fresh` with a kernel socket: the kernel does everything for it. With the first call
// that moves data it is offered to the monitor, and once the other end has been offered, too, it becomes a
// stream: a connection with a slot of a link beside its kernel socket, whose directions can change their path
// (moves.hpp).
//
// Nobody may be inside a call of the kernel on the socket then, or asleep in one: it would not hear of what
// comes another way. So such calls are made here, and counted (Unconnected::inside). A socket that another
// process may have as well is not offered: one that was passed (SCM_RIGHTS) never any more, one that was
// inherited once the child is the only one to have it (inherited.hpp).
//
// Sockets are marked where the monitor looks for the other ends of kernel connections (Directory::discovery):
// those that lead out of the network namespace, or to nobody that the directory knows, and what such a
// connection may come to, a listener. SD_TEST_PATHS in the environment has all connections begin so.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

enum class PathMode : uint8_t {
    off,    ///< what is found moves at once
    kernel, ///< connections begin in the kernel and are joined, and stay there
    ring,   ///< "shm": they move at once
    storm   ///< each side moves its direction to and fro at random
};
extern PathMode path_mode;
/// Of the environment; once, at start.
void read_path_mode(const char *text) noexcept;
/// Do all connections begin in the kernel, for a test?
inline bool all_begin_in_kernel() noexcept { return path_mode != PathMode::off; }

enum class OfferState : uint8_t { none, marked, offered, given_up };

/// The socket of this File connects, or has connected, through the kernel. `side`: 0 it connects, 1 it was
/// accepted. `destination`: as of short_lived.hpp. Before another thread can use the number.
void mark_offered(File &f, unsigned side, uint32_t destination = 0) noexcept;
/// Before the kernel socket under `fd` connects or listens: has the kernel say to the other end, and keep
/// what that one says, that it has libsd. False: the kernel does not know of it, since no monitor looks for
/// peers. Asks nobody else: who connects to other hosts only need not have a monitor. `how`: kMarkAgain for a
/// listener, after a restart of the monitor.
[[nodiscard]] bool mark_for_discovery(int fd, int how = kMark) noexcept;
/// Does our monitor look for peers?
bool is_discovery_on() noexcept;
/// A connection just accepted by the kernel gets a File under its number.
void install_accepted(int fd, unsigned family, int flags) noexcept;
inline bool may_be_joined(const File &f) noexcept {
    return f.kind == FileKind::fresh && f.unconnected.offer.load(std::memory_order_relaxed) >= 1 &&
           f.unconnected.offer.load(std::memory_order_relaxed) <= 2;
}
/// For calls that move data, without locks: offers it, or asks whether the other end has come. True: it is a
/// stream by now.
[[nodiscard, gnu::cold]] bool consider_joining(int fd, File &f) noexcept;
/// The socket behind `fd` and this slot, of which nobody has used our side, are one connection from now on;
/// its File is a stream. False: no memory for it.
[[nodiscard]] bool become_joined(int fd, File &f, LinkMap &l, uint32_t slot) noexcept;
/// Nobody will join it: it is closed, connected anew, or in other hands.
[[gnu::cold]] void give_up_joining(File &f) noexcept;
/// The kernel has closed its number, and the caller has the last reference: a child may have it alone now.
[[gnu::cold]] void closed_unjoined(File &f) noexcept;

void offers_fork_prepare() noexcept;
void offers_fork_parent() noexcept;
void offers_fork_child() noexcept;

/// Keeps the socket from being joined while a call of the kernel is under way.
class InsideKernel {
  public:
    explicit InsideKernel(File &f) noexcept : f_(f) {
        f_.unconnected.inside.fetch_add(1, std::memory_order_seq_cst);
    }
    ~InsideKernel() { f_.unconnected.inside.fetch_sub(1, std::memory_order_release); }
    InsideKernel(const InsideKernel &) = delete;
    InsideKernel &operator=(const InsideKernel &) = delete;

  private:
    File &f_;
};

} // namespace sd
