// Connections that come from another program image or process.
#pragma once
#include "libsd/layout/handoff_record.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// Fills in what `f`, a stream, is.
void write_handoff(const File &f, HandoffRecord &p) noexcept;
/// True if the handoff record names an open Ofd of that segment and the link is the one it is part of.
[[nodiscard]] bool handoff_valid(const HandoffRecord &p, unsigned seg, const LinkMap &l) noexcept;
/// A File of kind stream for a connection this process has been made a holder of (its bit in ProcRecord::held
/// is set); the link gets one more user. nullptr: no memory. Not in the descriptor table yet.
[[nodiscard]] File *admit(const HandoffRecord &p, unsigned seg, LinkMap &l) noexcept;

} // namespace sd
