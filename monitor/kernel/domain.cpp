// A trust domain, as /proc describes it.
#include "monitor/kernel/domain.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

constexpr unsigned kCapSysPtrace = 19;

std::string path_of(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", static_cast<int>(pid), name);
    return path;
}

/// What comes after "name:" in its line, without the white space in front.
std::optional<std::string_view> field(std::string_view status, std::string_view name) {
    size_t at = status.find(name);
    while (at != std::string_view::npos &&
           (at == 0 || status[at - 1] != '\n' || status.substr(at + name.size(), 1) != ":")) {
        at = status.find(name, at + 1);
    }
    if (at == std::string_view::npos) {
        return std::nullopt;
    }
    std::string_view value = status.substr(at + name.size() + 1);
    value = value.substr(0, value.find('\n'));
    const size_t begin = value.find_first_not_of(" \t");
    return begin == std::string_view::npos ? std::string_view{} : value.substr(begin);
}

template <typename T> bool number(std::string_view &text, T &value, int base = 10) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return error == std::errc();
}

/// The first three of a line of ids: real, effective, saved.
template <typename T> bool ids(std::string_view status, std::string_view name, std::array<T, 3> &out) {
    auto line = field(status, name);
    return line && number(*line, out[0]) && number(*line, out[1]) && number(*line, out[2]);
}

template <typename T> bool single(std::string_view status, std::string_view name, T &out, int base = 10) {
    auto line = field(status, name);
    return line && number(*line, out, base);
}

bool name_space(pid_t pid, const char *name, FileId &out) {
    struct stat st;
    if (stat(path_of(pid, name).c_str(), &st) != 0) {
        return false;
    }
    out = {st.st_dev, st.st_ino};
    return true;
}

} // namespace

std::optional<std::string> security_label(pid_t pid) {
    const UniqueFd fd(open(path_of(pid, "attr/current").c_str(), O_RDONLY | O_CLOEXEC));
    char text[1024];
    const ssize_t n = fd ? read(fd.get(), text, sizeof text) : -1;
    if (n < 0) { // a kernel without security modules, or none of them has labels
        return errno == ENOENT || errno == EINVAL || errno == EOPNOTSUPP ? std::optional<std::string>("")
                                                                         : std::nullopt;
    }
    return static_cast<size_t>(n) < sizeof text ? std::optional<std::string>({text, static_cast<size_t>(n)})
                                                : std::nullopt;
}

Domain read_domain(pid_t pid) {
    Domain d;
    const UniqueFd fd(open(path_of(pid, "status").c_str(), O_RDONLY | O_CLOEXEC));
    char text[8192];
    const ssize_t n = fd ? read(fd.get(), text, sizeof text) : -1;
    struct stat st;
    if (n <= 0 || fstat(fd.get(), &st) != 0) {
        return d;
    }
    // The name, in the first line, may hold anything but a line break: that one is written as two characters.
    const std::string_view status(text, static_cast<size_t>(n));
    unsigned mode = 0;
    if (!ids(status, "Uid", d.uid) || !ids(status, "Gid", d.gid) || !single(status, "CapPrm", d.permitted, 16)) {
        return d;
    }
    if (single(status, "Seccomp", mode) && mode != 0) {
        d.filters = 1; // the strict mode, or a kernel that does not count
        single(status, "Seccomp_filters", d.filters);
    }
    // The files of a process that may not be looked into belong to root. Of root's own cannot be told, and it
    // matters only to one that may not look into every process anyway.
    const bool may_look = (d.permitted >> kCapSysPtrace & 1) != 0;
    d.open = mode == 0 && (may_look || (d.uid[1] != 0 && st.st_uid == d.uid[1]));
    const auto label = security_label(pid);
    d.label = label.value_or("");
    d.known = name_space(pid, "ns/user", d.user) && name_space(pid, "ns/pid", d.pid) &&
              name_space(pid, "ns/mnt", d.mount) && label;
    return d;
}

bool Domain::shares_with(const Domain &other) const {
    return known && other.known && uid == other.uid && gid == other.gid && permitted == other.permitted &&
           user == other.user && pid == other.pid && mount == other.mount && label == other.label &&
           filters == other.filters && ((open && other.open) || (lineage != 0 && lineage == other.lineage));
}

} // namespace sd::monitor
