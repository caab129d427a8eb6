// What /proc and the kernel say about a process.
#include "monitor/kernel/process_info.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

namespace sd::monitor {

namespace {

/// A small /proc file of a process, without a final newline.
std::string slurp(pid_t pid, const char *name) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/%s", static_cast<int>(pid), name);
    UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t n = fd ? read(fd.get(), text, sizeof text) : -1;
    std::string result(text, n > 0 ? static_cast<size_t>(n) : 0);
    while (!result.empty() && result.back() == '\n') {
        result.pop_back();
    }
    return result;
}

} // namespace

ino_t netns_inode(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", static_cast<int>(pid));
    struct stat st {};
    return pid > 0 && stat(path, &st) == 0 ? st.st_ino : 0;
}

uint64_t address_space_left(pid_t pid) {
    // What the kernel gives out unless it is asked for more, but for holes that are too small for anything.
    uint64_t space = (uint64_t{1} << 47) - (uint64_t{1} << 30);
    rlimit limit{};
    if (pid > 0 && prlimit(pid, RLIMIT_AS, nullptr, &limit) == 0) {
        space = std::min<uint64_t>(space, limit.rlim_cur);
    }
    const uint64_t used = pid > 0 ? strtoull(slurp(pid, "statm").c_str(), nullptr, 10) * 4096 : 0;
    return used < space ? space - used : 0;
}

uint64_t start_time(pid_t pid) {
    const std::string stat = slurp(pid, "stat");
    // The name in parentheses may hold anything, so count fields from its end: it is the second, starttime
    // the 22nd.
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) {
        return 0;
    }
    const char *p = stat.c_str() + name_end + 1;
    for (int field = 3; field < 22; ++field) {
        p = strchr(p + 1, ' ');
        if (p == nullptr) {
            return 0;
        }
    }
    return strtoull(p, nullptr, 10);
}

std::string process_exe(pid_t pid) {
    char path[64], text[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", static_cast<int>(pid));
    const ssize_t n = readlink(path, text, sizeof text);
    return n > 0 ? std::string(text, static_cast<size_t>(n)) : std::string();
}

/// The process chooses its name: no log and no terminal is to obey what stands in it.
std::string process_comm(pid_t pid) {
    std::string name = slurp(pid, "comm");
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return name;
}

bool is_alive(const UniqueFd &pidfd) {
    pollfd p{pidfd.get(), POLLIN, 0};
    return pidfd && poll(&p, 1, 0) == 0;
}

UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

} // namespace sd::monitor
