// What becomes of this library in a program that is about to be executed.
#pragma once

namespace sd {

enum class Loading {
    loads, ///< most likely; also for what cannot be executed at all, since the exec will fail
    /// LD_PRELOAD means nothing to it (static, privileged), and what it starts in turn may load the library
    ignores,
    /// Its dynamic linker would try and complain, or load it where it cannot work: it must not find the
    /// library in LD_PRELOAD
    stumbles
};

/// For what execveat would execute with the same arguments. Async-signal-safe, errno stays; any thread.
Loading loading_of(int dirfd, const char *path, int flags) noexcept;
/// For what execvpe would execute: `file` is searched for in PATH unless it has a slash.
Loading loading_from_path(const char *file) noexcept;

} // namespace sd
