// What is wrong with an installation, and what to type. Each check stands for itself, so that one that cannot
// be made does not keep the others from being made.
#include "monitor/sdctl/doctor.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/doctor_checks.hpp"
#include "monitor/sdctl/failure.hpp"
#include "monitor/sdctl/units.hpp"
#include "monitor/tools/paths.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/core.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace sd::ctl {

namespace {

using monitor::kMaxPath;
using monitor::kSystemSocket;
using monitor::UniqueFd;
using nlohmann::json;

const char *named_monitor() {
    const char *named = secure_getenv("SD_MONITOR");
    return named == nullptr || *named == '\0' ? nullptr : named;
}

/// Of the monitor that answered; 0: none did.
int answering_monitor = 0;

/// The monitor that programs of this user would use answers, and is of this version.
void ask_monitor(const std::string &path, Findings &out) {
    const Outcome outcome = run({own_directory() + "/sdstat", "--json", "--socket", path});
    const json status = json::parse(outcome.output, nullptr, false);
    if (outcome.status != 0 || status.is_discarded() || !status.contains("monitor")) {
        const std::string said = outcome.errors.substr(0, outcome.errors.find('\n'));
        out.push_back({Level::wrong, "monitor", fmt::format("at {} does not answer as it should ({})", path, said),
                       "systemctl restart sd-monitor.service, or restart the programs with the older library",
                       "sd-monitor(8)"});
        return;
    }
    answering_monitor = status["monitor"].value("pid", 0);
    const std::string version = status["monitor"].value("version", "");
    if (version != SD_VERSION) {
        out.push_back({Level::remark, "version",
                       fmt::format("the monitor is {}, this package {}", version, SD_VERSION),
                       "systemctl restart sd-monitor.service", "sd-monitor(8)"});
    }
    out.push_back({Level::good, "monitor", fmt::format("answers at {}", path), "", "sd-monitor(8)"});
    uint64_t left = 0;
    for (const json &cause : status["causes"]) {
        left += cause.value("count", uint64_t{0});
    }
    if (left > 0) {
        out.push_back({Level::remark, "fallbacks", fmt::format("{} sockets were left to kernel TCP", left),
                       "sdstat (which, and why); sdstat --causes (what to do)", "sdstat(1)"});
    }
}

void check_monitor(Findings &out) {
    char own[kMaxPath];
    std::vector<std::string> paths;
    if (const char *named = named_monitor()) {
        paths.emplace_back(named);
    } else {
        paths.emplace_back(kSystemSocket);
        if (monitor::private_socket(own)) {
            paths.emplace_back(own);
        }
    }
    for (const std::string &path : paths) {
        const int fd = monitor::connect_monitor(path.c_str());
        if (fd >= 0) {
            close(fd);
            ask_monitor(path, out);
            return;
        }
        if (fd != -ENOENT) {
            out.push_back({Level::wrong, "monitor", fmt::format("{}: {}", path, strerror(-fd)),
                           fd == -EACCES ? fmt::format("ls -ld {} (mode 0666, in a directory of mode 0755)", path)
                                         : "systemctl status sd-monitor.socket sd-monitor.service",
                           "sd-monitor(8)"});
            return;
        }
    }
    out.push_back(
        {named_monitor() != nullptr ? Level::wrong : Level::remark, "monitor",
         fmt::format("none runs at {}: everything is kernel TCP, but for what sdrun starts (cause 1)", paths[0]),
         named_monitor() != nullptr ? "unset SD_MONITOR" : "systemctl enable --now sd-monitor.socket",
         "sd-monitor(8)"});
}

/// Nobody but root may be able to put another socket there.
void check_socket(Findings &out) {
    struct stat st;
    const std::string directory = std::string(kSystemSocket).substr(0, std::string(kSystemSocket).rfind('/'));
    if (lstat(directory.c_str(), &st) == 0 &&
        (!S_ISDIR(st.st_mode) || st.st_uid != 0 || (st.st_mode & 022) != 0)) {
        out.push_back({Level::wrong, "socket", fmt::format("{} can be changed by others than root", directory),
                       fmt::format("chown root:root {0}; chmod 0755 {0}", directory), "sd-monitor(8)"});
    }
    if (lstat(kSystemSocket, &st) == 0 && (st.st_mode & 0666) != 0666) {
        out.push_back(
            {Level::remark, "socket",
             fmt::format("{} has mode {:04o}: not every user may use it", kSystemSocket, st.st_mode & 07777),
             "SocketMode= in sd-monitor.socket", "sd-monitor(8)"});
    }
}

void check_library(Findings &out) {
    const Library library = find_library();
    struct stat st;
    if (stat(library.path.c_str(), &st) == 0 && geteuid() == 0 && (st.st_uid != 0 || (st.st_mode & 022) != 0)) {
        out.push_back({Level::wrong, "library", fmt::format("{} can be changed by others than root", library.path),
                       fmt::format("chown root:root {0}; chmod 0644 {0}", library.path), "sdrun(1)"});
        return;
    }
    out.push_back({Level::good, "library", library.path, "", "sdrun(1)"});
}

void check_limits(Findings &out) {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < rlim_t{256} << 20) {
        out.push_back(
            {Level::wrong, "limits",
             "address space is limited; the library takes about 110 MiB of it, not of memory, and 8 "
             "MiB for each peer (cause 8)",
             "ulimit -v unlimited", "sdrun(1)"});
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 256) {
        out.push_back({Level::remark, "limits",
                       fmt::format("{} descriptors only; the library needs a few (cause 9)", limit.rlim_cur),
                       "ulimit -n 1024", "sdrun(1)"});
    }
}

