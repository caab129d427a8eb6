// Reading /proc.
#include "bench/common/procfs.hpp"

#include <dirent.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace sd::bench {

namespace {

std::vector<std::string> numbers_in(const std::string &path) {
    std::vector<std::string> result;
    DIR *directory = opendir(path.c_str());
    if (directory == nullptr) {
        return result;
    }
    while (const dirent *entry = readdir(directory)) {
        if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) {
            result.emplace_back(entry->d_name);
        }
    }
    closedir(directory);
    return result;
}

std::string namespace_of(const std::string &pid) {
    char target[128];
    const ssize_t size = readlink(("/proc/" + pid + "/ns/net").c_str(), target, sizeof target);
    return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : std::string();
}

// The number after `key` of a line "key:   123 kB".
std::uint64_t field(const std::string &path, const std::string &key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.compare(0, key.size(), key) == 0) {
            return std::strtoull(line.c_str() + key.size(), nullptr, 10);
        }
    }
    return 0;
}

} // namespace

Activity activity_of(pid_t pid) {
    Activity result;
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    for (const std::string &task : numbers_in(tasks)) {
        std::uint64_t run = 0;
        std::ifstream(tasks + "/" + task + "/schedstat") >> run;
        result.run_ns += run;
        result.wakeups += field(tasks + "/" + task + "/status", "voluntary_ctxt_switches:");
    }
    return result;
}

Memory memory_of(pid_t pid) {
    Memory result;
    std::ifstream file("/proc/" + std::to_string(pid) + "/smaps");
    std::string line;
    bool is_memfd = false;
    while (std::getline(file, line)) {
        const std::size_t colon = line.find(':');
        if (line.find('-') < line.find(' ') && colon != std::string::npos && colon > line.find(' ')) {
            is_memfd = line.find("/memfd:") != std::string::npos;
            continue;
        }
        std::istringstream words(line);
        std::string key;
        std::uint64_t kilobytes = 0;
        words >> key >> kilobytes;
        if (is_memfd && key == "Pss:") {
            result.shared_bytes += kilobytes * 1024;
        } else if (!is_memfd && (key == "Private_Dirty:" || key == "Private_Clean:")) {
            result.private_bytes += kilobytes * 1024;
        }
    }
    return result;
}

std::uint64_t kernel_bytes() {
    std::uint64_t pages = 0;
    std::ifstream file("/proc/net/sockstat");
    std::string line;
    while (std::getline(file, line)) {
        const std::size_t at = line.find(" mem ");
        if (line.compare(0, 4, "TCP:") == 0 && at != std::string::npos) {
            pages = std::strtoull(line.c_str() + at + 5, nullptr, 10);
        }
    }
    return pages * 4096 + field("/proc/meminfo", "Slab:") * 1024;
}

std::vector<pid_t> find_processes(const std::string &name) {
    std::vector<pid_t> result;
    const std::string ours = namespace_of("self");
    for (const std::string &pid : numbers_in("/proc")) {
        std::ifstream file("/proc/" + pid + "/comm");
        std::string found;
        std::getline(file, found);
        if (found == name && namespace_of(pid) == ours) {
            result.push_back(static_cast<pid_t>(std::strtol(pid.c_str(), nullptr, 10)));
        }
    }
    return result;
}

} // namespace sd::bench
