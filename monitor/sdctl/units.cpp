// Turning the library on and off for units of systemd: a drop-in beside the unit, nothing else.
//
// The drop-in does not name the library, but a file of the package that does, and that may be missing ("-"):
// once the package has gone, the unit starts as it did before. A unit that has an LD_PRELOAD of its own keeps
// it; then the file is one of ours for this unit, as the last value of a variable is the only one.
#include "monitor/sdctl/units.hpp"
#include "libsd/api/processes/loadable.hpp"
#include "libsd/cpu/elf.hpp"
#include "monitor/sdctl/failure.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

// What libsd/api/processes/loadable.cpp asks about the library.
namespace {
std::string library_to_load;
}
namespace sd {
const char *preloaded_as() noexcept { return library_to_load.c_str(); }
bool preloaded_everywhere() noexcept { return false; }
} // namespace sd

namespace sd::ctl {

namespace fs = std::filesystem;

namespace {

constexpr const char *kDropIn = "50-socksdirect.conf";
constexpr const char *kOwnEnvironments = "/etc/socksdirect/units";

[[noreturn]] void fail(const std::string &path, int error) {
    throw Failure(Exit::failed, fmt::format("{}: {}", path, strerror(error)));
}

/// Whole or not at all, also on a full disk.
void write_file(const std::string &path, const std::string &text) {
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    const std::string temporary = path + ".new";
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        fail(path, errno);
    }
    const ssize_t n = write(fd, text.data(), text.size());
    const int reason = n == static_cast<ssize_t>(text.size()) ? 0 : n < 0 ? errno : ENOSPC;
    if ((close(fd) != 0 || reason != 0 || rename(temporary.c_str(), path.c_str()) != 0)) {
        const int saved = reason != 0 ? reason : errno;
        unlink(temporary.c_str());
        fail(path, saved);
    }
}

std::string drop_in_of(const Manager &manager, const std::string &unit) {
    return manager.directory() + "/" + unit + ".d/" + kDropIn;
}
std::string own_environment_of(const std::string &unit) {
    return fmt::format("{}/{}.env", kOwnEnvironments, unit);
}

/// A template is no unit that can be asked about; an instance of it is.
std::string shown_as(const std::string &unit) {
    const size_t at = unit.find("@.");
    return at == std::string::npos ? unit : unit.substr(0, at) + "@sdctl" + unit.substr(at + 1);
}

std::string systemctl_of(const Manager &manager) { return manager.user() ? "systemctl --user" : "systemctl"; }

/// What the unit has in LD_PRELOAD without us: the manager's own environment, the unit's, then its files.
std::string own_preload(const Manager &manager, const Properties &unit, const Library &library,
                        const std::string &name) {
    std::string found = variable_of_file(manager.call({"show-environment"}), "LD_PRELOAD");
    const auto take = [&found](const std::string &next) { found = next.empty() ? found : next; };
    if (const auto environment = unit.find("Environment"); environment != unit.end()) {
        take(variable_of(environment->second, "LD_PRELOAD"));
    }
    if (const auto files = unit.find("EnvironmentFiles"); files != unit.end()) {
        std::istringstream in(files->second);
        for (std::string line; std::getline(in, line);) {
            const std::string path = line.substr(0, line.find(" ("));
            if (path != library.environment && path != own_environment_of(name)) {
                take(variable_of_file(text_of_file(path), "LD_PRELOAD"));
            }
        }
    }
    return found;
}

/// Every program that a unit starts, out of "{ path=/usr/sbin/nginx ; argv[]=..." for each.
std::vector<std::string> programs_of(const Properties &unit) {
    std::vector<std::string> programs;
    std::istringstream in(value(unit, "ExecStart"));
    for (std::string line; std::getline(in, line);) {
        const size_t begin = line.find("path=");
        if (begin != std::string::npos) {
            programs.push_back(line.substr(begin + 5, line.find(" ;", begin) - begin - 5));
        }
    }
    return programs;
}

std::vector<Obstacle> obstacles_of(const Manager &manager, const Properties &unit, const Library &library,
                                   const std::string &preload) {
    std::vector<Obstacle> all = find_obstacles(unit, library.path);
    library_to_load = library.path;
    for (const std::string &program : programs_of(unit)) {
        const Loading loading = loading_from_path(program.c_str());
        if (loading == Loading::stumbles) {
            all.push_back({true, "ExecStart", program + " is not for glibc's dynamic linker on " + cpu::kName});
        } else if (loading == Loading::ignores) {
            all.push_back({false, "ExecStart",
                           program + " is linked statically or set-user-ID, and does not load the library"});
        }
    }
    if (!preload.empty() && manager.user()) {
        all.push_back(
            {true, "Environment",
             fmt::format("has LD_PRELOAD={}; that of a user's unit cannot be joined with ours so that it is "
                         "right also when the package has gone",
                         preload)});
    }
    return all;
}

bool remove_drop_in(const Manager &manager, const std::string &unit) {
    const std::string path = drop_in_of(manager, unit);
    if (unlink(path.c_str()) != 0) {
        if (errno == ENOENT) {
            return false;
        }
        fail(path, errno);
    }
    rmdir(fs::path(path).parent_path().c_str()); // unless there is more in it
    if (!manager.user()) {
        unlink(own_environment_of(unit).c_str());
        rmdir(kOwnEnvironments);
    }
    return true;
}

/// Whether the library is mapped into a process.
std::string loaded_in(int pid) {
    const std::string text = text_of_file(fmt::format("/proc/{}/maps", pid));
    return text.empty() ? "unknown" : text.find("/libsd.so") == std::string::npos ? "not loaded" : "loaded";
}

void restart(const Manager &manager, const std::string &unit) {
    manager.call({"try-restart", "--", unit});
    fmt::print("{}: restarted, if it was running\n", unit);
}

} // namespace

