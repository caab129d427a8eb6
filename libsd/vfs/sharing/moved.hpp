// Connections that have gone over to one kernel socket, which all processes that hold them share from then
// on.
//
// Where a program without libsd inherits a connection that programs with libsd hold as well, who reads what
// and the order of what they write would be anybody's guess if each had a socket of its own. So sd-monitor
// marks the connection as moved (Ofd::tx_block), keeps a descriptor of the kernel socket that the program
// without libsd has got, and starts a bridge, which alone works on the rings from then on. Every other
// process, with its next call on the connection, or when it is woken from one, gets that same kernel socket
// under its numbers: it follows.
//
// In order, nothing lost, nothing twice. The mark is set before the bridge knows of the connection, and
// whoever works on a ring looks at the mark with the token in hand. The bridge takes the tokens; who had
// one before and saw no mark has finished by then, so all that it read comes before what the bridge reads,
// and all that it wrote before what the bridge writes. Who takes a token back from the bridge sees the
// mark. What is written to the kernel socket is written after the mark was set, by the thread that wrote to
// the ring before as well, and the bridge carries it there behind what is in the ring.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Is it the kernel's, for this process? True too of a File that a blocked call still holds when its
/// numbers are the kernel's already. With a token in hand, or as a hint.
inline bool moved(const File &f) noexcept {
    return f.kind == FileKind::stream &&
           (__atomic_load_n(&f.ofd, __ATOMIC_RELAXED)->tx_block.load(std::memory_order_acquire) & kTxMoved) &&
           !f.stream.carried;
}
/// The same with a token in hand, which `o` is known to belong to `f` by.
inline bool moved(const File &f, const Ofd &o) noexcept {
    return (o.tx_block.load(std::memory_order_acquire) & kTxMoved) && !f.stream.carried;
}
/// Gives this process's numbers of a connection that has moved to the kernel socket. Without tokens and
/// locks. False: it has not moved after all.
[[gnu::cold]] bool follow(File &f) noexcept;
/// For calls that begin: what the number stands for once it has followed. `f`: what it stood for just
/// before, or null.
[[gnu::cold]] File *followed(int fd, File *f) noexcept;
inline File *still_ours(int fd, File *f) noexcept { return f && moved(*f) ? followed(fd, f) : f; }
/// A connection that others hold too goes on as a kernel socket for all of them. 0 or -errno: nothing has
/// changed.
[[nodiscard]] long move_to_kernel(File &f, Cause why) noexcept;
/// This process does not hold a moved connection any more, or has followed: sd-monitor keeps the socket for
/// the others only.
void tell_moved_let_go(unsigned seg, uint32_t ofd_index, uint16_t generation) noexcept;
void moved_fork_child() noexcept;

} // namespace sd
