// Servers that fork a child for each connection, told by how they accept and fork in turn.
//
// Two things are done for them. Their clients are told (kLinkForks): where connections are short, and many
// come in a row, the kernel has them (paths/short_lived.hpp). And a child that is made for a connection of
// the kernel's, by a process that holds no accelerated one, starts without a channel to the monitor and
// without records in the family's segments: it holds nothing that they are for. Should it need the monitor
// after all, it greets it, as a process does after a restart of the monitor. Only the listeners that it has
// from its parent are then not known to be its own before it accepts on one; so one child in a row of such
// connections is not enough.
#pragma once
#include "libsd/transport/link.hpp"

namespace sd {

/// A connection was accepted, over this link, or from the kernel's queue (null).
void note_accepted(LinkMap *link) noexcept;

/// Before a fork, with no lock held. A server that forks for each connection never wakes its clients itself,
/// and each child would have the monitor do it, which takes the client's first answer twice as long. So from
/// the second time on that a child is made for a client of the same process, what rings that client is there
/// for the child to inherit.
void fetch_bells_for_child() noexcept;
/// Before a fork, after that, with make_lock (segments_fork_lock()). The child starts without a channel.
[[nodiscard]] bool child_needs_no_channel() noexcept;
/// In the child. True from then on until ensure_channel().
extern bool channel_left_out;
/// Before something is accepted in a child that began without a channel: has it greet the monitor.
void ensure_channel() noexcept;

} // namespace sd
