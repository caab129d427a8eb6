// Whether the next program image will have other rights than this one.
#pragma once

namespace sd {

/// An exec gives capabilities back to root that it had dropped, and takes those from others that are not
/// ambient (capabilities(7)). The image is then of another trust domain, and can have no link of this one's.
/// For a program that is not privileged by its file. False where it cannot be told. Async-signal-safe.
bool exec_changes_rights() noexcept;

} // namespace sd
