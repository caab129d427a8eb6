// The record of options that were set on a socket before it became a kernel socket or a connection
// (FreshState). Stays with the File, for a kernel socket that is made later. Any thread may call these.
#pragma once
#include "libsd/vfs/options/options.hpp"

namespace sd {

/// Puts an option into the File's record; the last one set counts. False: there is no room.
[[nodiscard]] bool record_option(File &f, const FreshOption &o) noexcept;
/// The kernel socket has been told more than the record holds.
void record_is_incomplete(File &f) noexcept;
[[nodiscard]] bool find_record(const File &f, int level, int name, FreshOption *out) noexcept;
/// Has anything been recorded?
[[nodiscard]] bool has_record(const File &f) noexcept;

/// Sets the recorded options on kernel socket `fd`. One that it refuses, which it would have taken when the
/// program set it, stays as the kernel has it.
void replay_options(int fd, const FreshState &s) noexcept;
/// Sets what `f`, a connection, was told and keeps itself on kernel socket `fd`, on which its recorded
/// options have been set.
void replay_stored_options(int fd, const File &f) noexcept;
void free_fresh(FreshState *s) noexcept;

/// For option_inherit.cpp: puts the extras into the File's record.
void record_extras(File &f, const InheritedSet &set) noexcept;

/// The File's record for the next holder (at most FreshState::kMax); how many there are.
uint32_t copy_options(const File &f, FreshOption *out) noexcept;
/// The other way round, for a new File. What claims to be longer than its value is left out.
void restore_options(File &f, const FreshOption *from, uint32_t count) noexcept;

/// IP_TOS as it was set on a socket that is not connected yet; 0: it was not.
uint8_t type_of_service(const File &f) noexcept;
/// IPV6_V6ONLY was set on a socket that is not connected yet.
bool is_v6only(const File &f) noexcept;
/// TCP_QUICKACK was switched off on a socket that is not connected yet: the kernel then ends the handshake
/// with the first data, or 200 ms later, and the server does not see the client before.
bool handshake_waits(const File &f) noexcept;

void options_fork_child() noexcept;

} // namespace sd
