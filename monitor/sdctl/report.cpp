// What a bug report needs, in one file that can be shown to strangers.
#include "monitor/sdctl/report.hpp"
#include "monitor/sdctl/blot.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/doctor.hpp"
#include "monitor/sdctl/failure.hpp"
#include "monitor/sdctl/units.hpp"
#include "monitor/tools/paths.hpp"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/core.h>
#include <grp.h>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace sd::ctl {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What a program says, or why it says nothing.
std::string said_by(const std::vector<std::string> &command) {
    try {
        const Outcome outcome = run(command);
        return outcome.status == 0
                   ? outcome.output
                   : fmt::format("(status {})\n{}{}", outcome.status, outcome.output, outcome.errors);
    } catch (const Failure &failure) {
        return fmt::format("({})\n", failure.what());
    }
}

/// Everything that has a name here and could stand in a text: of hosts, users, groups, programs, units.
Blotter blotter_of_this_host(const json &status) {
    Blotter blotter;
    utsname host{};
    if (uname(&host) == 0) {
        blotter.add_name(host.nodename);
        blotter.add_name(std::string(host.nodename).substr(0, std::string(host.nodename).find('.')));
    }
    setpwent();
    while (const passwd *user = getpwent()) {
        blotter.add_name(user->pw_name);
    }
    endpwent();
    setgrent();
    while (const group *g = getgrent()) {
        blotter.add_name(g->gr_name);
    }
    endgrent();
    const auto add_program = [&](const std::string &path) {
        blotter.add_name(path.substr(path.rfind('/') + 1));
    };
    std::error_code error;
    for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
        std::string comm = text_of_file(it->path().string() + "/comm");
        comm.resize(std::min(comm.find('\n'), comm.size()));
        blotter.add_name(comm);
        std::error_code unseen;
        add_program(fs::read_symlink(it->path() / "exe", unseen).string());
    }
    for (const json &process : status.value("processes", json::array())) {
        blotter.add_name(process.value("comm", ""));
        add_program(process.value("exe", ""));
        if (const auto group = process.find("group"); group != process.end() && group->is_string()) {
            std::istringstream parts(group->get<std::string>());
            for (std::string part; std::getline(parts, part, '/');) {
                blotter.add_name(part);
                blotter.add_name(part.substr(0, part.rfind('.')));
            }
        }
    }
    if (const json peers = status.value("peers", json()); peers.is_object()) {
        blotter.add_name(peers.value("name", ""));
        for (const json &peer : peers.value("peers", json::array())) {
            blotter.add_name(peer.value("name", ""));
        }
    }
    for (const json &recent : status.value("recent_fallbacks", json::array())) {
        blotter.add_name(recent.value("comm", json()).is_string() ? recent["comm"].get<std::string>() : "");
    }
    return blotter;
}

/// Without comments, and with the values of keys that name somebody taken for names.
std::string configuration(Blotter &blotter) {
    static constexpr std::array<const char *, 4> naming = {"uid", "gid", "exe", "socket"};
    std::istringstream lines(text_of_file(monitor::kSystemConfig));
    std::string out;
    for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \t") == std::string::npos || line[line.find_first_not_of(" \t")] == '#') {
            continue;
        }
        const bool has_names = std::any_of(naming.begin(), naming.end(), [&](const char *key) {
            return line.find(key) != std::string::npos;
        });
        bool is_quoted = false;
        std::string word, kept;
        for (const char c : line) {
            if (c == '#' && !is_quoted) {
                break;
            }
            kept += c;
            if (c == '"') {
                if (is_quoted && has_names) {
                    blotter.add_name(word);
                    blotter.add_name(word.substr(word.rfind('/') + 1));
                }
                is_quoted = !is_quoted;
                word.clear();
            } else if (is_quoted) {
                word += c;
            }
        }
        out += kept + '\n';
    }
    return out;
}