void check_seccomp(Findings &out) {
    const std::string status = text_of_file("/proc/self/status");
    const size_t at = status.find("\nSeccomp:\t");
    if (at != std::string::npos && status[at + 10] != '0') {
        out.push_back(
            {Level::remark, "seccomp",
             "a filter holds for this session: what it starts shares memory with its own family only", "",
             "sdctl(1)"});
    }
}

void check_kernel(Findings &out) {
    utsname name{};
    unsigned major = 0, minor = 0;
    if (uname(&name) == 0 && sscanf(name.release, "%u.%u", &major, &minor) == 2 &&
        (major < 5 || (major == 5 && minor < 14))) {
        out.push_back(
            {Level::wrong, "kernel", fmt::format("{} is older than 5.14", name.release), "", "sdrun(1)"});
    }
    struct {
        nlmsghdr header;
        inet_diag_req_v2 request;
    } question{};
    question.header = {sizeof question, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
    question.request.sdiag_family = AF_INET;
    question.request.sdiag_protocol = IPPROTO_TCP;
    question.request.idiag_states = 1U << TCP_LISTEN;
    alignas(nlmsghdr) char answer[8192];
    const UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    const bool asked = fd && send(fd.get(), &question, sizeof question, 0) == sizeof question;
    const ssize_t n = asked ? recv(fd.get(), answer, sizeof answer, 0) : -1;
    const auto *header = reinterpret_cast<const nlmsghdr *>(answer);
    if (n < static_cast<ssize_t>(sizeof *header) || header->nlmsg_type == NLMSG_ERROR) {
        out.push_back({Level::wrong, "kernel",
                       "does not say who listens; without that nothing is accelerated (cause 3)",
                       "modprobe tcp_diag", "sdstat(1)"});
    } else {
        out.push_back({Level::good, "kernel", name.release, "", "sdrun(1)"});
    }
}

void check_environment(Findings &out) {
    if (getenv("SD_DISABLE") != nullptr) {
        out.push_back({Level::remark, "environment", "SD_DISABLE is set: nothing is accelerated",
                       "unset SD_DISABLE", "sdrun(1)"});
    }
}

/// What lets somebody do more than the design means to.
void check_dangers(Findings &out) {
    if (text_of_file("/etc/ld.so.preload").find("libsd.so") != std::string::npos) {
        out.push_back({Level::wrong, "danger",
                       "/etc/ld.so.preload names libsd.so: set-user-ID programs load it as well",
                       "remove it there; sdctl enable UNIT, or sdrun", "sdctl(1)"});
    }
    for (const char *program : {"sdrun", "sd-monitor", "sd-bridge", "sdctl"}) {
        struct stat st;
        const std::string path = std::string("/usr/bin/") + program;
        if (stat(path.c_str(), &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)) != 0) {
            out.push_back({Level::wrong, "danger", path + " is set-user-ID or set-group-ID",
                           "chmod a-s " + path, "sdrun(1)"});
        }
    }
    struct stat st;
    for (const char *path : {"/etc/socksdirect", monitor::kSystemConfig}) {
        if (stat(path, &st) == 0 && (st.st_uid != 0 || (st.st_mode & 022) != 0)) {
            out.push_back({Level::wrong, "danger", fmt::format("{} can be changed by others than root", path),
                           fmt::format("chown root {0}; chmod go-w {0}", path), "sd-monitor.toml(5)"});
        }
    }
}

void check_containers_here(Findings &out) { check_containers(out, answering_monitor); }
void check_bpf_here(Findings &out) { check_bpf(out, answering_monitor); }

void check_units(Findings &out) {
    if (access("/run/systemd/system", F_OK) != 0) {
        return; // no systemd here
    }
    for (const Enabled &unit : enabled_units(Manager(false))) {
        if (unit.state == "not-found") {
            out.push_back({Level::remark, "units", unit.unit + " is enabled, and has gone",
                           "sdctl disable " + unit.unit, "sdctl(1)"});
        } else if (unit.library == "not loaded") {
            out.push_back({Level::remark, "units", unit.unit + " is enabled, and runs without the library",
                           "systemctl restart " + unit.unit, "sdctl(1)"});
        }
    }
}

} // namespace

std::vector<Diagnosis> examine() {
    Findings out;
    for (const auto check : {check_monitor, check_versions, check_socket, check_library, check_limits,
                             check_seccomp, check_containers_here, check_kernel, check_bpf_here,
                             check_devices, check_memory, check_environment, check_dangers, check_units}) {
        try {
            check(out);
        } catch (const std::exception &error) {
            out.push_back({Level::wrong, "sdctl", error.what(), "", "sdctl(1)"});
        }
    }
    return out;
}

} // namespace sd::ctl
