// What of the host keeps the library or the monitor from working: versions in memory, containers, BPF,
// devices, memory. Each check stands for itself.
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/doctor_checks.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fmt/core.h>
#include <optional>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::ctl {

namespace {

namespace fs = std::filesystem;

/// "max", and what is not there, are no number.
std::optional<uint64_t> number_in(const std::string &path) {
    const std::string text = text_of_file(path);
    uint64_t value = 0;
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc()
               ? std::optional(value)
               : std::nullopt;
}

/// The value behind a name in a file of lines like "MemAvailable:  123 kB"; base 16 for capabilities.
std::optional<uint64_t> field_of(const std::string &text, const std::string &name, int base = 10) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(name + ":")) {
            const size_t at = line.find_first_not_of(" \t", name.size() + 1);
            uint64_t value = 0;
            if (at != std::string::npos &&
                std::from_chars(line.data() + at, line.data() + line.size(), value, base).ec == std::errc()) {
                return value;
            }
        }
    }
    return std::nullopt;
}

bool same_namespace(const std::string &kind, int pid) {
    struct stat own, other;
    return stat(("/proc/self/ns/" + kind).c_str(), &own) == 0 &&
           stat(fmt::format("/proc/{}/ns/{}", pid, kind).c_str(), &other) == 0 && own.st_ino == other.st_ino;
}

} // namespace

void check_versions(Findings &out) {
    unsigned old = 0;
    std::string first;
    std::error_code error;
    for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return isdigit(c) != 0; })) {
            continue;
        }
        std::istringstream maps(text_of_file(it->path().string() + "/maps"));
        for (std::string line; std::getline(maps, line);) {
            if (line.ends_with("/libsd.so (deleted)")) {
                ++old;
                first = first.empty() ? name : first;
                break;
            }
        }
    }
    if (old > 0) {
        out.push_back(
            {Level::remark, "version",
             fmt::format("{} processes still have a library that was replaced (the first: {})", old, first),
             "restart them; needrestart(1) lists their services", "sdrun(1)"});
    }
}

void check_containers(Findings &out, int monitor_pid) {
    const bool is_container = access("/run/.containerenv", F_OK) == 0 || access("/.dockerenv", F_OK) == 0 ||
                              access("/run/systemd/container", F_OK) == 0;
    if (is_container && monitor_pid == 0) {
        out.push_back({Level::remark, "container", "this is one, and the monitor's socket is not visible in it",
                       "mount /run/socksdirect and the library into it, read-only", "sd-monitor(8)"});
    } else if (is_container || (monitor_pid > 0 && !same_namespace("pid", monitor_pid))) {
        out.push_back({Level::good, "container",
                       "the monitor answers here; programs share memory with others of "
                       "this container",
                       "", "sd-monitor(8)"});
    }
}

void check_bpf(Findings &out, int monitor_pid) {
    constexpr unsigned kNetAdmin = 12, kSysPtrace = 19, kSysAdmin = 21, kBpf = 39;
    if (monitor_pid <= 0 || geteuid() != 0) {
        return; // a private monitor joins programs of one user, for which no rules need to be read
    }
    const auto rights = field_of(text_of_file(fmt::format("/proc/{}/status", monitor_pid)), "CapEff", 16);
    if (!rights) {
        return;
    }
    const auto has = [&](unsigned capability) { return (*rights >> capability & 1) != 0; };
    if (!has(kSysAdmin) && (!has(kNetAdmin) || !has(kBpf))) {
        out.push_back(
            {Level::remark, "BPF",
             "the monitor may not read the rules for packets and control groups: programs of different "
             "users use kernel TCP (cause 35)",
             "CapabilityBoundingSet= of sd-monitor.service with CAP_NET_ADMIN and CAP_BPF", "sd-monitor(8)"});
    } else {
        out.push_back({Level::good, "BPF", "the monitor may read the rules for packets and control groups",
                       "", "sd-monitor(8)"});
    }
    if (!has(kSysPtrace)) {
        out.push_back({Level::wrong, "permissions",
                       "the monitor may not look at processes: nobody's domain is known",
                       "CapabilityBoundingSet= of sd-monitor.service with CAP_SYS_PTRACE", "sd-monitor(8)"});
    }
}

void check_devices(Findings &out) {
    std::error_code error;
    const fs::directory_iterator rdma("/sys/class/infiniband", error);
    const bool has_rdma = !error && rdma != fs::directory_iterator();
    out.push_back({Level::good, "devices",
                   has_rdma ? "there is an RDMA device; connections within this host need none"
                            : "none are needed for connections within this host",
                   "", "sdrun(1)"});
}

void check_memory(Findings &out) {
    const std::string huge = text_of_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if (huge.find("[always]") != std::string::npos || huge.find("[force]") != std::string::npos) {
        out.push_back({Level::remark, "memory",
                       "shared memory is made of huge pages: each link takes megabytes at once",
                       "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "sdrun(1)"});
    }
    constexpr uint64_t kMaps = 65530, kFew = uint64_t{64} << 10;
    if (const auto maps = number_in("/proc/sys/vm/max_map_count"); maps && *maps < kMaps) {
        out.push_back(
            {Level::remark, "memory",
             fmt::format("a process may have {} mappings; a server has some for each client process", *maps),
             "sysctl vm.max_map_count=65530", "sdrun(1)"});
    }
    if (const auto free = field_of(text_of_file("/proc/meminfo"), "MemAvailable"); free && *free < kFew) {
        out.push_back({Level::wrong, "memory", fmt::format("{} KiB are left on this host (cause 8)", *free),
                       "free memory, or add some", "sdstat(1)"});
    }
    const std::string groups = text_of_file("/proc/self/cgroup");
    if (const size_t at = groups.find("0::/"); at != std::string::npos) {
        const std::string group = "/sys/fs/cgroup" + groups.substr(at + 3, groups.find('\n', at) - at - 3);
        const auto most = number_in(group + "/memory.max"), used = number_in(group + "/memory.current");
        if (most && used && (*most < *used || *most - *used < kFew << 10)) {
            out.push_back(
                {Level::remark, "memory",
                 fmt::format("{} of {} MiB of this control group are used: rings count as its memory "
                             "(cause 8)",
                             *used >> 20, *most >> 20),
                 "MemoryMax= of the unit, or the limit of the container", "sdstat(1)"});
        }
    }
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        out.push_back({Level::remark, "limits", "files may not grow: shared memory is made by the monitor instead",
                       "ulimit -f unlimited", "sdrun(1)"});
    }
}

} // namespace sd::ctl