/// "process 4711 (nginx) says": of a program that has ended since.
void take_names_of_log(const std::string &log, Blotter &blotter) {
    for (size_t at = 0; (at = log.find("process ", at)) != std::string::npos; ++at) {
        const size_t open = log.find_first_not_of("0123456789", at + 8);
        const size_t close = log.find(')', at);
        if (open != std::string::npos && log.compare(open, 2, " (") == 0 && close != std::string::npos) {
            blotter.add_name(log.substr(open + 2, close - open - 2));
        }
    }
}

std::string versions() {
    utsname host{};
    uname(&host);
    std::string text = fmt::format("socksdirect {}\nkernel {} {}\n", SD_VERSION, host.release, host.machine);
    std::istringstream release(text_of_file("/etc/os-release"));
    for (std::string line; std::getline(release, line);) {
        text += line.starts_with("PRETTY_NAME=") ? line + '\n' : "";
    }
    for (const char *command : {"sd-monitor", "sdstat", "sdrun"}) {
        text += said_by({own_directory() + "/" + command, "--version"});
    }
    return text;
}

std::string findings() {
    static constexpr const char *names[] = {"good", "remark", "wrong"};
    std::string text;
    for (const Diagnosis &d : examine()) {
        text += fmt::format("{:<7} {}: {}{}{}\n", names[static_cast<int>(d.level)], d.subject, d.text,
                            d.remedy.empty() ? "" : "\n        do: ", d.remedy);
    }
    return text;
}

} // namespace

std::vector<ReportPart> report_parts() {
    const std::string said = said_by({own_directory() + "/sdstat", "--json"});
    const json status = json::parse(said, nullptr, false);
    Blotter blotter = blotter_of_this_host(status.is_object() ? status : json::object());
    const std::string config = configuration(blotter);
    const std::string log =
        said_by({"journalctl", "--no-pager", "--output=cat", "--lines=1000", "--unit=sd-monitor.service"});
    take_names_of_log(log, blotter);
    std::string limits = text_of_file("/proc/self/limits");
    return {{"versions", blotter.blot(versions())},  {"doctor", blotter.blot(findings())},
            {"configuration", blotter.blot(config)}, {"status.json", blotter.blot(said)},
            {"journal", blotter.blot(log)},          {"limits", limits}};
}

std::string report_name() {
    const time_t now = time(nullptr);
    char text[64];
    strftime(text, sizeof text, "socksdirect-report-%Y%m%d-%H%M%S.tar.gz", gmtime(&now));
    return text;
}

void write_report(const std::string &path, const std::vector<ReportPart> &parts) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        throw Failure(Exit::failed, fmt::format("{}: {}", path, strerror(errno)));
    }
    archive *tar = archive_write_new();
    bool is_fine = fchmod(fd, 0600) == 0 && archive_write_add_filter_gzip(tar) == ARCHIVE_OK &&
                   archive_write_set_format_pax_restricted(tar) == ARCHIVE_OK &&
                   archive_write_open_fd(tar, fd) == ARCHIVE_OK;
    for (size_t i = 0; is_fine && i < parts.size(); ++i) {
        archive_entry *entry = archive_entry_new();
        archive_entry_set_pathname(entry, ("socksdirect-report/" + parts[i].name).c_str());
        archive_entry_set_size(entry, static_cast<int64_t>(parts[i].text.size()));
        archive_entry_set_filetype(entry, AE_IFREG);
        archive_entry_set_perm(entry, 0600);
        is_fine = archive_write_header(tar, entry) == ARCHIVE_OK &&
                  archive_write_data(tar, parts[i].text.data(), parts[i].text.size()) ==
                      static_cast<la_ssize_t>(parts[i].text.size());
        archive_entry_free(entry);
    }
    is_fine = archive_write_close(tar) == ARCHIVE_OK && is_fine;
    const int error = archive_errno(tar);
    archive_write_free(tar);
    is_fine = close(fd) == 0 && is_fine;
    if (!is_fine) {
        unlink(path.c_str());
        throw Failure(Exit::failed, fmt::format("{}: {}", path, strerror(error != 0 ? error : errno)));
    }
}

} // namespace sd::ctl
