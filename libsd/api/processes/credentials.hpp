// Calls that change who a process is, or what it may do.
#pragma once

namespace sd {

/// Before a call of that number with these arguments: setuid(2) and its like, or capset(2). Where it changes
/// the process for good, that parts first from what it shares (vfs::before_crossing). Any thread.
void before_change_of_rights(long number, const long *arguments) noexcept;

} // namespace sd
