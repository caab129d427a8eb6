// Who else has the socket of a connection that the kernel carries, after a fork?
//
// Only a process that has it alone may have it joined (offer.hpp): who moves data by a ring misses what
// another process reads from the socket or writes to it. The kernel does not tell who has a socket. So a
// server that accepts, forks and closes its own number says so, in a table that its children can read:
//
// - A File knows when its process had the socket alone (`alone_since`): the process, and how many children
//   that had begun to make. As long as both are the same, it has it alone.
// - Every socket has a number among those of its process. When a process closes the last descriptor of one
//   that was not joined, and has made one child since it had it alone, it writes that number into its table.
// - Its child, which has made none itself since, finds the number, and has the socket alone from then on.
//
// Why that is so:
// - Who closes has the last reference of the File, no call of its own is in the kernel with the socket
//   (Unconnected::inside), the kernel has closed the descriptor, and no other one was made that it does not
//   know of (SCM_RIGHTS ends it, OfferState::given_up). So that process has it no more, and no other of its
//   threads reads from it.
// - Which other processes can have it are its children that were forked before that. A fork counts itself
//   before the kernel copies the table of descriptors, under the lock that closing a descriptor takes, too.
//   So of a child that has the socket the parent knows when it counts after the close. With two nothing is
//   said: the one would not know of the other.
// - The child's File is the copy of one that was `marked`: nobody had offered it. What becomes a stream and
//   forks exclude each other (offers_fork_prepare()), so that the parent does not join what a child is about
//   to inherit. What the parent has offered it does not leave.
// - What the child has made is seen by its own count. Who dies, or executes a program, says nothing: then the
//   socket stays with the kernel, as does one whose number was overwritten by one of 512 later ones.
//
// A child can only read the table: the file is sealed, and the mapping to write to is not inherited. So a
// child that has given up rights cannot tell another one that it has a socket alone.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// This process alone has the socket under the File. Of one that was just made, or while nobody forks.
void hold_alone(File &f) noexcept;
/// Has no other process got it since? Any thread; a fork may be under way.
bool is_held_alone(const File &f) noexcept;
/// Was hold_alone() called in this process, and not in one that it was forked from?
bool is_of_this_process(const File &f) noexcept;
/// This process has closed its last descriptor of it, and has no call under way on it: the child says so to
/// itself by is_left_here(). Only of one that nobody has offered.
void leave_to_child(const File &f) noexcept;
/// Have the parent, and all its other children, no such socket any more? What comes next is hold_alone().
bool is_left_here(const File &f) noexcept;
/// Can that still come?
bool may_be_left_here(const File &f) noexcept;

/// Before a fork: nobody makes a stream of a socket meanwhile.
void inherited_fork_prepare() noexcept;
void inherited_fork_child() noexcept;

} // namespace sd
