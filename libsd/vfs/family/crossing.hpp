// Giving up rights: parting from what is shared with those who keep theirs.
#pragma once

namespace sd::vfs {

/// The process is about to be another trust domain's, for good: parts from what it shares with those who
/// stay. Where it cannot, that is counted (Cause::still_shared). Any thread.
/// `everything`: from connections that nobody else has, too.
void before_crossing(bool everything = false) noexcept;

} // namespace sd::vfs
