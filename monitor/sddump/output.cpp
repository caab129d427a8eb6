#include "monitor/sddump/output.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::dump {

using stat::Exit;
using stat::Failure;

namespace {
constexpr int kPatienceMs = 2000; ///< with a reader that takes nothing, once a signal has come
} // namespace

Output::Output(const std::string &path) : name_(path == "-" ? "standard output" : path), fd_(STDOUT_FILENO) {
    if (path == "-") {
        if (isatty(fd_) != 0) {
            throw Failure(Exit::usage, "a capture is not for a terminal: -w FILE, or a pipe");
        }
        return;
    }
    file_ = monitor::UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600));
    struct ::stat status {};
    // Before anything is in it: a file that is there may be open to others.
    if (!file_ || fstat(file_.get(), &status) < 0 ||
        (S_ISREG(status.st_mode) && (fchmod(file_.get(), 0600) < 0 || ftruncate(file_.get(), 0) < 0))) {
        throw Failure(Exit::failed, fmt::format("{}: {}", path, strerror(errno)));
    }
    fd_ = file_.get();
}

void Output::write(std::string_view bytes) const {
    bool is_interrupted = false;
    while (!bytes.empty()) {
        if (is_interrupted) {
            pollfd p{fd_, POLLOUT, 0};
            if (poll(&p, 1, kPatienceMs) == 0) {
                throw Failure(Exit::failed, fmt::format("{}: nobody takes what is written", name_));
            }
        }
        const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
        if (n >= 0) {
            bytes.remove_prefix(static_cast<size_t>(n));
        } else if (errno == EINTR) {
            is_interrupted = true;
        } else if (errno == EPIPE) {
            throw Failure(Exit::done, "");
        } else {
            throw Failure(Exit::failed, fmt::format("{}: {}", name_, strerror(errno)));
        }
    }
}

} // namespace sd::dump
