// Inode numbers of sockets, as fstat() tells them.
//
// All placeholders of a process are one kernel object, but programs tell sockets apart by their inode, and
// who is passed one may look whether it is the one that he was told of (Dovecot does). So an accepted
// connection has a number of its own, the same in each process that holds it and after an exec
// (connection_inode()). Where it becomes a kernel socket, or arrives as one, the process goes on telling that
// number instead of the new socket's.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// What fstat() has to say; 0: the kernel's number is right. Notes that a socket was asked before it
/// connects: its number then stays as it was told, in this process. Any thread, async-signal-safe.
uint64_t inode_of(File &f) noexcept;
/// The kernel socket behind the number stands for what was told to have inode `told`. A process keeps some
/// hundreds of these, and later ones may take the place of earlier ones.
void note_told_inode(int fd, uint64_t told) noexcept;
/// What is told instead of the kernel's number; 0: nothing. Any thread, async-signal-safe, no system call.
uint64_t inode_told_for(uint64_t kernels) noexcept;

} // namespace sd
