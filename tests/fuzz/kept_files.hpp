// Files that the monitor reads of each client: in control_fuzz all clients are the fuzzer, so these say the
// same each time. They are opened once, and their bytes are kept. To be included once in a program.
#pragma once
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sdfuzz {

/// For the thread that sets it: threads would share one position in a file.
inline thread_local bool keeps_files = false;

class KeptFiles {
  public:
    /// What open() returns, with errno.
    int open(const char *path, int flags) {
        auto it = kept_.find(path);
        if (it == kept_.end()) {
            const Kept made = keep(path, flags);
            if (made.error == EMFILE) { // the next one may be luckier
                errno = EMFILE;
                return -1;
            }
            it = kept_.emplace(path, made).first;
        }
        if (it->second.fd < 0) {
            errno = it->second.error;
            return -1;
        }
        lseek(it->second.fd, 0, SEEK_SET);
        return fcntl(it->second.fd, F_DUPFD_CLOEXEC, 0);
    }
    bool has(std::string_view path) const {
        return path.starts_with("/sys/fs/cgroup/")
                   ? path.find("/memory.") != path.npos
                   : path.starts_with(own_) && is_read(path.substr(own_.size()));
    }

  private:
    struct Kept {
        int fd = -1, error = 0;
    };
    static bool is_read(std::string_view name) {
        return name == "cgroup" || name == "status" || name == "stat" || name == "comm" || name == "attr/current";
    }
    static Kept keep(const char *path, int flags) {
        const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC));
        if (file < 0) {
            return {-1, errno};
        }
        char text[16384];
        const ssize_t n = read(file, text, sizeof text);
        if (n < 0) {
            return {file, 0}; // to read it fails each time
        }
        close(file);
        const int copy = memfd_create("kept", MFD_CLOEXEC);
        if (copy < 0 && errno == EMFILE) {
            return {-1, EMFILE};
        }
        if (copy < 0 || write(copy, text, static_cast<size_t>(n)) != n) {
            abort();
        }
        return {copy, 0};
    }
    const std::string own_ = "/proc/" + std::to_string(getpid()) + "/";
    std::map<std::string, Kept, std::less<>> kept_;
};

} // namespace sdfuzz

/// In place of libc's, for the monitor.
extern "C" int open(const char *path, int flags, ...) {
    static auto *const files = new sdfuzz::KeptFiles;
    if (sdfuzz::keeps_files && (flags & (O_ACCMODE | O_PATH | O_DIRECTORY)) == O_RDONLY && files->has(path)) {
        return files->open(path, flags);
    }
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
