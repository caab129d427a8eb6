// Whether a program that is about to be executed would have this library loaded into it.
#pragma once

namespace sd {

enum class Loadable { yes, no };

/// For what execveat would execute with the same arguments. Async-signal-safe, errno stays; any thread.
/// A file that cannot be executed at all counts as loadable: the exec will fail.
Loadable loadable(int dirfd, const char *path, int flags) noexcept;
/// For what execvpe would execute: `file` is searched for in PATH unless it has a slash.
Loadable loadable_from_path(const char *file) noexcept;

inline bool would_load(int dirfd, const char *path, int flags) noexcept {
    return loadable(dirfd, path, flags) == Loadable::yes;
}
inline bool would_load_from_path(const char *file) noexcept {
    return loadable_from_path(file) == Loadable::yes;
}

} // namespace sd
