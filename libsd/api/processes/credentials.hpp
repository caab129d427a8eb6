// Calls that change who a process is, or what it may do.
#pragma once

namespace sd {

/// Does a call of that number with these arguments, setuid(2) and its like or capset(2), change the process
/// for good? It is one by which it crosses to another trust domain then (vfs::Crossing). Any thread.
[[nodiscard]] bool changes_for_good(long number, const long *arguments) noexcept;

} // namespace sd
