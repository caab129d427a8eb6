// The links that lead to a listener, and taking connections from their SYN queues.
#pragma once
#include "libsd/vfs/connections/listener.hpp"

namespace sd {

/// Attaches links made since the last look. Talks to the monitor only if there are any. Any thread.
bool listener_refresh(Listener &l) noexcept;
/// Up to `max` of its links; returns how many there are.
unsigned listener_links(Listener &l, LinkMap **out, unsigned max) noexcept;
/// The same, with a reference to each of those returned, to be given back with link_unuse().
unsigned hold_listener_links(Listener &l, LinkMap **out, unsigned max) noexcept;
/// Is a connection waiting in some link's SYN queue? (The kernel's queue is not looked at.)
[[nodiscard]] bool listener_pending(Listener &l) noexcept;
/// The same; remembers which, as the program is told of it.
[[nodiscard]] bool tell_pending(Listener &l) noexcept;
/// Was a request told of that nobody has taken since? It may be there no more.
[[nodiscard]] bool is_told_untaken(const Listener &l) noexcept;
/// The next waiting connection of any link, with one reference to its link; -EAGAIN when there is none;
/// -EBADF when the listener was closed after `generation` was read. Any thread, any process. `*dropped`: this
/// call has passed over some that were none.
[[nodiscard]] long take_pending(Listener &l, uint32_t generation, LinkMap **link, uint32_t *slot,
                                bool *dropped = nullptr) noexcept;

} // namespace sd
