// Connections that go back to their kernel socket and stay there: before a fork, an exec or a filter on
// system calls, when the peer calls, and when somebody else gets the socket.
#pragma once
#include "libsd/vfs/connections/connection.hpp"

namespace sd {

/// With both tokens: what was kept here while both paths were possible is the socket's own from now on.
void hand_back(const File &f) noexcept;
/// From now on neither direction leaves the socket, whoever holds the connection; without tokens. False:
/// something is in the ring, or may be soon, and nothing has changed.
[[nodiscard]] bool stay_in_socket(File &f) noexcept;
/// The same; brings back first what is in the ring, and calls the peer home. It waits for the peer a short
/// time, which may be busy, stopped or hostile.
[[nodiscard]] bool come_home(File &f) noexcept;
/// Of one that did not come home, and whose socket somebody is about to have who knows of nothing else: both
/// ends are told that the connection is reset.
void end_in_error(File &f) noexcept;
/// Of who has called, in the peer's place, or of who is told to leave the ring: without tokens.
void answer_call_home(File &f) noexcept;
/// The same as stay_in_socket(), and this process's numbers are the kernel's.
[[nodiscard]] bool leave_paths(File &f) noexcept;

/// Before a filter on system calls: nothing is joined any more, and what lies wholly in its socket stays
/// there. `all`: what does not is waited for, a short time.
void paths_before_sandbox(bool all) noexcept;
/// Before a fork, or an exec (not `cloexec_too`): connections over this process's device go back to their
/// sockets, as far as their peers do that in a short time; for the others the queue pair is given up. The
/// device is nobody else's.
void leave_device(bool cloexec_too) noexcept;
/// In such a sandbox: is the number a socket that carries a connection?
bool is_path_number(unsigned fd) noexcept;

} // namespace sd
