// What the kernel tells of a process that is captured.
#include "monitor/sddump/process.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sd::dump {

using monitor::UniqueFd;
using stat::Exit;
using stat::Failure;

namespace {

constexpr auto kHearing = std::chrono::seconds(1); ///< so long a monitor may take to hear of a segment
constexpr const char *kSegmentName = "/memfd:sd-family (deleted)";

std::string path_of(uint32_t pid, const char *what) { return fmt::format("/proc/{}/{}", pid, what); }

ino_t inode(int fd) {
    struct ::stat status {};
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

int get_descriptor(int pidfd, int number) {
    return static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, number, 0));
}

/// Lines of /proc/PID/status that begin with one of the names.
std::string status_lines(uint32_t pid, std::initializer_list<const char *> names) {
    std::ifstream in(path_of(pid, "status"));
    std::string result;
    for (std::string line; std::getline(in, line);) {
        for (const char *name : names) {
            if (line.rfind(name, 0) == 0) {
                result += line + "\n";
            }
        }
    }
    return result;
}

/// The process's number as it sees itself.
uint32_t own_number(uint32_t pid) {
    const std::string line = status_lines(pid, {"NSpid:"});
    const size_t last = line.find_last_of("\t ");
    return last == std::string::npos ? pid : static_cast<uint32_t>(strtoul(line.c_str() + last, nullptr, 10));
}

unsigned record_of(const SegmentView &view, uint32_t number) {
    const unsigned high = std::min<uint32_t>(view.header().proc_high.load(), kSegProcs);
    unsigned found = kSegProcs;
    for (unsigned i = 0; i < std::max(high, 1U); ++i) {
        if (i != kParcelProc && view.proc(i).state.load() == 1 && view.proc(i).pid.load() == number) {
            if (found != kSegProcs) {
                throw Failure(Exit::failed,
                              "relatives of the process have the same number in other namespaces");
            }
            found = i;
        }
    }
    return found;
}

} // namespace

Process::Process(uint32_t pid)
    : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {
    if (!pidfd_) {
        throw Failure(Exit::nothing, errno == ESRCH || errno == EINVAL
                                         ? fmt::format("there is no process {}", pid)
                                         : fmt::format("process {}: {}", pid, strerror(errno)));
    }
    // Whether the number is open does not matter: the right is looked at first.
    const UniqueFd any(get_descriptor(pidfd_.get(), 0));
    if (!any && errno != EBADF) {
        throw Failure(Exit::failed, errno == EPERM
                                        ? fmt::format("process {}: only who may trace it may capture it", pid)
                                        : fmt::format("process {}: {}", pid, strerror(errno)));
    }
    std::ifstream(path_of(pid, "comm")) >> name_;
    identity_ = identity();
}

bool Process::has_ended(int wait_ms) const {
    pollfd p{pidfd_.get(), POLLIN, 0};
    return poll(&p, 1, wait_ms) > 0;
}

bool Process::is_accelerated() const {
    std::ifstream in(path_of(pid_, "maps"));
    for (std::string line; std::getline(in, line);) {
        if (line.find("libsd.so") != std::string::npos) {
            return true;
        }
    }
    return false;
}

std::string Process::identity() const { return status_lines(pid_, {"Uid:", "Gid:", "Groups:", "CapPrm:"}); }

std::vector<UniqueFd> Process::segments() const {
    std::vector<UniqueFd> result;
    std::set<ino_t> seen;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(path_of(pid_, "fd"), error)) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) != kSegmentName) {
            continue;
        }
        UniqueFd fd(get_descriptor(pidfd_.get(), atoi(entry.path().filename().c_str())));
        if (fd && seen.insert(inode(fd.get())).second) {
            result.push_back(std::move(fd));
        }
    }
    return result;
}

std::vector<FoundSegment> Process::new_segments() {
    std::vector<FoundSegment> result;
    for (UniqueFd &fd : segments()) {
        const ino_t id = inode(fd.get());
        if (known_.count(id) != 0) {
            continue;
        }
        SegmentMap map(std::move(fd));
        const unsigned proc = record_of(map.view(), own_number(pid_));
        if (!map.is_ready()) {
            continue;
        }
        const uint32_t known = map.view().header().capture_known.load();
        if ((known & kKnownToLibrary) == 0) {
            throw Failure(Exit::failed, "the program's libsd is of an earlier version: restart the program");
        }
        if ((known & kKnownToMonitor) == 0) {
            // A new segment, of which the monitor is about to hear; or one that does not leave room.
            if (SteadyClock::now() - unheard_of_.emplace(id, SteadyClock::now()).first->second > kHearing) {
                throw Failure(Exit::failed,
                              "the program's sd-monitor is of an earlier version, and would spoil a capture");
            }
            continue;
        }
        unheard_of_.erase(id);
        if (proc != kSegProcs) { // else it is about to get one
            known_.insert(id);
            result.push_back({std::move(map), proc});
        }
    }
    return result;
}

std::string Process::objection(const std::vector<const SegmentMap *> &segments_in_use) const {
    const UniqueFd any(get_descriptor(pidfd_.get(), 0));
    if (!any && errno != EBADF) {
        return errno == EPERM ? "it may not be traced any more" : strerror(errno);
    }
    if (identity() != identity_) {
        return "it has changed its credentials";
    }
    std::set<ino_t> there;
    for (const UniqueFd &fd : segments()) {
        there.insert(inode(fd.get()));
    }
    for (const SegmentMap *map : segments_in_use) {
        if (there.count(inode(map->fd())) == 0) {
            return "it has executed another program, or left its relatives";
        }
    }
    return {};
}

} // namespace sd::dump
