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

/// Children that lie between the first process of the family and this one (epoll_set.hpp).
extern std::atomic<uint32_t> fork_generation;

/// Of a marked one: does this process work on in the ring all the same? It carries, or has the socket that
/// all are to have first (vfs/paths/adopt.hpp).
inline bool works_on(const File &f, uint32_t block) noexcept {
    const bool has_fetched = (block & (kTxAdopt | kTxBegin)) == kTxAdopt && f.stream.fetched != 0 &&
                             f.stream.fetched == adoption_of(block) &&
                             f.stream.fetched_in == fork_generation.load(std::memory_order_relaxed);
    return f.stream.carried || has_fetched;
}
/// Is it the kernel's, for this process, or has this process a step to take before it goes on? True too of a
/// File that a blocked call still holds when its numbers are the kernel's already. With a token in hand, or
/// as a hint.
inline bool moved(const File &f) noexcept {
    if (f.kind != FileKind::stream)
        return false;
    const uint32_t block = __atomic_load_n(&f.ofd, __ATOMIC_RELAXED)->tx_block.load(std::memory_order_acquire);
    return (block & kTxMoved) && !works_on(f, block);
}
/// The same with a token in hand, which `o` is known to belong to `f` by.
inline bool moved(const File &f, const Ofd &o) noexcept {
    const uint32_t block = o.tx_block.load(std::memory_order_acquire);
    return (block & kTxMoved) && !works_on(f, block);
}
/// Gives this process's numbers of a connection that has moved to the kernel socket. Without tokens and
/// locks. False: it has not moved after all, or has got one more path.
[[gnu::cold]] bool follow(File &f) noexcept;
/// For calls that begin: what the number stands for once it has followed. `f`: what it stood for just
/// before, or null.
[[gnu::cold]] File *followed(int fd, File *f) noexcept;
inline File *still_ours(int fd, File *f) noexcept { return f && moved(*f) ? followed(fd, f) : f; }
/// A connection that others hold too goes on as a kernel socket for all of them. 0 or -errno: nothing has
/// changed.
[[nodiscard]] long move_to_kernel(File &f, Cause why) noexcept;
/// The common socket, or -errno. `adoption`: of this one (adoption_of()); 0: of any.
[[nodiscard]] long ask_for_socket(const File &f, uint32_t adoption) noexcept;
/// This process does not hold a moved connection any more, or has followed: sd-monitor keeps the socket for
/// the others only.
void tell_moved_let_go(unsigned seg, uint32_t ofd_index, uint16_t generation) noexcept;
/// This process has the socket of an adoption. When the answer comes the monitor has looked what follows from
/// that. False: there is no monitor.
[[nodiscard]] bool say_has_socket(const File &f, uint32_t adoption) noexcept;
void moved_fork_child() noexcept;

} // namespace sd
