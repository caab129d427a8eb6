#include "tests/e2e/deaths/census.hpp"

#include <dirent.h>

namespace deaths {

using namespace sdtest;

namespace {

// Number and place of each descriptor of a process.
std::vector<std::string> descriptors_of(long pid) {
    const std::string directory = "/proc/" + std::to_string(pid) + "/fd/";
    std::vector<std::string> result;
    DIR *d = opendir(directory.c_str());
    while (const dirent *entry = d ? readdir(d) : nullptr) {
        char where[200];
        const ssize_t n = readlink((directory + entry->d_name).c_str(), where, sizeof where);
        if (n > 0)
            result.push_back(std::string(entry->d_name) + " " + std::string(where, static_cast<size_t>(n)));
    }
    if (d)
        closedir(d);
    return result;
}

// The number behind "NAME": in a JSON text, looked for after `from`.
bool number_in(const std::string &text, size_t from, const std::string &name, long *value) {
    const size_t at = text.find("\"" + name + "\":", from);
    if (at == std::string::npos)
        return false;
    *value = atol(text.c_str() + at + name.size() + 3);
    return true;
}

long private_memory_of(long pid) {
    long kib = 0;
    if (FILE *f = fopen(("/proc/" + std::to_string(pid) + "/status").c_str(), "r")) {
        char line[200];
        while (fgets(line, sizeof line, f))
            sscanf(line, "RssAnon: %ld", &kib);
        fclose(f);
    }
    return kib;
}

long monitor_pid = 0; // as of the last census

// How much more of something is no leak: pages of tables that have been touched stay, allocators keep some.
long allowance(const std::string &name) {
    if (name == "shared_memory")
        return 2 << 20;
    if (name == "monitor KiB" || name == "own KiB")
        return 4096;
    if (name == "own mappings")
        return 16;
    if (name == "own descriptors") // numbers kept for the next connection
        return 4;
    return 0;
}

} // namespace

Census take_census() {
    Census result;
    std::string text;
    if (const char *build = getenv("SD_BUILD_DIR")) {
        if (FILE *f = popen((std::string(build) + "/sdstat --json 2>/dev/null").c_str(), "re")) {
            char chunk[4096];
            for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
                text.append(chunk, n);
            pclose(f);
        }
    }
    const size_t resources = text.find("\"resources\"");
    if (resources == std::string::npos)
        return result;
    for (const char *name : {"channels", "segments", "open_files", "family_processes", "family_threads", "links",
                             "slots", "listeners", "doorbells", "parcels", "awaited", "shared_memory"}) {
        long value;
        if (number_in(text, resources, name, &value))
            result[name] = value;
    }
    long pid = 0;
    if (const size_t monitor = text.find("\"monitor\""); number_in(text, monitor, "pid", &pid) && pid > 0) {
        result["monitor descriptors"] = static_cast<long>(descriptors_of(pid).size());
        result["monitor KiB"] = private_memory_of(pid);
        monitor_pid = pid;
    }
    result["own descriptors"] = static_cast<long>(descriptors_of(getpid()).size());
    result["own mappings"] = mappings();
    result["own KiB"] = private_memory_of(getpid());
    return result;
}

bool returns_to(const Census &before, int patience_ms) {
    std::string left;
    for (Stopwatch watch;; sleep_ms(20)) {
        left.clear();
        const Census now = take_census();
        for (const auto &[name, value] : before) {
            const auto it = now.find(name);
            if (it == now.end() || it->second > value + allowance(name))
                left += " " + name + " " + (it == now.end() ? "?" : std::to_string(it->second)) + " not " +
                        std::to_string(value);
        }
        if (left.empty())
            return true;
        if (watch.ms() > patience_ms)
            break;
    }
    complain("left behind:%s", left.c_str());
    for (const std::string &descriptor : descriptors_of(monitor_pid))
        fprintf(stderr, "monitor: %s\n", descriptor.c_str());
    return false;
}

} // namespace deaths