Library find_library() {
    const fs::path own = own_directory();
    for (const fs::path &directory : {own, fs::path(SD_LIBRARY_DIR) / "socksdirect"}) {
        if (access((directory / "libsd.so").c_str(), R_OK) == 0) {
            return {directory / "libsd.so", directory / "preload.env"};
        }
    }
    throw Failure(Exit::failed, fmt::format("libsd.so: is neither in {} nor in {}/socksdirect", own.string(),
                                            SD_LIBRARY_DIR));
}

std::string unit_name(const std::string &text) {
    const bool known =
        !text.empty() && text.size() < 256 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
            return isalnum(c) != 0 || strchr(":-_.\\@", c) != nullptr;
        });
    if (!known || text[0] == '-' || text[0] == '.') {
        throw Failure(Exit::usage, fmt::format("\"{}\": can be no unit's name", text));
    }
    const size_t dot = text.rfind('.');
    static const std::vector<std::string> others = {".socket", ".device", ".mount", ".automount", ".swap",
                                                    ".target", ".path",   ".timer", ".slice",     ".scope"};
    const std::string suffix = dot == std::string::npos ? "" : text.substr(dot);
    if (std::find(others.begin(), others.end(), suffix) != others.end()) {
        throw Failure(Exit::usage,
                      fmt::format("{}: only services have programs; name the service that this {} belongs to",
                                  text, suffix.substr(1)));
    }
    return suffix == ".service" ? text : text + ".service";
}

