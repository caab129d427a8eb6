// The search for a program in PATH, as libc's execvpe and posix_spawnp do it.
#pragma once
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace sd {

/// Calls `attempt(path)` for one candidate after the other. It returns 0 or more for "this is it", which ends
/// the search, or -errno; those that mean "not here" let it go on. Returns what ended it. Async-signal-safe;
/// takes up to 4.3 KiB of stack.
template <class F> long search_path(const char *file, F attempt) noexcept {
    if (*file == '\0')
        return -ENOENT;
    if (strchr(file, '/'))
        return attempt(file);
    const size_t length = strnlen(file, NAME_MAX + 1);
    if (length > NAME_MAX)
        return -ENAMETOOLONG;
    const char *directory = getenv("PATH");
    if (!directory)
        directory = "/bin:/usr/bin";
    char candidate[PATH_MAX + NAME_MAX + 2];
    bool denied = false;
    long last = -ENOENT;
    for (;;) {
        const char *end = strchrnul(directory, ':');
        const auto n = static_cast<size_t>(end - directory);
        if (n < PATH_MAX) {
            memcpy(candidate, directory, n);
            char *name = candidate + n;
            if (n)
                *name++ = '/';
            memcpy(name, file, length + 1);
            last = attempt(static_cast<const char *>(candidate));
            switch (last) {
            case -EACCES:
                denied = true;
                break;
            case -ENOENT:
            case -ESTALE:
            case -ENOTDIR:
            case -ENODEV:
            case -ETIMEDOUT:
                break;
            default:
                return last;
            }
        }
        if (*end == '\0')
            return denied ? -EACCES : last;
        directory = end + 1;
    }
}

} // namespace sd