void enable(const Manager &manager, const std::string &asked, const Enabling &how) {
    const Library library = find_library();
    if (access(library.environment.c_str(), R_OK) != 0) {
        throw Failure(Exit::failed, library.environment +
                                        ": is missing; units can be changed from installed packages only");
    }
    std::vector<std::string> names = obstacle_properties();
    names.insert(names.end(), {"Id", "LoadState", "Environment", "EnvironmentFiles", "ExecStart",
                               "TriggeredBy", "ActiveState"});
    const Properties unit = manager.show(shown_as(asked), names);
    const auto text = [&unit](const char *name) { return value(unit, name); };
    if (text("LoadState") == "not-found") {
        throw Failure(Exit::no_unit, asked + ": there is no such unit");
    }
    if (text("LoadState") != "loaded") {
        throw Failure(Exit::obstacle, fmt::format("{}: is {}", asked, text("LoadState")));
    }
    // Its own name, where it was called by an alias.
    const std::string name = asked.find("@.") != std::string::npos || text("Id").empty() ? asked : text("Id");
    const std::string preload = own_preload(manager, unit, library, name);
    bool blocked = false;
    for (const Obstacle &o : obstacles_of(manager, unit, library, preload)) {
        fmt::print(stderr, "sdctl: {}: {}= {}{}\n", name, o.property, o.reason, o.blocks ? "" : " (a remark)");
        blocked = blocked || o.blocks;
    }
    if (blocked) {
        throw Failure(Exit::obstacle,
                      fmt::format("{}: left as it is; sdctl does not loosen a unit's sandbox", name));
    }
    std::string file = library.environment;
    if (!preload.empty()) {
        file = own_environment_of(name);
        write_file(file, fmt::format("LD_PRELOAD={}:{}\n", library.path, preload));
    }
    write_file(drop_in_of(manager, name),
               fmt::format("# Made by \"sdctl enable {0}\"; \"sdctl disable {0}\" removes it.\n"
                           "[Service]\nEnvironmentFile=-{1}\n",
                           name, file));
    manager.call({"daemon-reload"});
    fmt::print("{}: enabled\n", name);
    if (!preload.empty()) {
        fmt::print("{}: its own LD_PRELOAD ({}) stays\n", name, preload);
    }
    if (!text("TriggeredBy").empty()) {
        fmt::print("{}: {}: listening sockets that systemd makes stay with kernel TCP\n", name,
                   text("TriggeredBy"));
    }
    if (how.now) {
        restart(manager, name);
    } else if (text("ActiveState") == "active") {
        fmt::print("{0}: from its next start on: {1} restart {0}\n", name, systemctl_of(manager));
    }
}

void disable(const Manager &manager, const std::string &asked, bool now) {
    const Properties unit = manager.show(shown_as(asked), {"Id", "LoadState", "ActiveState"});
    const bool is_template = asked.find("@.") != std::string::npos;
    const std::string name = is_template || unit.find("Id") == unit.end() ? asked : unit.at("Id");
    if (!remove_drop_in(manager, name)) {
        if (unit.find("LoadState") == unit.end() || unit.at("LoadState") == "not-found") {
            throw Failure(Exit::no_unit, asked + ": there is no such unit");
        }
        fmt::print("{}: was not enabled\n", name);
        return;
    }
    manager.call({"daemon-reload"});
    fmt::print("{}: disabled\n", name);
    if (now) {
        restart(manager, name);
    } else if (unit.find("ActiveState") != unit.end() && unit.at("ActiveState") == "active") {
        fmt::print("{0}: keeps the library until its next start: {1} restart {0}\n", name, systemctl_of(manager));
    }
}

namespace {

/// The units that have our drop-in, by name.
std::vector<std::string> names_of_enabled(const Manager &manager) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(manager.directory(), error)) {
        const std::string name = entry.path().filename();
        if (name.size() > 2 && name.compare(name.size() - 2, 2, ".d") == 0 &&
            fs::exists(entry.path() / kDropIn, error)) {
            names.push_back(name.substr(0, name.size() - 2));
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

} // namespace

void disable_all(const Manager &manager) {
    const std::vector<std::string> names = names_of_enabled(manager);
    std::string failures;
    for (const std::string &name : names) {
        try {
            remove_drop_in(manager, name);
            fmt::print("{}: disabled\n", name);
        } catch (const Failure &failure) {
            failures += (failures.empty() ? "" : "; ") + std::string(failure.what());
        }
    }
    if (!names.empty()) {
        manager.call({"daemon-reload"});
    }
    if (!failures.empty()) {
        throw Failure(Exit::failed, failures);
    }
}

std::vector<Enabled> enabled_units(const Manager &manager) {
    std::vector<Enabled> units;
    for (const std::string &name : names_of_enabled(manager)) {
        Enabled entry{name, "unknown", 0, ""};
        if (name.find("@.") != std::string::npos) {
            entry.state = "template";
        } else {
            const Properties unit = manager.show(name, {"LoadState", "ActiveState", "MainPID"});
            entry.state = value(unit, "LoadState") == "not-found" ? "not-found" : value(unit, "ActiveState");
            entry.pid = atoi(value(unit, "MainPID").c_str());
            entry.library = entry.pid > 0 ? loaded_in(entry.pid) : "";
        }
        units.push_back(entry);
    }
    return units;
}

} // namespace sd::ctl
